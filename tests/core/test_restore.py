"""A session rebuilt from the rows kept for it goes on as if nothing had happened."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.events import Event
from schemas.record import Record
from streams.core.effects import EVENT_ROW
from streams.core.partition import Partition
from streams.core.session import Row, restore
from tests.harness import policy_of
from tests.oracle.deltas import with_deltas
from tests.oracle.seed_and_slime import PROFILES
from tests.oracle.sessions import Session, sessions

SESSION = "s"


def as_event(record: Record) -> Event:
    assert isinstance(record, Event)
    return record


def decoded(line: dict[str, Any]) -> Event:
    return as_event(codec.from_json(json.dumps(line).encode()))


def with_repeats(events: list[dict[str, Any]], choices: random.Random) -> list[dict[str, Any]]:
    """Some turns twice, so that rows that only count are among those kept."""
    *turns, end = events
    repeated = [turn for turn in turns for _ in range(choices.choice((1, 1, 2)))]
    return [*repeated, end]


@dataclass
class Kept:
    """What a worker writes down while it runs: a row an event, each as bytes or as a code."""

    rows: list[tuple[int, bytes, str | None]] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)

    def feed(self, partition: Partition, event: Event, position: int) -> None:
        effects = partition.feed(event, position)
        assert effects.refusals == ()
        self.records += [codec.to_json(record) for record in effects.records()]
        if effects.row == EVENT_ROW:
            self.rows.append((position, codec.to_msgpack(event), None))
        elif effects.row is not None:
            self.rows.append((position, b"", effects.row))

    def partition(self, rules_of: Partition) -> Partition:
        """A new worker's: it knows the rows and the rules, nothing else."""
        rows = [
            Row(position, None if code else as_event(codec.from_msgpack(data)), code)
            for position, data, code in self.rows
        ]
        fresh = Partition(rules=rules_of.rules)
        state = restore(rows, fresh.rules, SESSION)
        if state is not None:
            fresh.sessions[SESSION] = state
        return fresh


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(session=sessions(), seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_state_saved_and_restored_after_any_event_gives_the_same_samples(
    profile: str, session: Session, seed: int
) -> None:
    choices = random.Random(seed)
    lines = with_repeats(with_deltas(session.events, choices), choices)
    events = list(enumerate(map(decoded, lines), 1))
    policy = policy_of(profile, session.fork_threshold)

    steady = Kept()
    partition = Partition(forced_policy=policy)
    for position, event in events:
        steady.feed(partition, event, position)

    for crash in range(len(events)):
        broken = Kept()
        partition = Partition(forced_policy=policy)
        for position, event in events[:crash]:
            broken.feed(partition, event, position)
        partition = broken.partition(partition)
        for position, event in events[crash:]:
            broken.feed(partition, event, position)
        assert broken.records == steady.records
        assert broken.rows == steady.rows
