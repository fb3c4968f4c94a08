"""A replay is what the core gives: with closed sessions put away, and after a copy."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import Event, Purge, SessionExpired, Turn
from schemas.record import Record, json_text
from schemas.samples import SampleRevised, SessionClosed
from streams.cli.progress import Progress
from streams.cli.replay.closed import ClosedSessions
from streams.cli.replay.copying import Copying, copy_events
from streams.cli.replay.run import Run
from streams.cli.replay.source import Arrived, LogSource
from streams.cli.replay.target import Topic
from streams.core.partition import Partition
from streams.core.state import OpenSession, Rules
from streams.log.interface import Log, Outgoing, Position
from streams.log.opening import open_log
from streams.processor.arrivals import read_event
from streams.settings import Settings
from tests.cli.command import turn
from tests.cli.places import Json, Place
from tests.processor.busy_sessions import busy_log
from tests.processor.memory_log import MemoryLog

TOPIC = "turnstream.turns"
EVENTS = 400
OUTCOME: dict[str, Any] = {
    **{"end_status": "completed", "policy": "seed", "sample_ids": [], "ledger": []},
    **{"turns": 0, "generated": 0, "trained": 0},
}


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


LIMIT = 1_000


def copied_into_a_low_broker(*given: Json | Event) -> tuple[list[Event], list[str], Copying]:
    """What a log has whose broker refuses, some time later, values over `LIMIT` bytes."""
    said: list[str] = []
    stored: list[Event] = []

    class Said(Progress):
        def say(self, text: str) -> None:
            said.append(text)

    async def work() -> Copying:
        log = MemoryLog(random.Random(1), {TOPIC: LIMIT})
        copying = Copying(Settings(), cast(Log, log))

        async def copy() -> None:
            with Said("replay", "events", None) as progress:
                for line, one in enumerate(given, 1):
                    event = (
                        codec.from_json(json.dumps(one).encode()) if isinstance(one, dict) else one
                    )
                    assert isinstance(event, Event)
                    await copying.take(Arrived(event, 0, line, None, line, b""), progress)
                await copying.finish()

        task = asyncio.ensure_future(copy())
        while not task.done():
            await log.deliver()
        await task
        for _, value in log.topics[TOPIC]:
            event = codec.from_msgpack(value or b"")
            assert isinstance(event, Event)
            stored.append(event)
        return copying

    copying = asyncio.run(work())
    return stored, said, copying


def test_what_the_broker_refuses_later_costs_itself_alone_and_is_named() -> None:
    """Far more events than may be on their way, so that most are sent behind a refused one."""
    large = {7, 1_500, 2_499}
    events = [
        turn(f"s{n % 9}", f"t{n}", raw_prompt="x" * LIMIT * (n in large)) for n in range(2_500)
    ]
    stored, said, copying = copied_into_a_low_broker(*events)
    ids = {getattr(event, "turn_id", "") for event in stored}
    assert ids == {f"t{n}" for n in range(2_500) if n not in large}
    assert [text.partition(" bytes")[0].rpartition(" ")[0] for text in said] == [
        f"line {n + 1}: oversize:" for n in sorted(large)
    ]
    assert (copying.refused, copying.summary()) == (
        3,
        f"published 2497 events of 9 sessions to {TOPIC}, refused 3",
    )


@pytest.mark.parametrize("refused", ["t1", "t2", "t3"])
def test_an_expiry_that_named_what_the_broker_refuses_names_the_one_before_it(refused: str) -> None:
    turns = [turn("s", t, raw_prompt="x" * LIMIT * (t >= refused)) for t in ("t1", "t2", "t3")]
    expired = SessionExpired(session_id="s", cause="idle", last_offset=3)
    stored, _, copying = copied_into_a_low_broker(*turns, expired)
    kept = [event.turn_id for event in stored if isinstance(event, Turn)]
    assert kept == [t for t in ("t1", "t2", "t3") if t < refused]
    (expiry,) = [event for event in stored if isinstance(event, SessionExpired)]
    assert expiry.last_offset == len(kept) - 1
    assert copying.refused == 3 - len(kept)


def test_a_sample_that_the_broker_refuses_is_named_and_the_rest_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcomes = [SessionClosed(session_id=f"s{n}", **OUTCOME) for n in range(2_500)]
    outcomes[70] = msgspec.structs.replace(outcomes[70], metadata=json_text("x" * LIMIT))

    async def work() -> Topic:
        log = MemoryLog(random.Random(1), {TOPIC: LIMIT})
        target = Topic(cast(Log, log), TOPIC)

        async def write() -> str | None:
            for outcome in outcomes:
                await target.emit([outcome], outcome.session_id)
            return await target.finish()

        task = asyncio.ensure_future(write())
        while not task.done():
            await log.deliver()
        assert await task == f"wrote 2499 records to {TOPIC}, refused 1"
        assert len(log.topics[TOPIC]) == 2_499
        return target

    assert asyncio.run(work()).refused == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"session_closed of {TOPIC}, session s70: oversize: ")
