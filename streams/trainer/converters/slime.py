"""slime and miles: `Sample`, whose arrays cover the response alone.

    samples = [Sample.from_dict(fields) for fields in slime.samples(batch.rows)]

and in the command that starts training:

    --custom-reward-post-process-path streams.trainer.converters.slime.rewards

which is not optional. The default normalisation reshapes rewards by samples per prompt; a batch
with a forked rollout has another number of samples, and all of it is then silently one group.
`rewards` gives the advantages that were computed per rollout instead.

Siblings share `rollout_id`, by which slime averages the loss; miles keeps the attribute and
averages by sample. There `weighted` multiplies each advantage by the sample's part of its rollout,
so that a rollout counts once however many samples it has.

Invariant: `tokens` is whole; mask and logprobs have `response_length` entries; `reward` is raw.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from streams.errors import CannotConvert
from streams.trainer.converters.replay import Replay, by_position
from streams.trainer.converters.rows import (
    Arrays,
    Fields,
    Missing,
    Row,
    advantage_of,
    arrays,
    group_of,
    numbered,
    refusal,
    reward_of,
    rollout_of,
)

STATUSES = {
    None: "completed",
    "completed": "completed",
    "parse_error": "completed",
    "truncated": "truncated",
    "timeout": "truncated",
}
"""Ours to theirs. A `failed` or `aborted` one may be sampled again, so what trains is neither."""

KEY = "turnstream"
"""Under which `metadata` tells what `rewards` needs, and where a sample comes from."""


def samples(
    rows: Iterable[Row],
    *,
    start: int = 0,
    weighted: bool = False,
    replay: Replay | None = None,
    missing: Missing = "mask",
) -> list[Fields]:
    """Fields for `Sample.from_dict`, one for each row; `start` is the first number given."""
    given = tuple(rows)
    groups = numbered((group_of(row.sample) for row in given), start)
    rollouts = numbered((rollout_of(row.sample) for row in given), start)
    made = []
    for index, (row, group, rollout) in enumerate(zip(given, groups, rollouts, strict=True), start):
        fields = _response(row, arrays(row, missing))
        fields |= {"group_index": group, "index": index, "rollout_id": rollout}
        fields["metadata"] = {KEY: _origin(row, weighted)}
        if replay is not None:
            experts = by_position(row.sample, replay)
            fields["rollout_routed_experts"] = experts.astype(np.int32)
        made.append(fields)
    return made


def rewards(args: Any, samples: Iterable[Any]) -> tuple[list[float], list[float]]:
    """Raw rewards and, as normalised ones, advantages; what slime and miles call."""
    del args  # theirs to hand over; ours are already computed
    raw: list[float] = []
    normalised: list[float] = []
    for sample in samples:
        origin = sample.metadata[KEY]
        if origin["advantage"] is None:
            name = origin["sample_id"]
            raise CannotConvert(
                f"sample {name}: it has no advantage; ask for them: subscribe(advantages=...)"
            )
        raw.append(sample.reward)
        normalised.append(origin["advantage"] * origin["weight"])
    return raw, normalised


def _response(row: Row, full: Arrays) -> Fields:
    sample = row.sample
    return {
        "tokens": full.tokens_T.tolist(),
        "response_length": full.response_len,
        "loss_mask": full.mask_T[full.response].astype(np.uint8).tolist(),
        "rollout_log_probs": full.logprobs_T[full.response].tolist(),
        "reward": reward_of(row),
        "weight_versions": [str(version) for version, _, _ in sample.weight_versions or ()],
        "status": _status(row),
        "remove_sample": False,
    }


def _status(row: Row) -> str:
    sample = row.sample
    if sample.end_status not in STATUSES:
        raise refusal(sample, f"a session that ended as {sample.end_status!r} does not train")
    return "truncated" if sample.truncated else STATUSES[sample.end_status]


def _origin(row: Row, weighted: bool) -> Fields:
    sample = row.sample
    return {
        "sample_id": sample.sample_id,
        "session_id": sample.session_id,
        "group_id": sample.group_id,
        "advantage": None if row.advantage is None else advantage_of(row),
        "weight": row.weight if weighted else 1.0,
    }
