"""TRL's asynchronous GRPO: `RolloutSample`, numpy arrays of full length.

    queue.put(RolloutSample(**fields)) for fields in trl.samples(batch.rows)

`model_version` is the oldest of the sample's, -1 if some are unknown: TRL drops by how far it lies
behind. The messages are for its logs alone; a sample has none.

Invariant: `input_ids` and `old_log_probs` have the dtypes that TRL's own worker gives them.
"""

from collections.abc import Iterable

import numpy as np

from streams.trainer.converters.rows import (
    Fields,
    Missing,
    Row,
    advantage_of,
    arrays,
    group_of,
    numbered,
    refusal,
    reward_of,
    versions_of,
)
from streams.trainer.converters.tensors import wide


def samples(rows: Iterable[Row], *, start: int = 0, missing: Missing = "mask") -> list[Fields]:
    """Arguments of `RolloutSample`; `start` is the number of the first group."""
    given = tuple(rows)
    groups = numbered((group_of(row.sample) for row in given), start)
    return [_sample(row, group, missing) for row, group in zip(given, groups, strict=True)]


def _sample(row: Row, group: int, missing: Missing) -> Fields:
    full = arrays(row, missing)
    versions = versions_of(row.sample)
    if versions is None:
        raise refusal(row.sample, "nobody said which weights sampled it, and TRL drops by that")
    return {
        "prompt": [],
        "completion": [],
        "input_ids": wide(full.tokens_T),
        "completion_mask": full.mask_T.astype(np.int64),
        "old_log_probs": full.logprobs_T,
        "advantage": advantage_of(row),
        "model_version": versions[0],
        "group_id": group,
        "metrics": {"reward": reward_of(row)},
    }
