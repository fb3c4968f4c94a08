"""The ways to get from calls to samples that are measured side by side.

    core        decoded events, every check of the contract, then the core
    core_bytes  wire bytes, decoded and checked, then the core
    baseline    decoded requests with whole prompts, then the plain rules

Invariant: `prepare` is never part of a measurement, `run` always is and nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks import baseline
from benchmarks.published import events_of
from benchmarks.workloads import Call
from schemas.checks import check
from schemas.codec import from_msgpack, to_msgpack
from schemas.events import Event
from schemas.samples import Sample, SessionClosed
from streams.core.partition import Partition
from streams.core.policy import PROFILES


class Session:
    """One session of a workload in every form a contender asks for."""

    def __init__(self, calls: Sequence[Call], session_id: str) -> None:
        self.calls = calls
        self.session_id = session_id

    @cached_property
    def events(self) -> list[Event]:
        return events_of(self.calls, self.session_id)

    @cached_property
    def wire(self) -> list[bytes]:
        return [to_msgpack(event) for event in self.events]

    def requests(self) -> list[baseline.Request]:
        """Fresh each time: they are much too large to keep."""
        return [baseline.decoded(call) for call in self.calls]


@dataclass(frozen=True, slots=True)
class Contender:
    """A name, what it is given, and what it does with it."""

    name: str
    prepare: Callable[[Session], Any]
    run: Callable[[Any], Any]
    """Returns what it holds at the end, so that freeing it is not measured."""


@dataclass(slots=True)
class Linearized:
    """What the core holds and gave."""

    partition: Partition
    samples: tuple[Sample, ...]
    outcome: SessionClosed


def core(profile: str) -> Contender:
    policy = PROFILES[profile]

    def run(events: Sequence[Event]) -> Linearized:
        partition = Partition(forced_policy=policy)
        for position, event in enumerate(events, 1):
            check(event)
            effects = partition.feed(event, position)
            assert not effects.refusals, effects.refusals
        assert effects.outcome is not None, "the last event ends the session"
        return Linearized(partition, tuple(effects.samples), effects.outcome)

    return Contender(f"core_{profile}", lambda session: session.events, run)


def core_bytes(profile: str) -> Contender:
    policy = PROFILES[profile]

    def run(wire: Sequence[bytes]) -> Linearized:
        partition = Partition(forced_policy=policy)
        for position, data in enumerate(wire, 1):
            event = from_msgpack(data)
            assert isinstance(event, Event)
            effects = partition.feed(event, position)
            assert not effects.refusals, effects.refusals
        assert effects.outcome is not None, "the last event ends the session"
        return Linearized(partition, tuple(effects.samples), effects.outcome)

    return Contender(f"core_{profile}_bytes", lambda session: session.wire, run)


def plain() -> Contender:
    def run(requests: Sequence[baseline.Request]) -> tuple[baseline.Session, list[Any]]:
        session = baseline.Session()
        for request in requests:
            session.record(request)
        return session, session.samples()

    return Contender("baseline", lambda session: session.requests(), run)
