"""How an embedded log writes: many share one transaction, in order, and wait where it is full."""

import asyncio
import dataclasses
import sqlite3
import time
from pathlib import Path

import pytest

from streams.errors import LogAway, LogError, LogFull
from streams.log.interface import Outgoing
from streams.log.sqlite import SqliteLog
from streams.log.sqlite_file import LogFile
from streams.log.sqlite_writer import QUEUE_BYTES_MAX
from streams.settings import Settings
from tests.log.sqlite_processes import Child, Lock

SETTINGS = Settings()
HASTY = dataclasses.replace(SETTINGS, request_timeout_s=0.5, publish_timeout_s=5.0)
TOPIC = SETTINGS.turns_topic
LOCKS_ARE_TOLD = Path("/proc/locks").exists()


def entry(value: bytes | str) -> Outgoing:
    data = value.encode() if isinstance(value, str) else value
    return Outgoing(topic=TOPIC, key=b"s", value=data, session_id="s")


async def values(log: SqliteLog) -> list[bytes | None]:
    reader = await log.read(TOPIC, {0: 0})
    end = (await log.end_positions(TOPIC))[0]
    found: list[bytes | None] = []
    while len(found) < end:
        found += [one.value for one in await reader.next_batch(5)]
    return found


def test_what_is_sent_at_once_shares_a_transaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            await log.publish(entry("first"))
            await asyncio.gather(*(log.publish(entry(f"{n}")) for n in range(64)))
            assert log.transactions <= 4  # 2, unless the thread gets its turn in between

    asyncio.run(scenario())


def test_many_senders_that_wait_for_their_acknowledgements_stay_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:

            async def one_after_another(name: int) -> None:
                for n in range(20):
                    await log.publish(entry(f"{name}.{n}"))

            await asyncio.gather(*(one_after_another(name) for name in range(32)))
            assert (await log.end_positions(TOPIC)) == {0: 640}
            assert log.transactions <= 160  # 20, if none of them ever lags behind

    asyncio.run(scenario())


def test_what_arrives_during_a_transaction_shares_the_next(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await log.publish(entry("first"))
            before, lock = log.transactions, Lock(path)
            sent = []
            for n in range(100):
                sent.append(await log.send(entry(f"{n}")))
                await asyncio.sleep(0.001)  # each is handed over for itself
            lock.release()
            assert [(await one).offset for one in sent] == list(range(1, 101))
            assert log.transactions <= before + 2

    asyncio.run(scenario())


def test_a_full_queue_makes_senders_wait_and_keeps_their_order(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    megabytes = bytes(8_000_000)
    fit = QUEUE_BYTES_MAX // len(megabytes)

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await log.publish(entry("first"))
            lock = Lock(path)
            for n in range(fit):
                await asyncio.wait_for(log.send(entry(b"%d " % n + megabytes)), 5)
            large = asyncio.create_task(log.send(entry(b"large " + megabytes)))
            await asyncio.sleep(0)
            small = asyncio.create_task(log.send(entry("small")))  # would fit, but is behind
            done, _ = await asyncio.wait({large, small}, timeout=0.2)
            assert done == set()
            lock.release()
            assert (await (await large)).offset == fit + 1
            assert (await (await small)).offset == fit + 2
            found = [(value or b"").split()[0] for value in await values(log)]
            names = [b"%d" % n for n in range(fit)]
            assert found == [b"first", *names, b"large", b"small"]

    asyncio.run(scenario())


def test_who_finds_no_room_in_time_is_told_and_nothing_of_it_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    settings = dataclasses.replace(SETTINGS, publish_timeout_s=0.3)

    async def scenario() -> None:
        async with SqliteLog(path, settings) as log:
            await log.publish(entry("first"))
            lock = Lock(path)
            sent = [await log.send(entry(bytes(8_000_000))) for _ in range(8)]
            with pytest.raises(LogAway, match=r"session s: no room in front of .* not stored"):
                await log.send(entry(b"none" + bytes(8_000_000)))
            with pytest.raises(LogAway, match=r"session s: not written to .*; it may still be"):
                await sent[0]
            lock.release()
        async with SqliteLog(path, settings) as log:
            assert not any((value or b"").startswith(b"none") for value in await values(log))

    asyncio.run(scenario())


def test_who_holds_the_lock_is_named_and_what_stood_behind_fails_too(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def scenario() -> None:
        async with SqliteLog(path, HASTY) as log:
            await log.publish(entry("first"))
            with Child("hold", path) as holder:
                await asyncio.to_thread(holder.wait_for_lines, 1)
                one = await log.send(entry("one"))
                await asyncio.sleep(0.1)  # its transaction is being tried
                two = await log.send(entry("two"))
                begun_s = time.monotonic()
                who = f"process {holder.pid} " if LOCKS_ARE_TOLD else "another process"
                text = rf"publish to {TOPIC}, session s: {path} is locked by {who}"
                for sent in (one, two):
                    with pytest.raises(LogAway, match=text):
                        await sent
                assert time.monotonic() - begun_s < 5
                with pytest.raises(LogAway, match=rf"group g .*locked by {who}"):
                    await log.commit("g", TOPIC, {0: 1})
                holder.finish()
            assert (await log.publish(entry("three"))).offset == 1
            assert await values(log) == [b"first", b"three"]

    asyncio.run(scenario())


def test_what_failed_was_sent_before_what_is_sent_now(tmp_path: Path) -> None:
    """An entry handed over before its sender could know of a failure does not overtake."""
    path = tmp_path / "log.db"

    async def scenario() -> None:
        async with SqliteLog(path, HASTY) as log:
            await log.publish(entry("first"))
            lock = Lock(path)
            one = await log.send(entry("one"))
            await asyncio.sleep(0.01)
            time.sleep(1)  # noqa: ASYNC251  # the transaction fails, and the loop does not hear it
            two = await log.send(entry("two"))
            lock.release()
            for sent in (one, two):
                with pytest.raises(LogAway):
                    await sent
            assert await values(log) == [b"first"]
            await log.publish(entry("three"))
            assert await values(log) == [b"first", b"three"]

    asyncio.run(scenario())


def test_what_waits_for_room_behind_a_failure_fails_too(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def scenario() -> None:
        async with SqliteLog(path, HASTY) as log:
            await log.publish(entry("first"))
            lock = Lock(path)
            sent = [await log.send(entry("small"))]
            await asyncio.sleep(0.05)  # its transaction, which will fail, is being tried
            for _ in range(9):  # its end does not make room for the last of these
                sent.append(await asyncio.wait_for(log.send(entry(bytes(8_300_000))), 5))
            lock.release()
            for one in sent:
                with pytest.raises(LogAway, match="is locked by"):
                    await one
            assert await values(log) == [b"first"]

    asyncio.run(scenario())


def test_a_full_disk_refuses_and_takes_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    original = LogFile.open

    def limited(file: LogFile) -> sqlite3.Connection:
        opened.append(original(file))
        opened[-1].execute("PRAGMA max_page_count = 20").fetchall()
        return opened[-1]

    monkeypatch.setattr(LogFile, "open", limited)

    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            sent = [await log.send(entry(bytes(5000))) for _ in range(3)]
            assert [(await one).offset for one in sent] == [0, 1, 2]
            for _ in range(2):
                with pytest.raises(LogFull, match=r"session s: .*log.db has no room left on its"):
                    await log.publish(entry(bytes(500_000)))
            assert (await log.publish(entry("small"))).offset == 3
            for connection in opened:
                connection.execute("PRAGMA max_page_count = 2000").fetchall()
            assert (await log.publish(entry(bytes(500_000)))).offset == 4
            sizes = [len(value or b"") for value in await values(log)]
            assert sizes == [5000, 5000, 5000, 5, 500_000]

    asyncio.run(scenario())


def test_a_closed_log_refuses(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = SqliteLog(tmp_path / "log.db", SETTINGS)
        await log.publish(entry("first"))
        reader = await log.read(TOPIC, {0: 1})
        waiting = asyncio.create_task(reader.next_batch(30))
        await asyncio.sleep(0.01)
        await log.close()
        with pytest.raises(LogError, match=r"read turnstream.turns: the log is closed"):
            await asyncio.wait_for(waiting, 5)
        with pytest.raises(LogError, match=r"publish to .*: the log is closed"):
            await log.publish(entry("second"))
        with pytest.raises(LogError, match=r"end of .*: the log is closed"):
            await log.end_positions(TOPIC)
        await reader.close()

    asyncio.run(scenario())


def test_a_log_is_closed_in_time_while_another_holds_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    hasty = dataclasses.replace(SETTINGS, publish_timeout_s=0.5)

    async def scenario() -> None:
        log = SqliteLog(path, hasty)
        await log.publish(entry("first"))
        lock = Lock(path)
        sent = await log.send(entry("second"))
        begun_s = time.monotonic()
        await log.close()
        assert time.monotonic() - begun_s < 5
        with pytest.raises(LogError):
            await sent
        lock.release()
        async with SqliteLog(path, hasty) as again:
            await asyncio.sleep(0.1)
            assert await values(again) == [b"first"]

    asyncio.run(scenario())


def test_a_sender_that_is_cancelled_leaves_the_others_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await log.publish(entry("first"))
            lock = Lock(path)
            tasks = [asyncio.create_task(log.publish(entry(f"{n}"))) for n in range(3)]
            await asyncio.sleep(0.05)
            tasks[1].cancel()
            lock.release()
            assert [(await tasks[n]).offset for n in (0, 2)] == [1, 3]
            assert await values(log) == [b"first", b"0", b"1", b"2"]

    asyncio.run(scenario())
