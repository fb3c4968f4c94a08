"""A group that still waits: samples without their outcome, slots with one.

    waiting   s5: sample 0, sample 1         their outcome is to come
    slots     0: s1   1: s4 (attempt 2)      filled, by the highest attempt so far

Invariant: a session is in `waiting`, or closed; its samples are released by its outcome alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.samples import Sample, SessionClosed
from streams.core.advantages import UnknownVersion
from streams.core.rollouts import Place, Rollout, outside_baseline

Slot = int | str


@dataclass(frozen=True, slots=True)
class Fence:
    """A run was restored: newer weights of its earlier lives are gone, and what they sampled."""

    epoch: int
    """Of the life that began."""
    version: int
    """Of the weights it began with."""
    ends: Mapping[int, int]
    """Where the log ended then, by partition: for sessions that do not name their epoch."""

    def bars(
        self, outcome: SessionClosed, newest: int | None, place: Place, *, unknown: bool = False
    ) -> bool:
        """Whether a session comes from weights that never were, by its newest version.

        With `unknown`, some of its versions are not known, and may be newer than those that are.
        """
        if not unknown and (newest is None or newest <= self.version):
            return False
        if outcome.run_epoch is not None:
            return outcome.run_epoch < self.epoch
        return place[1] < self.ends.get(place[0], 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """What a trainer asks for."""

    split: str = "train"
    run_id: str | None = None
    """None: sessions of every run."""
    timeout_ms: int | None = None
    """From a group's first record; None: groups wait for ever."""
    partial: int | None = None
    """A group that is given up is delivered if it has this many rollouts; None: never."""
    keep_first: int | None = None
    """So many rollouts that count end a group; None: all slots."""
    default_size: int | None = None
    """For groups whose sessions name no `group_size`."""
    size_needed: bool = False
    """A group whose size nobody names is a mistake, and not one that ends in another way."""
    open_bytes_max: int = 1 << 30
    """Of groups that are not complete; beyond it the oldest of several is given up."""
    overtaken_max: int = 5_000
    """So many groups may end before one that began earlier; then it is given up."""
    fences: tuple[Fence, ...] = ()
    unknown_version: UnknownVersion = "stale"


@dataclass(slots=True)
class Filled:
    """A slot with an outcome."""

    attempt: int
    rollout: Rollout
    dropped: str | None
    """Why the rollout does not count; None if it does."""


@dataclass(slots=True)
class OpenGroup:
    """A group that still waits."""

    group_id: str
    first: Place
    begun_ms: int
    closed_before: int
    """How many groups had ended when it began."""
    last: Place = (0, 0)
    size: int | None = None
    size_bytes: int = 0
    waiting: dict[str, dict[str, tuple[Sample, Place]]] = field(default_factory=dict)
    """Samples by session, until its outcome."""
    closed: set[str] = field(default_factory=set)
    slots: dict[Slot, Filled] = field(default_factory=dict)
    dropped: list[tuple[str, str]] = field(default_factory=list)

    def counting(self) -> int:
        """Slots whose rollout counts."""
        return sum(filled.dropped is None for filled in self.slots.values())

    def wait(self, sample: Sample, place: Place, size_bytes: int) -> bool:
        """Keep a sample until its outcome; False if it was here before."""
        waiting = self.waiting.setdefault(sample.session_id, {})
        if sample.session_id in self.closed or sample.sample_id in waiting:
            return False
        waiting[sample.sample_id] = (sample, place)
        self.size_bytes += size_bytes
        return True

    def close(self, outcome: SessionClosed, place: Place, rules: GroupRules) -> list[str]:
        """Fill the session's slot, by the rules for attempts; reasons to count, if there are."""
        session_id = outcome.session_id
        if session_id in self.closed:
            return ["duplicate"]
        self.closed.add(session_id)
        waiting = self.waiting.pop(session_id, {})
        slot: Slot = session_id if outcome.rollout_index is None else outcome.rollout_index
        attempt, before = outcome.attempt or 0, self.slots.get(slot)
        if outcome.will_retry or (before is not None and before.attempt >= attempt):
            reason = "will_retry" if outcome.will_retry else "superseded"
            self.dropped.append((session_id, reason))
            return [reason]
        counted: list[str] = []
        if before is not None:
            counted += ["superseded"] if before.dropped is None else []
            self.dropped.append((before.rollout.session_id, before.dropped or "superseded"))
            del self.slots[slot]  # its successor stands where its outcome came
        rollout = rollout_of(outcome, waiting)
        left_out = _left_out(rollout, place, rules)
        if left_out is not None:
            counted.append(left_out)
            rollout = rollout.without_samples(left_out)
        self.slots[slot] = Filled(attempt, rollout, left_out)
        return counted


def _left_out(rollout: Rollout, place: Place, rules: GroupRules) -> str | None:
    """Why a rollout does not count."""
    outcome = rollout.outcome
    if len(rollout.samples) < len(outcome.sample_ids):
        return "samples_missing"
    if (reason := outside_baseline(outcome)) is not None:
        return reason
    newest = rollout.newest_version
    unknown = rules.unknown_version == "stale" and rollout.has_unknown_version
    barred = any(fence.bars(outcome, newest, place, unknown=unknown) for fence in rules.fences)
    return "fenced" if barred else None


def rollout_of(outcome: SessionClosed, waiting: dict[str, tuple[Sample, Place]]) -> Rollout:
    """The session with the samples its outcome lists, and no others."""
    listed = [waiting[name] for name in outcome.sample_ids if name in waiting]
    return Rollout(
        outcome=outcome,
        samples=tuple(sample for sample, _ in listed),
        places=tuple(place for _, place in listed),
        reward=outcome.reward,
        withheld=outcome.withheld,
    )
