"""AReaL: a dictionary of tensors of full length, with a first dimension of one.

    trajectory = concat_padded_tensors([areal.trajectory(row) for row in batch.rows])

Invariant: `versions` and `turn_ids` are -1 wherever the mask is 0.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from streams.trainer.converters.rows import Missing, Row, arrays, refusal, reward_of
from streams.trainer.converters.tensors import Tensor, tensors, wide


def trajectory(row: Row, *, missing: Missing = "mask") -> dict[str, Tensor]:
    """The sample as `[1, tokens]` tensors, its session's reward as `[1]`."""
    return tensors(trajectory_arrays(row, missing=missing))


def trajectory_arrays(row: Row, *, missing: Missing = "mask") -> dict[str, npt.NDArray[Any]]:
    """What `trajectory` gives, before torch."""
    full = arrays(row, missing)
    sample = row.sample
    versions_T = np.full(len(full.tokens_T), -1, np.int64)
    for version, start, end in sample.weight_versions or ():
        versions_T[start:end] = version
    turns_T = np.full(len(full.tokens_T), -1, np.int64)
    for number, turn in enumerate(sample.turns):
        turns_T[turn.start : turn.end] = number
    if (versions_T[full.mask_T] < 0).any():
        raise refusal(
            sample, "the weights that sampled some of it are unknown, and -1 means not sampled"
        )
    versions_T[~full.mask_T] = turns_T[~full.mask_T] = -1
    return {
        "input_ids": wide(full.tokens_T)[None],
        "loss_mask": full.mask_T.astype(np.int64)[None],
        "logprobs": full.logprobs_T[None],
        "versions": versions_T[None],
        "turn_ids": turns_T[None],
        "attention_mask": np.ones((1, len(full.tokens_T)), np.bool_),
        "rewards": np.array([reward_of(row)], np.float32),
    }
