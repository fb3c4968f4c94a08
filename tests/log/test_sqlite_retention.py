"""What is older than its topic's retention goes; positions stay, space is used again."""

import asyncio
import dataclasses
import os
import sqlite3
import time
from pathlib import Path

import pytest

from streams.errors import NoSuchPosition
from streams.log.interface import Outgoing
from streams.log.sqlite import SqliteLog
from streams.log.sqlite_trim import SPARE_BYTES, STEP_ENTRIES_MAX, keeps_ms
from streams.settings import FOR_EVER, Settings

SETTINGS = Settings(retention_turns_hours=100, retention_dead_letters_hours=FOR_EVER)
TURNS = SETTINGS.turns_topic
HOUR_MS = 3_600_000
OLD_MS = 101 * HOUR_MS


def entry(value: bytes | str, topic: str = TURNS) -> Outgoing:
    data = value.encode() if isinstance(value, str) else value
    return Outgoing(topic=topic, key=b"s", value=data)


def now_ms() -> int:
    return int(time.time() * 1000)


async def write(log: SqliteLog, count: int, value: bytes = b"v", topic: str = TURNS) -> None:
    await asyncio.gather(*(log.publish(entry(value, topic)) for _ in range(count)))


def age(path: Path, count: int) -> None:
    """Make the first entries of the first topic so old that they are to go."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "UPDATE entries SET timestamp_ms = timestamp_ms - ? WHERE place < ?",
            (OLD_MS, (1 << 40) + count),
        )
    connection.close()


def test_old_entries_go_and_the_start_moves_up(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    old = 3 * STEP_ENTRIES_MAX + 7

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await write(log, old + 10)
            behind = await log.read(TURNS, {0: 5})
            ahead = await log.read(TURNS, {0: old})
            assert await log.trim(now_ms()) == 0
            age(path, old)
            assert await log.trim(now_ms()) == old
            assert await log.start_positions(TURNS) == {0: old}
            assert await log.end_positions(TURNS) == {0: old + 10}
            assert await log.lag("g", TURNS) == {0: 10}
            assert len(await ahead.next_batch(1)) == 10
            text = rf"read {TURNS} at {{0: 5}}: retention has overtaken the reader"
            with pytest.raises(NoSuchPosition, match=text):
                await behind.next_batch(1)
            with pytest.raises(NoSuchPosition, match=f"/4: the log holds {old} up to {old + 10}"):
                await log.read(TURNS, {0: 4})

    asyncio.run(scenario())


def test_a_topic_that_lost_all_its_entries_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await write(log, 20)
            before_ms = now_ms()
            assert await log.trim(before_ms + OLD_MS) == 20
            assert await log.start_positions(TURNS) == {0: 20}
            assert await log.end_positions(TURNS) == {0: 20}
        async with SqliteLog(path, SETTINGS) as log:
            assert (await log.publish(entry("next"))).offset == 20
            reader = await log.read(TURNS, {0: 20})
            (found,) = await reader.next_batch(1)
            assert found.value == b"next"
            assert found.timestamp_ms >= before_ms - 1000

    asyncio.run(scenario())


def ahead(path: Path, count: int, by_ms: int) -> int:
    """Put the first entries into the future, as a writer's clock does; the time they have."""
    time_ms = now_ms() + by_ms
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "UPDATE entries SET timestamp_ms = ? WHERE place < ?", (time_ms, (1 << 40) + count)
        )
    connection.close()
    return time_ms


@pytest.mark.parametrize("trimmed", [False, True])
def test_time_does_not_go_backwards_though_the_clock_does_a_little(
    tmp_path: Path, trimmed: bool
) -> None:
    """The entries are moved into the future, which is the same as a clock that was set back."""
    path = tmp_path / "log.db"

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await write(log, 3)
            future_ms = ahead(path, 3, by_ms=50_000)
            if trimmed:
                assert await log.trim(now_ms() + HOUR_MS + OLD_MS) == 3
            await write(log, 2)
            reader = await log.read(TURNS, {0: 3})
            assert [e.timestamp_ms for e in await reader.next_batch(1)] == [future_ms] * 2

    asyncio.run(scenario())


def test_nobody_takes_over_the_time_of_a_clock_that_runs_far_ahead(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await write(log, 3)
            ahead(path, 3, by_ms=HOUR_MS)
            before_ms = now_ms()
            await write(log, 2)
            reader = await log.read(TURNS, {0: 3})
            times_ms = [e.timestamp_ms for e in await reader.next_batch(1)]
            assert all(before_ms <= time_ms <= now_ms() for time_ms in times_ms)

    asyncio.run(scenario())


def test_entries_of_a_clock_far_ahead_go_with_those_behind_them(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    wrong = STEP_ENTRIES_MAX + 7

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await write(log, wrong + 10)
            ahead(path, wrong, by_ms=1000 * OLD_MS)
            assert await log.trim(now_ms()) == 0
            assert await log.trim(now_ms() + OLD_MS, {TURNS: wrong + 4}) == wrong + 4
            await write(log, 3)
            assert await log.trim(now_ms() + OLD_MS) == 9

    asyncio.run(scenario())


def test_entries_whose_age_nothing_tells_stay(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await write(log, 5)
            ahead(path, 5, by_ms=1000 * OLD_MS)
            assert await log.trim(now_ms() + OLD_MS) == 0
            assert await log.start_positions(TURNS) == {0: 0}

    asyncio.run(scenario())


def test_what_somebody_still_needs_stays_however_old(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await write(log, 20)
            late_ms = now_ms() + OLD_MS
            assert await log.trim(late_ms, {TURNS: 12}) == 12
            assert await log.trim(late_ms, {TURNS: 12}) == 0
            assert await log.start_positions(TURNS) == {0: 12}
            assert await log.trim(late_ms, {TURNS: 99}) == 8

    asyncio.run(scenario())


def test_each_topic_has_its_own_retention(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, retention_samples_hours=50)
    other = f"{settings.samples_topic}.lossless"
    letters = settings.dead_letters_topic
    control = settings.control_topic
    hours = {TURNS: 100, settings.samples_topic: 50, other: 50, letters: None, "any": None}
    hours[control] = None
    for topic, kept in hours.items():
        assert keeps_ms(topic, settings) == (None if kept is None else kept * HOUR_MS)

    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", settings) as log:
            for topic in hours:
                await write(log, 2, topic=topic)
            assert await log.trim(now_ms() + 60 * HOUR_MS) == 4
            starts = {topic: (await log.start_positions(topic))[0] for topic in hours}
            assert starts == {
                TURNS: 0,
                settings.samples_topic: 2,
                other: 2,
                letters: 0,
                control: 0,
                "any": 0,
            }

    asyncio.run(scenario())


def test_nothing_to_remove_writes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            await write(log, 5)
            before = log.transactions
            assert await log.trim(now_ms()) == 0
            assert log.transactions == before

    asyncio.run(scenario())


def test_freed_space_is_used_again_and_what_is_far_too_much_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    megabyte = os.urandom(1 << 20)
    large = 2 * SPARE_BYTES >> 20

    async def sizes() -> list[int]:
        found = []
        for count in (20, 20, large, 1):
            async with SqliteLog(path, SETTINGS) as log:
                await write(log, count, megabyte)
                await log.trim(now_ms() + OLD_MS)
            found.append(path.stat().st_size)
        return found

    first, second, third, fourth = asyncio.run(sizes())
    assert 20 << 20 < first < 22 << 20
    assert second == first
    assert third < large << 20
    assert fourth < SPARE_BYTES + (20 << 20)
