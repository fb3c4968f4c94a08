"""Atropos: `ScoredData`, one object a group, with fill values of its own.

    requests.post(f"{server}/scored_data", json=atropos.scored_data(group_rows, group_size=8))

    masks                 -100 outside, the token's own id inside
    inference_logprobs    1.0 outside, which no logprob can be

Atropos holds back a group whose number of rows is not the registered size until others fill it up,
and its trainer takes one object for one group. So the number is checked here; a group with a forked
rollout has more rows than rollouts and needs an environment registered for that many.

Invariant: one object holds one group.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from streams.trainer.converters.rows import (
    Fields,
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

UNTRAINED_ID = -100
UNTRAINED_LOGPROB = np.float32(1.0)


def scored_data(
    rows: Iterable[Row],
    *,
    group_size: int,
    env_id: int | None = None,
    missing: Missing = "mask",
) -> Fields:
    """A group's rows; `group_size` is the one that the environment was registered with."""
    given = rows_given(rows)
    _check(given, group_size)
    full = [arrays(row, missing) for row in given]
    made: Fields = {
        "tokens": [each.tokens_T.tolist() for each in full],
        "masks": [np.where(each.mask_T, each.tokens_T, UNTRAINED_ID).tolist() for each in full],
        "scores": [reward_of(row) for row in given],
        "inference_logprobs": [
            np.where(each.mask_T, each.logprobs_T, UNTRAINED_LOGPROB).tolist() for each in full
        ],
        "overrides": [{"rollout_id": rollout_of(row.sample)} for row in given],
        "generation_params": {"weight_versions": [versions_of(row.sample) for row in given]},
        "env_id": env_id,
    }
    if any(row.advantage is not None for row in given):
        made["advantages"] = [
            (each.mask_T * advantage_of(row)).tolist()
            for row, each in zip(given, full, strict=True)
        ]
    return made


def _check(rows: Sequence[Row], group_size: int) -> None:
    first = group_of(rows[0].sample)
    for row in rows:
        if group_of(row.sample) != first:
            raise refusal(row.sample, f"it is not of group {first}, and an object holds one group")
    if len(rows) != group_size:
        what = f"group {first} has {len(rows)} samples"
        raise refusal(rows[0].sample, f"{what}, its environment is registered for {group_size}")
