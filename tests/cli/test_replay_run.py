"""A replay is what the core gives: with closed sessions put away, and after a copy."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.bad_record import BadRecord
from schemas.events import Purge
from schemas.record import Record
from schemas.samples import SampleRevised, SessionClosed
from streams.cli.replay.closed import ClosedSessions
from streams.cli.replay.copying import copy_events
from streams.cli.replay.run import Run
from streams.cli.replay.source import Arrived, LogSource
from streams.core.partition import Partition
from streams.core.state import OpenSession, Rules
from streams.log.interface import Outgoing, Position
from streams.log.opening import open_log
from streams.processor.arrivals import read_event
from streams.settings import Settings
from tests.cli.places import Place
from tests.processor.busy_sessions import busy_log

TOPIC = "turnstream.turns"
EVENTS = 400


def arrived(seed: int) -> list[Arrived]:
    """A log in which everything happens, purges and poison included."""
    return [
        Arrived(read_event(key, value), 0, at, None, Position(TOPIC, 0, at), value)
        for at, (key, value) in enumerate(busy_log(seed, EVENTS))
    ]


def fed(partition: Partition, one: Arrived) -> Any:
    if isinstance(one.event, BadRecord):
        return partition.refuse(one.event, one.position)
    return partition.feed(one.event, one.position)


def rewards(records: list[Record]) -> float:
    """Over all samples, as of their last revision."""
    last: dict[str, float] = {}
    for record in records:
        if not isinstance(record, SessionClosed):
            last[getattr(record, "sample_id")] = getattr(record, "reward") or 0.0  # noqa: B009
    return sum(last.values())


@pytest.mark.parametrize("seed", range(20))
def test_closed_sessions_that_are_put_away_change_nothing(seed: int) -> None:
    plain, closed = Partition(rules=Rules()), ClosedSessions()
    run = Run(0, Rules(), closed)
    records: list[Record] = []
    refused = 0
    for one in arrived(seed):
        wanted = fed(plain, one)
        effects, key = run.feed(one)
        assert effects.records() == wanted.records()
        assert [str(error) for error in effects.refusals] == [str(e) for e in wanted.refusals]
        assert bool(key) or not effects.records()
        records += wanted.records()
        refused += len(wanted.refusals)
    outcomes = [record for record in records if isinstance(record, SessionClosed)]
    totals = run.totals
    assert totals.refused == refused > 0
    assert totals.sessions == len(outcomes) > 0
    assert totals.generated == sum(outcome.generated for outcome in outcomes)
    assert totals.trained == sum(outcome.trained for outcome in outcomes)
    assert totals.generated == totals.trained + sum(totals.untrained.values())
    assert any(isinstance(record, SampleRevised) for record in records)
    if not any(isinstance(one.event, Purge) for one in arrived(seed)):
        # After a purge a session may begin anew, with the same sample ids.
        assert totals.reward == pytest.approx(rewards(records))
    run.leave_open()
    still_open = [s for s in plain.sessions.values() if isinstance(s, OpenSession)]
    assert totals.still_open == len(still_open)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_open_at_the_end_closes_as_in_a_file(seed: int) -> None:
    plain, run = Partition(rules=Rules()), Run(0, Rules(), ClosedSessions())
    for one in arrived(seed):
        fed(plain, one)
        run.feed(one)
    wanted = [effects.records() for effects in plain.finish()]
    assert [effects.records() for effects, _ in run.finish()] == wanted
    assert wanted


def test_only_open_sessions_are_held_in_memory() -> None:
    run = Run(0, Rules(), ClosedSessions())
    for one in arrived(1):
        run.feed(one)
    held = [
        state for partition in run._partitions.values() for state in partition.sessions.values()
    ]
    assert held
    assert all(isinstance(state, OpenSession) for state in held)


def core_gives(place: Place, settings: Settings) -> list[Record]:
    """What the core makes of a log; positions, and what counts poison, left out."""
    partition = Partition(rules=Rules())
    records: list[Record] = []
    for entry in place.entries(settings.turns_topic):
        event = read_event(entry.key, entry.value)
        at = entry.position
        one = Arrived(event, 0, at.offset, None, at, entry.value or b"")
        records += fed(partition, one).records()
    return [_unplaced(record) for record in records]


def _unplaced(record: Record) -> Record:
    if isinstance(record, SampleRevised):
        return msgspec.structs.replace(record, revision=0)
    if isinstance(record, SessionClosed):
        return msgspec.structs.replace(record, refused=0)
    return record


@pytest.mark.parametrize("seed", range(10))
def test_a_copy_of_a_log_gives_the_same_samples(seed: int, tmp_path: Path) -> None:
    source = Settings(log=str(tmp_path / "log.db"), topic_prefix="source")
    target = Settings(log=str(tmp_path / "copy.db"))
    # Purges speak of the old log and are left out; here something unreadable stands for them.
    events = [
        (key or b"nobody", value if key else b"\xc1") for key, value in busy_log(seed, EVENTS)
    ]
    there, here = Place(source, tmp_path), Place(target, tmp_path)
    here.publish(Outgoing(topic=TOPIC, key=b"x", value=b"\xc1"))  # so that no position stays
    there.publish(*(Outgoing(topic=source.turns_topic, key=k, value=v) for k, v in events))

    async def copy() -> None:
        async with open_log(source) as log:
            assert await copy_events(LogSource(log, source), target) == 1

    asyncio.run(copy())
    wanted = core_gives(there, source)
    assert core_gives(here, target) == wanted
    assert wanted
