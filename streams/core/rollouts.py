"""A rollout is one session with its outcome and the samples that outcome lists; groups hold them.

    group g1   rollout s1   5 samples   reward 1      in the baseline once, whatever its samples
               rollout s2   1 sample    reward 1
               rollout s3   0 samples   reward 0      nothing to train, and still in the baseline
               rollout s4   error                     the machine's doing: outside

Invariant: samples of a session stand together or not at all, and share one reward.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Literal

import msgspec

from schemas.record import UNKNOWN_VERSION
from schemas.samples import Sample, SampleRevised, SessionClosed

Place = tuple[int, int]
"""Partition and offset."""
Ending = Literal["complete", "kept", "timeout", "overtaken", "buffer_full"]
"""Why a group waits no longer: all outcomes, the first K, or given up and by which limit."""

INFRASTRUCTURE = frozenset({"error", "interrupted", "closed", "cancelled", "expired"})
_OUTSIDE = frozenset({"rejected", "status", "core_failure", "no_reward"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One session, as a trainer takes it."""

    outcome: SessionClosed
    samples: tuple[Sample, ...] = ()
    """In `index` order with their newest rewards; none if there is nothing to train."""
    places: tuple[Place, ...] = ()
    """Where each sample stands in the log."""
    reward: float | None = None
    """The session's raw reward, the newest there is: the only basis of a baseline."""
    advantage: float | None = None
    """One for all samples. None: not asked for."""
    withheld: str | None = None
    """Why it has no samples to train; the outcome's word, or a filter's."""
    run_has_versions: bool = False
    """Whether its run has weight versions: then those that it does not give are unknown."""

    @property
    def session_id(self) -> str:
        """Which session it is."""
        return self.outcome.session_id

    @property
    def rollout_id(self) -> str:
        """What siblings share: the session's id."""
        return self.outcome.session_id

    @property
    def tokens(self) -> int:
        """What a trainer runs forward."""
        return sum(sample.tokens.size for sample in self.samples)

    @property
    def trained(self) -> int:
        """Tokens that carry loss."""
        return sum(trained_tokens(sample) for sample in self.samples)

    @property
    def oldest_version(self) -> int | None:
        """Of the weights behind its trained tokens; -1 if some are unknown; None: no versions."""
        return UNKNOWN_VERSION if self.has_unknown_version else min(self._versions(), default=None)

    @property
    def oldest_known_version(self) -> int | None:
        """As `oldest_version`, of those that are known."""
        return min(self._versions(), default=None)

    @property
    def newest_version(self) -> int | None:
        """As `oldest_known_version`."""
        return max(self._versions(), default=None)

    @property
    def has_versions(self) -> bool:
        """Whether any trained token comes with a version, known or not."""
        return any(sample.weight_versions for sample in self.samples)

    @property
    def has_unknown_version(self) -> bool:
        """Whether the weights of some trained token are unknown, in a run that has versions."""
        if not self.has_versions:
            return self.run_has_versions and bool(self.samples)
        known = sum(
            end - start
            for sample in self.samples
            for version, start, end in sample.weight_versions or ()
            if version != UNKNOWN_VERSION
        )
        return known < self.trained

    @property
    def truncated(self) -> bool:
        """Cut by a limit, as a whole or on some branch."""
        return self.outcome.end_status == "truncated" or any(s.truncated for s in self.samples)

    def without_samples(self, reason: str) -> "Rollout":
        """Still in the baseline, but nothing of it trains."""
        return changed(self, samples=(), places=(), withheld=reason)

    def revised(self, newest: Mapping[str, SampleRevised]) -> "Rollout":
        """With later rewards where they are newer than its own.

        They come sample by sample, and the session has one reward: the newest is that of all.
        """
        samples = list(self.samples)
        for at, sample in enumerate(samples):
            late = newest.get(sample.sample_id)
            if late is not None and late.revision > sample.revision:
                samples[at] = with_reward(sample, late)
        last = max(samples, key=lambda sample: sample.revision, default=None)
        if last is None:
            return self
        told = {"session_reward": last.session_reward, "reward_payload": last.reward_payload}
        return changed(
            self,
            samples=tuple(msgspec.structs.replace(sample, **told) for sample in samples),
            reward=self.reward if last.session_reward is None else last.session_reward,
        )

    def _versions(self) -> list[int]:
        return [
            version
            for sample in self.samples
            for version, start, end in sample.weight_versions or ()
            if end > start and version != UNKNOWN_VERSION
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rollouts of one prompt that wait no longer for others."""

    group_id: str
    """Of a session without a group: its own id."""
    size: int
    """Slots that were announced."""
    rollouts: tuple[Rollout, ...]
    """Those in the baseline, by the order of their outcomes."""
    ending: Ending = "complete"
    dropped: tuple[tuple[str, str], ...] = ()
    """Sessions that are not, each with the reason."""
    first: Place = (0, 0)
    """Its oldest record; a reader that is to see it again starts here."""
    last: Place = (0, 0)
    size_bytes: int = 0

    @property
    def tokens(self) -> int:
        """What a trainer runs forward."""
        return sum(rollout.tokens for rollout in self.rollouts)

    @property
    def trainable(self) -> int:
        """Rollouts with something to train."""
        return sum(bool(rollout.samples) for rollout in self.rollouts)

    def without(self, reasons: Mapping[str, str]) -> "Group":
        """The group without these sessions."""
        kept = tuple(r for r in self.rollouts if r.session_id not in reasons)
        return changed(self, rollouts=kept, dropped=(*self.dropped, *reasons.items()))


def trained_tokens(sample: Sample) -> int:
    """How many tokens of a sample carry loss; the mask decides, whatever the counts say."""
    return sum(end - start for start, end in sample.loss_mask)


def outside_baseline(outcome: SessionClosed) -> str | None:
    """Why a session tells nothing about the policy; None if it does.

    A session that lost its samples otherwise (a gap, nothing trainable) still has its reward.
    """
    if outcome.withheld in _OUTSIDE:
        return outcome.withheld
    if not outcome.accepted:
        return "rejected"
    if not outcome.sample_ids and outcome.end_status in INFRASTRUCTURE:
        return "status"
    return "no_reward" if outcome.reward is None else None


def with_reward(sample: Sample, late: SampleRevised) -> Sample:
    """The sample with a later reward; its tokens stay where they are."""
    return msgspec.structs.replace(
        sample,
        revision=late.revision,
        reward=late.reward,
        session_reward=late.session_reward,
        reward_payload=late.reward_payload,
        turn_rewards=late.turn_rewards,
    )
