"""Which sessions of a step are shown, where only so many may be.

The ids decide, not who came first: of a step's sessions those whose ids have the least digests are
taken, until their branches fill the cap. So a step is held until it is taken for whole: nothing
of it came for a while, or too many younger ones are held. Sessions that name no step are chosen
among those of one such while.

Invariant: however the sessions of a held step arrive, the same are chosen; of one step and split
never more than the cap, those that were shown before a restart included.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from schemas.traces import Trace
from streams.log.interface import Position
from streams.sinks.conversations import Conversation, branches_of
from streams.sinks.statistics import split_of

STEPS_HELD_MAX = 16
_COUNTED_MAX = 10_000
"""Steps whose count is remembered."""


class Step(NamedTuple):
    """What a cap is for."""

    run_id: str | None
    step: int | None
    split: str


class Shown(NamedTuple):
    """One branch of one session; shown once."""

    session_id: str
    branch: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A conversation that was chosen."""

    trace: Trace
    shown: Shown
    branches: int
    conversation: Conversation


@dataclass(slots=True)
class _Held:
    since_s: float
    heard_s: float
    sessions: dict[str, Trace] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    """By partition: the first position that this step needs."""


def step_of(trace: Trace) -> Step:
    """Whose cap counts for it."""
    return Step(trace.run_id, trace.step, split_of(trace))


class Choosing:
    """Holds steps until their choice is made."""

    def __init__(self, most: int, hold_s: float, shown: Mapping[Shown, Step] | None = None) -> None:
        """`most` branches a step, none if 0 or less; `shown` were shown in an earlier life."""
        self.most = most
        self.counts: Counter[str] = Counter()
        self._hold_s = hold_s
        self._shown: OrderedDict[Shown, None] = OrderedDict.fromkeys(shown or ())
        self._filled: OrderedDict[Step, int] = OrderedDict(Counter((shown or {}).values()))
        self._held: OrderedDict[Step, _Held] = OrderedDict()

    @property
    def held(self) -> int:
        """Sessions among which is still to be chosen."""
        return sum(len(held.sessions) for held in self._held.values())

    def offer(self, trace: Trace, position: Position, now_s: float) -> None:
        """One session; twice is once."""
        step = step_of(trace)
        if self._room(step) <= 0:
            self.counts["over_cap"] += 1
            return
        held = self._held.setdefault(step, _Held(now_s, now_s))
        held.heard_s = now_s
        held.sessions[trace.session_id] = trace
        first = held.first.get(position.partition, position.offset)
        held.first[position.partition] = min(first, position.offset)
        if len(held.sessions) > self.most:
            # Each has a branch at least, so nobody behind the first so many can be chosen.
            del held.sessions[max(held.sessions, key=_digest)]
            self.counts["over_cap"] += 1

    def ripe(self, now_s: float, *, everything: bool = False) -> list[tuple[Step, list[Branch]]]:
        """The steps that are whole, each with what was chosen; they are held no longer."""
        crowd = len(self._held) - STEPS_HELD_MAX
        over = [
            step
            for age, (step, held) in enumerate(self._held.items())
            if everything or age < crowd or now_s - self._heard_s(step, held) >= self._hold_s
        ]
        return [(step, chosen) for step in over if (chosen := self._chosen(step))]

    def first_held(self) -> dict[int, int]:
        """By partition, the first position that a held step needs."""
        first: dict[int, int] = {}
        for held in self._held.values():
            for partition, offset in held.first.items():
                first[partition] = min(offset, first.get(partition, offset))
        return first

    @staticmethod
    def _heard_s(step: Step, held: _Held) -> float:
        return held.since_s if step.step is None else held.heard_s

    def _room(self, step: Step) -> int:
        return self.most if step.step is None else self.most - self._filled.get(step, 0)

    def _chosen(self, step: Step) -> list[Branch]:
        sessions = self._held.pop(step).sessions
        room, chosen = self._room(step), list[Branch]()
        for session_id in sorted(sessions, key=_digest):
            try:
                found = list(_new(sessions[session_id], self._shown))
            except ValueError:  # somebody else's trace, which must not cost the others
                self.counts["unwritable"] += 1
                continue
            self.counts["over_cap"] += len(found) > room
            chosen += found[:room]
            room -= len(found[:room])
        for branch in chosen:
            self._shown[branch.shown] = None
        self._filled[step] = self._filled.get(step, 0) + len(chosen)
        while len(self._filled) > _COUNTED_MAX:
            self._filled.popitem(last=False)
        while len(self._shown) > _COUNTED_MAX * max(1, self.most):
            self._shown.popitem(last=False)
        return chosen


def _new(trace: Trace, shown: Mapping[Shown, None]) -> Iterable[Branch]:
    branches = branches_of(trace)
    for number, conversation in enumerate(branches):
        name = Shown(trace.session_id, number)
        if name not in shown:
            yield Branch(trace, name, len(branches), conversation)


def _digest(session_id: str) -> bytes:
    return blake2b(session_id.encode(), digest_size=16, person=b"turnstream-sink").digest()
