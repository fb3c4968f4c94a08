"""verl: a padded batch as `DataProto` holds it.

    tensors, non_tensors = verl.data_proto(batch.rows, Shape(prompt=4, response=5))
    DataProto.from_dict(tensors=tensors, non_tensors=non_tensors)

    prompts         pad pad  p   p         padded on the left
    responses        r   r   r  pad  pad   padded on the right
    response_mask    1   0   1   0    0    and `rollout_log_probs`, 0.0 where it is 0
    position_ids     0   0   0   1   2   3   4   4   4
    rm_scores        0   0   R   0    0    the session's reward on the last token of the response

verl's own baseline counts rows: a rollout of five samples would stand in its group five times.
With advantages in the rows, `advantages` and `returns` are there, to be used instead.

Invariant: nothing is cut. What is longer than the batch is refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.samples import Sample
from streams.trainer.converters.replay import Replay, by_position
from streams.trainer.converters.rows import (
    Arrays,
    Missing,
    Row,
    advantage_of,
    arrays,
    group_of,
    refusal,
    reward_of,
    rollout_of,
    rows_given,
    versions_of,
)
from streams.trainer.converters.tensors import Tensor, tensors

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of verl's configuration: `data.max_prompt_length`, `data.max_response_length`."""

    prompt: int
    response: int
    pad_id: int = 0


def data_proto(
    rows: Iterable[Row],
    shape: Shape,
    *,
    replay: Replay | None = None,
    missing: Missing = "mask",
) -> tuple[dict[str, Tensor], Columns]:
    """Tensors and non-tensors of a `DataProto`."""
    given = rows_given(rows)
    columns = padded(given, shape, missing=missing)
    if replay is not None:
        columns["routed_experts"] = experts(given, shape, replay)
    return tensors(columns), non_tensors(given)


def padded(rows: Iterable[Row], shape: Shape, *, missing: Missing = "mask") -> Columns:
    """The batch's tensors, as arrays that may be written."""
    given = rows_given(rows)
    columns = _empty(len(given), shape)
    for at, row in enumerate(given):
        full = arrays(row, missing)
        _check_fits(row.sample, full, shape)
        _fill({name: column[at] for name, column in columns.items()}, row, full, shape)
    columns["prompts"] = columns["input_ids"][:, : shape.prompt]
    columns["responses"] = columns["input_ids"][:, shape.prompt :]
    if any(row.advantage is not None for row in given):
        advantages = np.array([advantage_of(row) for row in given], np.float32)
        columns["advantages"] = columns["response_mask"] * advantages[:, None]
        columns["returns"] = columns["advantages"].copy()
    return columns


def non_tensors(rows: Iterable[Row]) -> Columns:
    """What travels beside the tensors; `uid` is what verl groups by."""
    samples = [row.sample for row in rows]
    versions = [versions_of(sample) or (None, None) for sample in samples]
    return {
        "uid": _objects([group_of(sample) for sample in samples]),
        "rollout_id": _objects([rollout_of(sample) for sample in samples]),
        "sample_id": _objects([sample.sample_id for sample in samples]),
        "min_global_steps": _objects([oldest for oldest, _ in versions]),
        "max_global_steps": _objects([newest for _, newest in versions]),
        "__num_turns__": np.array([len(sample.turns) for sample in samples], np.int32),
    }


def _empty(count: int, shape: Shape) -> Columns:
    whole, response = (count, shape.prompt + shape.response), (count, shape.response)
    return {
        "input_ids": np.full(whole, shape.pad_id, np.int64),
        "attention_mask": np.zeros(whole, np.int64),
        "position_ids": np.zeros(whole, np.int64),
        "response_mask": np.zeros(response, np.int64),
        "rollout_log_probs": np.zeros(response, np.float32),
        "rm_scores": np.zeros(response, np.float32),
    }


def _fill(line: Columns, row: Row, full: Arrays, shape: Shape) -> None:
    """One row, into its line of every column."""
    start = shape.prompt - full.prompt_len
    end = start + len(full.tokens_T)
    line["input_ids"][start:end] = full.tokens_T
    line["attention_mask"][start:end] = 1
    line["position_ids"][start:end] = np.arange(len(full.tokens_T))
    line["position_ids"][end:] = len(full.tokens_T) - 1
    line["response_mask"][: full.response_len] = full.mask_T[full.response]
    line["rollout_log_probs"][: full.response_len] = full.logprobs_T[full.response]
    line["rm_scores"][full.response_len - 1] = reward_of(row)


def _check_fits(sample: Sample, full: Arrays, shape: Shape) -> None:
    if full.prompt_len > shape.prompt or full.response_len > shape.response:
        what = f"a prompt of {full.prompt_len} and a response of {full.response_len}"
        raise refusal(sample, f"{what} do not fit into {shape.prompt} and {shape.response}")


def experts(rows: Iterable[Row], shape: Shape, replay: Replay) -> npt.NDArray[np.int16]:
    """By position, padded as `input_ids` is; zeros where no pass read anything."""
    made = []
    for row in rows:
        read = by_position(row.sample, replay)
        start = shape.prompt - row.sample.prompt_len
        line = np.zeros((shape.prompt + shape.response, *read.shape[1:]), np.int16)
        line[start : start + len(read)] = read
        made.append(line)
    return np.stack(made)


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    made = np.empty(len(values), object)
    made[:] = values
    return made
