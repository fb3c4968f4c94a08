"""A group that still waits: samples without their outcome, slots with one.

    waiting   s5: sample 0, sample 1         their outcome is to come
    slots     0: s1   1: s4 (attempt 2)      filled, by the highest attempt so far

Invariant: a session is in `waiting`, or closed; its samples are released by its outcome alone.
"""

from dataclasses import dataclass, field

from schemas.samples import Sample, SessionClosed
from streams.core.rollouts import Place, Rollout

Slot = int | str


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
    open_bytes_max: int = 1 << 30
    """Of groups that are not complete; beyond it the oldest of several is given up."""
    overtaken_max: int = 5_000
    """So many groups may end before one that began earlier; then it is given up."""
    fences: tuple[tuple[int, int], ...] = ()
    """(epoch, version): samples of a lower epoch from newer weights than these never were."""


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
