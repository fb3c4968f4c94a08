"""Each framework's form, read as that framework reads it: which tokens train, with which logprob.

Written against the frameworks' conventions: index, shift and fill are undone here by other means
than they were done by.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from streams.trainer.converters import (
    areal,
    atropos,
    padded,
    prime_rl,
    skyrl,
    slime,
    tinker,
    trl,
    verl,
    verl_queue,
)
from tests.trainer.converters.given import Given

Trained = list[tuple[int, int, float]]
"""Position, token and logprob of what trains, of one row."""


def by_slime(rows: Sequence[Given]) -> list[Trained]:
    return [
        _response(each["tokens"], each["loss_mask"], each["rollout_log_probs"])
        for each in slime.samples(rows)
    ]


def by_verl(rows: Sequence[Given]) -> list[Trained]:
    shape = verl.Shape(prompt=40, response=50)
    found = []
    for at in range(len(rows)):
        line = {name: column[at].tolist() for name, column in verl.padded(rows, shape).items()}
        real = [place for place, seen in enumerate(line["attention_mask"]) if seen]
        found.append(
            [
                (line["position_ids"][40 + place], line["responses"][place], logprob)
                for place, (mask, logprob) in enumerate(
                    zip(line["response_mask"], line["rollout_log_probs"], strict=True)
                )
                if mask and 40 + place in real
            ]
        )
    return found


def by_verl_queue(rows: Sequence[Given]) -> list[Trained]:
    columns = [verl_queue.columns(row) for row in rows]
    return [
        _response(each["input_ids"], each["loss_mask"], each["rollout_log_probs"])
        for each in columns
    ]


def by_skyrl(rows: Sequence[Given]) -> list[Trained]:
    output = skyrl.generator_output(rows)
    lists = (output[name] for name in ("prompt_token_ids", "response_ids", "loss_masks"))
    return [
        _response(prompt + response, masks, logprobs)
        for prompt, response, masks, logprobs in zip(
            *lists, output["rollout_logprobs"], strict=True
        )
    ]


def by_prime_rl(rows: Sequence[Given]) -> list[Trained]:
    return [
        _full(each["token_ids"], each["mask"], each["logprobs"])
        for each in prime_rl.samples(rows, env_name="any")
    ]


def by_trl(rows: Sequence[Given]) -> list[Trained]:
    return [
        _full(each["input_ids"], each["completion_mask"], each["old_log_probs"])
        for each in trl.samples(rows)
    ]


def by_areal(rows: Sequence[Given]) -> list[Trained]:
    columns = [areal.trajectory_arrays(row) for row in rows]
    return [
        _full(each["input_ids"][0], each["loss_mask"][0], each["logprobs"][0]) for each in columns
    ]


def by_tinker(rows: Sequence[Given]) -> list[Trained]:
    """What stands at a place is of the token after it; a zero advantage trains nothing."""
    found = []
    for row in rows:
        inputs = tinker.datum(row)["loss_fn_inputs"]
        shifted = _full(inputs["target_tokens"], inputs["advantages"], inputs["logprobs"])
        found.append([(place + 1, token, logprob) for place, token, logprob in shifted])
    return found


def by_atropos(rows: Sequence[Given]) -> list[Trained]:
    data = atropos.scored_data(rows, group_size=len(rows))
    found = []
    for tokens, masks, logprobs in zip(
        data["tokens"], data["masks"], data["inference_logprobs"], strict=True
    ):
        trained = [mask != -100 for mask in masks]
        assert [mask for mask in masks if mask != -100] == [
            token for token, trains in zip(tokens, trained, strict=True) if trains
        ]
        assert all(
            (logprob == 1.0) != trains for logprob, trains in zip(logprobs, trained, strict=True)
        )
        found.append(_full(tokens, trained, logprobs))
    return found


def by_padded(rows: Sequence[Given]) -> list[Trained]:
    columns = padded.padded_arrays(rows)
    return [
        _full(*(columns[name][at] for name in ("input_ids", "loss_mask", "logprobs")))
        for at in range(len(rows))
    ]


def by_packed(rows: Sequence[Given]) -> list[Trained]:
    columns = padded.packed_arrays(rows)
    seams = columns["cu_seqlens"].tolist()
    return [
        _full(*(columns[name][0, start:end] for name in ("input_ids", "loss_mask", "logprobs")))
        for start, end in itertools.pairwise(seams)
    ]


READERS: dict[str, Callable[[Sequence[Given]], list[Trained]]] = {
    "slime": by_slime,
    "verl": by_verl,
    "verl_queue": by_verl_queue,
    "skyrl": by_skyrl,
    "prime_rl": by_prime_rl,
    "trl": by_trl,
    "areal": by_areal,
    "tinker": by_tinker,
    "atropos": by_atropos,
    "padded": by_padded,
    "packed": by_packed,
}


def _full(tokens: Any, mask: Any, logprobs: Any) -> Trained:
    columns = enumerate(zip(tokens, mask, logprobs, strict=True))
    return [
        (place, int(token), float(logprob)) for place, (token, trains, logprob) in columns if trains
    ]


def _response(tokens: Any, mask: Any, logprobs: Any) -> Trained:
    """Mask and logprobs are of the end of the tokens."""
    prompt = len(tokens) - len(mask)
    return [
        (prompt + place, token, logprob)
        for place, token, logprob in _full(tokens[prompt:], mask, logprobs)
    ]
