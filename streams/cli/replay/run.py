"""Events through the pure core under one set of rules, and what comes of it in numbers.

Invariant: what a run gives is what the processor gives for the same log under these rules; only
open sessions are held in memory.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from schemas.bad_record import BadRecord
from schemas.events import Purge
from streams.cli.replay.closed import ClosedSessions, Given
from streams.cli.replay.source import Arrived
from streams.core.effects import Effects
from streams.core.partition import Partition
from streams.core.rewards import share
from streams.core.state import ClosedSession, Rules


@dataclass(slots=True)
class Totals:
    """Over all sessions of a run."""

    sessions: int = 0
    samples: int = 0
    tokens: int = 0
    generated: int = 0
    trained: int = 0
    untrained: Counter[str] = field(default_factory=Counter)
    """By reason."""
    reward: float = 0.0
    """Over all samples, as of their last revision."""
    refused: int = 0
    """Events that could not be used."""
    still_open: int = 0
    """Sessions that had not closed at the end; they are in no other number."""


class Run:
    """One pass; `number` tells it apart where closed sessions are kept."""

    def __init__(self, number: int, rules: Rules, closed: ClosedSessions) -> None:
        """Nothing is known of any session."""
        self._number = number
        self._rules = rules
        self._closed = closed
        self._partitions: dict[int, Partition] = {}
        self.totals = Totals()

    def feed(self, arrived: Arrived) -> tuple[Effects, str]:
        """What follows from one event, and the key under which its records are sent."""
        partition = self._partitions.get(arrived.partition)
        if partition is None:
            partition = self._partitions[arrived.partition] = Partition(rules=self._rules)
        event, key = arrived.event, ""
        if isinstance(event, BadRecord):
            effects = partition.refuse(event, arrived.position)
        elif isinstance(event, Purge):
            effects = self._purge(partition, arrived)
        else:
            effects, key = self._apply(partition, arrived, event.session_id)
        self.totals.refused += len(effects.refusals)
        return effects, key

    def finish(self) -> Iterator[tuple[Effects, str]]:
        """Close what is still open, as the end of a file does."""
        for number, partition in self._partitions.items():
            for effects in partition.finish():
                assert effects.marker is not None, "finishing closes"
                self._close(number, ClosedSession.of(effects.marker), effects)
                self.totals.refused += len(effects.refusals)
                yield effects, effects.marker.key

    def leave_open(self) -> None:
        """Count what is still open instead."""
        self.totals.still_open = sum(len(p.sessions) for p in self._partitions.values())

    def _purge(self, partition: Partition, arrived: Arrived) -> Effects:
        assert isinstance(arrived.event, Purge)
        floor = partition.floor
        effects = partition.feed(arrived.event, arrived.position)
        if partition.floor > floor:
            self._closed.purge(self._number, arrived.partition, partition.floor)
        return effects

    def _apply(
        self, partition: Partition, arrived: Arrived, session_id: str
    ) -> tuple[Effects, str]:
        found = None
        if session_id not in partition.sessions:
            found = self._closed.find(self._number, arrived.partition, session_id)
            if found is not None:
                partition.sessions[session_id] = found[0]
        assert not isinstance(arrived.event, BadRecord | Purge)
        effects = partition.feed(arrived.event, arrived.position, arrived.logged_ms)
        state = partition.sessions.get(session_id)
        if not isinstance(state, ClosedSession):
            return effects, ""
        del partition.sessions[session_id]
        if effects.outcome is not None:
            self._close(arrived.partition, state, effects)
        elif effects.revisions and found is not None:
            self._revise(arrived.partition, state, found[1])
        return effects, state.marker.key

    def _close(self, partition: int, state: ClosedSession, effects: Effects) -> None:
        outcome, totals = effects.outcome, self.totals
        assert outcome is not None, "a close has an outcome"
        given = Given(
            samples=len(effects.samples),
            tokens=sum(planned.tokens for planned in effects.samples.planned),
            trained=outcome.trained,
            reward=(effects.samples.reward or 0.0) * len(effects.samples),
        )
        self._closed.keep(self._number, partition, state, given)
        totals.sessions += 1
        totals.samples += given.samples
        totals.tokens += given.tokens
        totals.generated += outcome.generated
        totals.trained += given.trained
        totals.reward += given.reward
        for row in outcome.ledger:
            totals.untrained.update(row.untrained)

    def _revise(self, partition: int, state: ClosedSession, before: Given) -> None:
        each = share(state.rewards.value, before.samples, state.marker.reward_share)
        after = replace(before, reward=(each or 0.0) * before.samples)
        self._closed.keep(self._number, partition, state, after)
        self.totals.reward += after.reward - before.reward
