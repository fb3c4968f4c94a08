"""SkyRL: `GeneratorOutput`, a dictionary of lists over the batch, responses alone.

    output = skyrl.generator_output(batch.rows, trajectory=TrajectoryID)

A rollout of several samples is what SkyRL calls step-wise: its samples are neighbours, share a
`TrajectoryID`, and only the last has `is_last_step` and the reward. From that one the advantage is
computed and laid on all; so `step_wise` has to be on in SkyRL's configuration.

Invariant: every list has an entry a row, every entry is as long as its response.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from streams.trainer.converters.replay import Replay, by_position
from streams.trainer.converters.rows import (
    Fields,
    Missing,
    Row,
    arrays,
    group_of,
    refusal,
    reward_of,
    rollout_of,
    rows_given,
)


class Trajectory(NamedTuple):
    """What stands in for SkyRL's own `TrajectoryID`."""

    instance_id: str
    repetition_id: int

    def to_string(self) -> str:
        """As SkyRL tells them apart."""
        return f"{self.instance_id}_{self.repetition_id}"


def generator_output(
    rows: Iterable[Row],
    *,
    trajectory: Callable[[str, int], Any] = Trajectory,
    replay: Replay | None = None,
    missing: Missing = "mask",
) -> Fields:
    """The rows as one output; the rows of a rollout have to be neighbours."""
    given = rows_given(rows)
    full = [arrays(row, missing) for row in given]
    last = _last_steps(given)
    rewards = [reward_of(row) for row in given]
    return {
        "prompt_token_ids": [each.tokens_T[: each.prompt_len].tolist() for each in full],
        "response_ids": [each.tokens_T[each.response].tolist() for each in full],
        "rewards": [reward if ends else 0.0 for reward, ends in zip(rewards, last, strict=True)],
        "loss_masks": [each.mask_T[each.response].astype(np.uint8).tolist() for each in full],
        "stop_reasons": ["length" if row.sample.truncated else "stop" for row in given],
        "rollout_metrics": None,
        "rollout_logprobs": [each.logprobs_T[each.response].tolist() for each in full],
        "trajectory_ids": _trajectories(given, trajectory),
        "rollout_expert_indices": None if replay is None else _experts(given, replay),
        "is_last_step": last,
    }


def _last_steps(rows: Sequence[Row]) -> list[bool]:
    rollouts = [rollout_of(row.sample) for row in rows]
    last = [*(this != following for this, following in itertools.pairwise(rollouts)), True]
    if sum(last) != len(set(rollouts)):
        seen: set[str] = set()
        for row, ends in zip(rows, last, strict=True):
            if rollout_of(row.sample) in seen:
                raise refusal(row.sample, "the samples of its rollout are not neighbours")
            if ends:
                seen.add(rollout_of(row.sample))
    return last


def _trajectories(rows: Sequence[Row], trajectory: Callable[[str, int], Any]) -> list[Any]:
    """The slot in the group; where slots are not numbered, in order of appearance."""
    seen: dict[str, dict[str, int]] = {}
    made = []
    for row in rows:
        slots = seen.setdefault(group_of(row.sample), {})
        number = slots.setdefault(rollout_of(row.sample), len(slots))
        slot = row.sample.rollout_index
        made.append(trajectory(group_of(row.sample), number if slot is None else slot))
    return made


def _experts(rows: Sequence[Row], replay: Replay) -> list[Any]:
    return [by_position(row.sample, replay).tolist() for row in rows]
