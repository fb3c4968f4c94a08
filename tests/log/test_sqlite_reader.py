"""Readers of an embedded log: in other processes, behind by far, given up in the middle."""

import asyncio
import os
from pathlib import Path

import pytest

from streams.errors import LogError, NoSuchPosition, WrongTopic
from streams.log import sqlite_reader
from streams.log.interface import Outgoing
from streams.log.sqlite import SqliteLog
from streams.log.sqlite_reader import BATCH_BYTES_MAX
from streams.log.sqlite_thread import CHECKPOINT_BYTES, TRANSACTION_BYTES_MAX
from streams.settings import Settings
from tests.log.sqlite_processes import Child, acknowledged

SETTINGS = Settings()
TOPIC = SETTINGS.turns_topic


def entry(value: bytes | str) -> Outgoing:
    data = value.encode() if isinstance(value, str) else value
    return Outgoing(topic=TOPIC, key=b"s", value=data)


def test_two_readers_in_other_processes_see_what_two_writers_write(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with (
        Child("read", path, 2000) as one,
        Child("read", path, 2000) as two,
        Child("write", path, "a", 1000, 16) as first,
        Child("write", path, "b", 1000, 1) as second,
    ):
        known = {
            name: acknowledged(writer.finish()) for name, writer in (("a", first), ("b", second))
        }
        wanted = sorted(
            (at, name, number) for name, said in known.items() for at, number in said.items()
        )
        lines = [f"{at} {name} {number}" for at, name, number in wanted]
        assert len(lines) == 2000
        assert [line for line in one.finish() if line != "nothing came"] == lines
        assert [line for line in two.finish() if line != "nothing came"] == lines


def test_an_entry_of_this_process_wakes_its_readers_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_reader, "POLL_S", (60, 60))

    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            reader = await log.read(TOPIC, {0: 0})
            for n in range(50):
                waiting = asyncio.create_task(reader.next_batch(30))
                await log.publish(entry(f"{n}"))
                assert [e.value for e in await asyncio.wait_for(waiting, 5)] == [b"%d" % n]

    asyncio.run(scenario())


def test_a_batch_that_was_given_up_is_read_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            sent = [await log.send(entry(f"{n}")) for n in range(3000)]
            await sent[-1]
            reader = await log.read(TOPIC, {0: 0})
            found: list[int] = []
            for n in range(10_000):
                reading = asyncio.create_task(reader.next_batch(1, 100))
                for _ in range(n % 7):
                    await asyncio.sleep(0)
                reading.cancel()
                try:
                    batch = await reading
                except asyncio.CancelledError:
                    batch = [] if n % 2 else await reader.next_batch(1, 100)
                found += [int(e.value or b"") for e in batch]
                if len(found) >= 3000:
                    break
            assert found == list(range(3000))

    asyncio.run(scenario())


def test_a_batch_holds_no_more_bytes_than_it_may(tmp_path: Path) -> None:
    megabytes = bytes(3 << 20)

    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            for _ in range(8):
                await log.publish(entry(megabytes))
            reader = await log.read(TOPIC, {0: 0})
            sizes = [len(await reader.next_batch(1)) for _ in range(3)]
            assert sizes == [3, 3, 2]
            assert 2 * len(megabytes) < BATCH_BYTES_MAX <= 3 * len(megabytes)

    asyncio.run(scenario())


def test_the_write_ahead_log_stays_small_under_a_reader_that_never_rests(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    wal = Path(f"{path}-wal")
    value = os.urandom(50_000)

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log, SqliteLog(path, SETTINGS) as other:
            reader = await other.read(TOPIC, {0: 0})
            sizes: list[int] = []

            async def read_on() -> int:
                count = 0
                while count < 2000:
                    count += len(await reader.next_batch(1, 20))
                    sizes.append(await asyncio.to_thread(lambda: wal.stat().st_size))
                return count

            reading = asyncio.create_task(read_on())
            for _ in range(100):
                await asyncio.gather(*(log.publish(entry(value)) for _ in range(20)))
            assert await asyncio.wait_for(reading, 30) == 2000
            assert max(sizes) < CHECKPOINT_BYTES + TRANSACTION_BYTES_MAX
            assert 2000 * len(value) > 3 * max(sizes)

    asyncio.run(scenario())


def test_a_reader_far_behind_reads_all_of_it_while_the_log_grows(tmp_path: Path) -> None:
    behind, later = 20_000, 200

    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            await asyncio.gather(*(log.publish(entry(f"{n}")) for n in range(behind)))
            assert await log.lag("slow", TOPIC) == {0: behind}
            reader = await log.read(TOPIC, {0: 0})

            async def grow() -> None:
                for n in range(behind, behind + later):
                    await log.publish(entry(f"{n}"))

            growing = asyncio.create_task(grow())
            found: list[int] = []
            while len(found) < behind + later:
                found += [int(e.value or b"") for e in await reader.next_batch(5)]
            await growing
            assert found == list(range(behind + later))

    asyncio.run(scenario())


def test_only_partition_0_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            with pytest.raises(WrongTopic, match="has no partition 3, but 1"):
                await log.read(TOPIC, {0: 0, 3: 0})
            with pytest.raises(WrongTopic, match="has no partition 1, but 1"):
                await log.commit("g", TOPIC, {1: 0})

    asyncio.run(scenario())


def test_a_closed_reader_refuses(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            reader = await log.read(TOPIC, {0: 0})
            await reader.close()
            with pytest.raises(LogError, match="the reader is closed"):
                await reader.next_batch(0)

    asyncio.run(scenario())


def test_entries_can_be_asked_for_by_their_places(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            await asyncio.gather(*(log.publish(entry(f"{n}")) for n in range(2000)))
            await log.publish(Outgoing(topic=SETTINGS.samples_topic, key=b"g", value=b"other"))
            wanted = [5, 3, *range(0, 2000, 2)]
            found = await log.entries_at(TOPIC, wanted)
            assert [e.position.offset for e in found] == wanted
            assert [e.value for e in found] == [b"%d" % n for n in wanted]
            assert await log.entries_at(TOPIC, []) == []
            for missing in (-1, 2000, 1 << 40):
                with pytest.raises(NoSuchPosition, match=rf"{TOPIC}/0/{missing}: .*not hold it"):
                    await log.entries_at(TOPIC, [1, missing])

    asyncio.run(scenario())
