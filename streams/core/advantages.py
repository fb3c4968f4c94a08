"""What a group is worth to the optimizer: who is too old, who is too long, and by how much better.

    rewards   1 (5 samples)   1 (1 sample)   0   0        baseline 0.5, over rollouts
    advantage +0.5            +0.5        -0.5 -0.5       the same on all siblings

A baseline over samples would count the first rollout five times; over the shares of an even split
(0.2 each) it would even turn its advantage negative. So the order is: whole rollouts go, then the
baseline is taken over the rewards of those that are left, one each, then siblings inherit.

Invariants: a filter takes whole rollouts, never one sibling. Staleness and failures go before the
baseline; a rollout that is too long stays in it, since being long was the policy's doing.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from streams.core.rollouts import Group, Rollout

Advantages = Literal["grpo", "mean", "leave_one_out"]
"""Reward minus the group's mean, divided by its deviation; not divided; minus the others' mean."""

UnknownVersion = Literal["stale", "train"]
"""Tokens whose weights are unknown, in a run that has versions: older than all, or of any age."""

_EPSILON = 1e-6
"""Beside the deviation, as most trainers have it: groups of nearly equal rewards stay finite."""

_REWARD_MAX = 1e38
"""Trainers compute in 32 bits: differences beyond that are none, and would stop the loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a trainer asks for."""

    max_staleness: int | None = None
    """Versions that the oldest weights of a rollout may be behind; None: any."""
    unknown_version: UnknownVersion = "stale"
    tokens_max: int | None = None
    """Of one sample; a rollout with a longer one does not train."""
    drop_truncated: bool = False
    """A rollout that a limit cut does not train."""
    drop_zero_signal: bool = False
    """A group whose rewards are all equal does not train."""
    advantages: Advantages | None = None


def judged(group: Group, version: int | None, judgement: Judgement) -> tuple[Group, Counter[str]]:
    """The group as it trains under these weights, and rollouts that do not, by reason."""
    stale = {
        rollout.session_id: "stale"
        for rollout in group.rollouts
        if is_stale(rollout, version, judgement.max_staleness, judgement.unknown_version)
    }
    group = group.without(stale)
    counts: Counter[str] = Counter(stale=len(stale))
    rollouts = list(group.rollouts)
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    assert len(rewards) == len(rollouts), "only rollouts with a reward are in the baseline"
    silent = judgement.drop_zero_signal and len(set(rewards)) <= 1
    for place, rollout in enumerate(rollouts):
        reason = "zero_signal" if silent else _overlong(rollout, judgement)
        if reason is not None and rollout.samples:
            counts[reason] += 1
            rollouts[place] = rollout.without_samples(reason)
    if judgement.advantages is not None:
        worth = advantages(rewards, judgement.advantages)
        pairs = zip(rollouts, worth, strict=True)
        rollouts = [replace(rollout, advantage=value) for rollout, value in pairs]
    return replace(group, rollouts=tuple(rollouts)), counts


def is_stale(
    rollout: Rollout, version: int | None, most: int | None, unknown: UnknownVersion = "stale"
) -> bool:
    """Whether its oldest trained token comes from weights too far back; exactly `most` is not."""
    if most is None or version is None:
        return False
    if unknown == "stale" and rollout.has_unknown_version:
        return True
    oldest = rollout.oldest_known_version
    return oldest is not None and version - oldest > most


def advantages(rewards: Sequence[float], kind: Advantages) -> list[float]:
    """One for each rollout; of one alone nothing can be said, so it is 0."""
    count = len(rewards)
    if count <= 1:
        return [0.0] * count
    rewards = [min(max(reward, -_REWARD_MAX), _REWARD_MAX) for reward in rewards]
    total = math.fsum(rewards)
    if kind == "leave_one_out":
        return [reward - (total - reward) / (count - 1) for reward in rewards]
    mean = total / count
    centred = [reward - mean for reward in rewards]
    if kind == "mean":
        return centred
    deviation = math.sqrt(math.fsum(value * value for value in centred) / (count - 1))
    return [value / (deviation + _EPSILON) for value in centred]


def _overlong(rollout: Rollout, judgement: Judgement) -> str | None:
    most = judgement.tokens_max
    if most is not None and any(sample.tokens.size > most for sample in rollout.samples):
        return "overlong"
    return "truncated" if judgement.drop_truncated and rollout.truncated else None
