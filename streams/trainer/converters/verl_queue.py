"""verl over TransferQueue: one unpadded record a sample, with its key and its tag.

    records = verl_queue.records(batch.rows, global_steps=step)
    tq.kv_batch_put(
        keys=[record.key for record in records],
        fields=list_of_dict_to_tensordict([record.fields for record in records]),
        tags=[record.tag for record in records],
        partition_id="train",
    )

A key is `uid_session_index`, and verl takes `uid` to be what stands before the first `_`. Ids of
ours may have one, so it is written as `%5F` (and `%` as `%25`) in keys and in `uid`.

Invariant: siblings differ in the last part of their key alone; different ids give different keys.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from schemas.samples import Sample
from streams.trainer.converters.replay import Replay, by_position, to_whole
from streams.trainer.converters.rows import (
    Fields,
    Missing,
    Row,
    arrays,
    group_of,
    reward_of,
    rollout_of,
    versions_of,
)
from streams.trainer.converters.tensors import tensors, wide


@dataclass(frozen=True, slots=True)
class Record:
    """What one put takes."""

    key: str
    fields: Fields
    tag: Fields


def records(
    rows: Iterable[Row],
    *,
    global_steps: int,
    replay: Replay | None = None,
    missing: Missing = "mask",
) -> list[Record]:
    """A record for each row; `global_steps` is the step that they are for."""
    made = []
    for row in rows:
        fields = columns(row, replay=replay, missing=missing)
        made.append(
            Record(
                key=key_of(row.sample),
                fields=tensors(fields) | _beside(row.sample),
                tag=tag_of(row.sample, global_steps),
            )
        )
    return made


def columns(row: Row, *, replay: Replay | None = None, missing: Missing = "mask") -> Fields:
    """The record's tensors, as arrays."""
    full = arrays(row, missing)
    tokens_T = wide(full.tokens_T)
    mask_R = full.mask_T[full.response].astype(np.int64)
    scores_R = np.zeros(full.response_len, np.float32)
    scores_R[-1] = reward_of(row)
    made: Fields = {
        "prompts": tokens_T[: full.prompt_len],
        "responses": tokens_T[full.response],
        "input_ids": tokens_T,
        "position_ids": np.arange(len(tokens_T)),
        "response_mask": mask_R,
        "loss_mask": mask_R,
        "rollout_log_probs": full.logprobs_T[full.response],
        "rm_scores": scores_R,
    }
    if replay is not None:
        made["routed_experts"] = to_whole(by_position(row.sample, replay)).astype(np.int16)
    return made


def key_of(sample: Sample) -> str:
    """`uid_session_index`; the session is its slot in the group, where it has one."""
    slot = sample.rollout_index
    session = _quoted(rollout_of(sample)) if slot is None else str(slot)
    return f"{_quoted(group_of(sample))}_{session}_{sample.index}"


def tag_of(sample: Sample, global_steps: int) -> Fields:
    """What verl's buffer sees of the record before it reads it."""
    oldest, newest = versions_of(sample) or (None, None)
    return {
        "status": "success",
        "prompt_len": sample.prompt_len,
        "response_len": sample.response_len,
        "seq_len": len(sample.tokens),
        "global_steps": global_steps,
        "min_global_steps": oldest,
        "max_global_steps": newest,
    }


def _beside(sample: Sample) -> Fields:
    return {
        "uid": _quoted(group_of(sample)),
        "sample_id": sample.sample_id,
        "num_turns": len(sample.turns),
        "multi_modal_inputs": {},
    }


def _quoted(name: str) -> str:
    return name.replace("%", "%25").replace("_", "%5F")
