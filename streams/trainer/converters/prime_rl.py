"""prime-rl: `TrainingSample`, four arrays of equal, full length.

    examples = [TrainingSample(**fields) for fields in prime_rl.samples(batch.rows, env_name="swe")]

`temperatures` come from the turns: logits are divided by them, so a token's is the one that it was
sampled at. Tokens that nobody trains get 1.0, which changes nothing.

Invariant: the four arrays and `advantages` are as long as `token_ids`; prime-rl fails else.
"""

from collections.abc import Iterable

import numpy as np

from schemas.record import Floats
from schemas.samples import Sample
from streams.trainer.converters.replay import Replay, by_position, to_whole
from streams.trainer.converters.rows import (
    Arrays,
    Fields,
    Missing,
    Row,
    advantage_of,
    arrays,
    refusal,
)


def samples(
    rows: Iterable[Row],
    *,
    env_name: str,
    temperature: float | None = None,
    replay: Replay | None = None,
    missing: Missing = "mask",
) -> list[Fields]:
    """Arguments of `TrainingSample`; `temperature` is for turns that were recorded without one."""
    made = []
    for row in rows:
        full = arrays(row, missing)
        fields: Fields = {
            "token_ids": full.tokens_T.tolist(),
            "mask": full.mask_T.tolist(),
            "logprobs": full.logprobs_T.tolist(),
            "temperatures": temperatures(row.sample, full, temperature).tolist(),
            "env_name": env_name,
            "advantages": (full.mask_T * advantage_of(row)).tolist(),
            "reward": row.sample.session_reward,
        }
        if replay is not None:
            fields["routed_experts"] = _experts(row.sample, replay)
        made.append(fields)
    return made


def temperatures(sample: Sample, full: Arrays, otherwise: float | None) -> Floats:
    """What each trained token was sampled at."""
    given_T = np.ones(len(full.tokens_T), np.float32)
    told_T = np.zeros(len(full.tokens_T), np.bool_)
    for turn in sample.turns:
        said = None if turn.sampling is None else turn.sampling.temperature
        temperature = otherwise if said is None else said
        if temperature is not None and temperature > 0:
            given_T[turn.start : turn.end] = temperature
            told_T[turn.start : turn.end] = True
        elif full.mask_T[turn.start : turn.end].any():
            what = "no temperature" if temperature is None else f"temperature {temperature}"
            raise refusal(sample, f"turn {turn.turn_id} has {what}, and logits are divided by it")
    if (full.mask_T & ~told_T).any():
        raise refusal(sample, "trained tokens are in none of its turns: their temperature is open")
    given_T[~full.mask_T] = 1.0
    return given_T


def _experts(sample: Sample, replay: Replay) -> Fields:
    """Arguments of `RoutedExperts`."""
    experts = to_whole(by_position(sample, replay))
    shape = list(experts.shape)
    return {"data": experts.tobytes(), "shape": shape, "dtype": str(experts.dtype)}
