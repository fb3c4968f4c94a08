"""The embedded processor on a file: what it does with what would stop or starve it."""

import asyncio
import contextlib
import dataclasses
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from schemas import codec
from schemas.dead_letters import DeadLetter
from schemas.record import Record
from schemas.samples import SessionClosed
from streams.errors import LogFull, PositionMoved
from streams.log.interface import Outgoing, Position
from streams.log.sqlite import SqliteLog, Transaction
from streams.processor.embedded import EmbeddedProcessor
from streams.processor.rows import FloorKey, MarkerKey, Row, RowKey, write_key, write_row
from streams.settings import Settings
from tests.core.test_large_outcomes import TURN

SETTINGS = Settings(processor_sweep_interval_s=0.1)
SECONDS_MAX = 60.0


async def publish(log: SqliteLog, *events: dict[str, Any]) -> None:
    for event in events:
        record = codec.from_json(json.dumps(event).encode())
        key = str(event.get("session_id", "")).encode() or None
        outgoing = Outgoing(
            topic=SETTINGS.turns_topic, key=key, value=codec.to_msgpack(record), partition=0
        )
        await log.publish(outgoing)


async def records(log: SqliteLog, topic: str) -> list[Record]:
    reader = await log.read(topic, {0: 0})
    found = [codec.from_msgpack(entry.value or b"") for entry in await reader.next_batch(0.1)]
    await reader.close()
    return found


async def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline_s, "it does not happen"
        await asyncio.sleep(0.02)


async def worked(log: SqliteLog, counted: str) -> EmbeddedProcessor:
    """A processor that worked until it had counted one of these."""
    processor, stop = EmbeddedProcessor(SETTINGS, log), asyncio.Event()
    running = asyncio.create_task(processor.run(stop))
    await until(lambda: running.done() or processor.counts[counted] > 0)
    stop.set()
    await running
    return processor


def ended(session_id: str = "s", **more: Any) -> dict[str, Any]:
    return {
        "type": "session_ended",
        "session_id": session_id,
        "end_status": "completed",
        "reward": 1.0,
        **more,
    }


def test_a_purge_above_itself_is_a_dead_letter_and_swallows_nothing(tmp_path: Path) -> None:
    async def scenario() -> tuple[list[Record], list[Record]]:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            await publish(log, {"type": "purge", "floor": 1000}, TURN, ended())
            processor, stop = EmbeddedProcessor(SETTINGS, log), asyncio.Event()
            running = asyncio.create_task(processor.run(stop))
            await until(lambda: processor.counts["sessions_closed"] == 1)
            stop.set()
            await running
            return (
                await records(log, SETTINGS.dead_letters_topic),
                await records(log, SETTINGS.samples_topic),
            )

    letters, out = asyncio.run(scenario())
    assert [getattr(letter, "code", None) for letter in letters] == ["invalid_field"]
    assert isinstance(letters[0], DeadLetter)
    assert isinstance(out[-1], SessionClosed)


def test_an_outcome_too_large_for_the_log_still_closes_its_session(tmp_path: Path) -> None:
    large = dataclasses.replace(SETTINGS, message_bytes_max=100_000, producer_batch_bytes=65_536)
    final = {"role": "assistant", "content": "x" * 95_000}

    async def scenario() -> list[Record]:
        async with SqliteLog(tmp_path / "log.db", large) as log:
            await publish(log, TURN, ended(final_message=final))
            processor, stop = EmbeddedProcessor(large, log), asyncio.Event()
            running = asyncio.create_task(processor.run(stop))
            await until(lambda: processor.counts["sessions_closed"] == 1)
            stop.set()
            await running
            return await records(log, SETTINGS.samples_topic)

    *_, outcome = asyncio.run(scenario())
    assert isinstance(outcome, SessionClosed)
    assert not bytes(outcome.final_message)


def test_a_silent_session_expires_while_others_keep_the_log_busy(tmp_path: Path) -> None:
    quick = dataclasses.replace(SETTINGS, idle_limit_s=0.5, reward_grace_s=0.5)

    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", quick) as log:
            await publish(log, TURN | {"session_id": "silent"})
            processor, stop = EmbeddedProcessor(quick, log), asyncio.Event()
            running = asyncio.create_task(processor.run(stop))
            number = 0
            deadline_s = time.monotonic() + SECONDS_MAX
            while not processor.counts["sessions_closed"]:
                assert time.monotonic() < deadline_s, "it does not expire"
                number += 1
                turns = [TURN | {"session_id": "busy", "turn_id": f"t{number}-{k}"} for k in "ab"]
                await asyncio.gather(*(publish(log, turn) for turn in turns))
            stop.set()
            await running
            (outcome,) = await records(log, quick.samples_topic)
            assert isinstance(outcome, SessionClosed)
            assert (outcome.session_id, outcome.end_status) == ("silent", "expired")

    asyncio.run(scenario())


class LogThatFailsFirst(SqliteLog):
    """A log whose first transaction is refused, as on a full disk."""

    failed = False

    async def transact(self, transaction: Transaction) -> list[Position]:
        if not self.failed:
            self.failed = True
            raise LogFull("no room")
        return await super().transact(transaction)


def test_after_trouble_it_says_that_it_works_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with LogThatFailsFirst(tmp_path / "log.db", SETTINGS) as log:
            await publish(log, TURN, ended())
            processor, stop = EmbeddedProcessor(SETTINGS, log), asyncio.Event()
            running = asyncio.create_task(processor.run(stop))
            await until(lambda: processor.counts["sessions_closed"] == 2)  # the first is undone
            await until(lambda: processor.look().trouble is None)
            stop.set()
            await running

    asyncio.run(scenario())
    assert capsys.readouterr().err == (
        "turnstream processor: no room; trying again\nturnstream processor: it works again\n"
    )


def test_an_expiry_is_asked_for_once_however_slowly_it_is_read(tmp_path: Path) -> None:
    quick = dataclasses.replace(
        SETTINGS, idle_limit_s=0.2, reward_grace_s=0.2, processor_sweep_interval_s=0.01
    )

    async def scenario() -> int:
        async with SqliteLog(tmp_path / "log.db", quick) as log:
            await publish(log, TURN)
            processor, stop = SlowProcessor(quick, log), asyncio.Event()
            running = asyncio.create_task(processor.run(stop))
            await until(lambda: processor.counts["sessions_closed"] == 1)
            await asyncio.sleep(0.2)
            stop.set()
            await running
            return (await log.end_positions(quick.turns_topic))[0]

    assert asyncio.run(scenario()) == 2  # the turn and its expiry


class SlowProcessor(EmbeddedProcessor):
    """Looks for what has expired twice before it reads on."""

    async def _sweep(self) -> None:
        await super()._sweep()
        await super()._sweep()


def processor_command(log: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [Path(sys.executable).parent / "turnstream", "processor", "--log", log],
        env={**os.environ, "TURNSTREAM_METRICS_PORT": "0"},
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_an_unexpected_failure_is_one_line_and_exit_code_70(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def spoil() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await log.transact(Transaction(puts=[(b"key", b"value")]))

    asyncio.run(spoil())
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE table_rows SET value = 7")
    ran = processor_command(path)
    assert (ran.returncode, ran.stdout) == (70, b"")
    _, dumps, line = ran.stderr.decode().splitlines()
    assert "SIGUSR1 writes a task dump" in dumps
    assert line.startswith(f"turnstream processor: {path}: unexpected failure: ")


def test_foreign_entries_of_the_table_are_counted_and_skipped(tmp_path: Path) -> None:
    path, now = tmp_path / "log.db", int(time.time() * 1000).to_bytes(8)
    entries = [
        (b"zzz", b"junk"),
        (write_key(RowKey(0, "s")), now + b"\xc1"),
        (write_key(RowKey(1, "s")), now + b"no row at all"),
        (write_key(MarkerKey("s")), now + b"{}"),
        (write_key(FloorKey(0)), now + b"far too long for a floor"),
        (write_key(FloorKey(1)), now + (1 << 40).to_bytes(8)),
    ]

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            # What the log holds is no reason to take them for a processor's.
            await publish(log, TURN, TURN)
            await log.transact(Transaction(puts=entries))
            processor = await worked(log, "turns")
            assert processor.counts["foreign_rows"] == len(entries)
            assert "dead_letter:undecodable" not in processor.counts

    asyncio.run(scenario())


def test_foreign_entries_beside_a_session_change_nothing_of_it(tmp_path: Path) -> None:
    """A worker that starts again over them still has the session as it was."""
    path, now = tmp_path / "log.db", int(time.time() * 1000).to_bytes(8)
    deep = b"[" * 100_000 + b"]" * 100_000
    entries = [
        (write_key(RowKey(0, "zzz")), now + write_row(Row(0, None, "duplicate"))),
        (write_key(RowKey(0, "yyy")), now + write_row(Row(0, None))),
        (write_key(RowKey(999, "other")), now + write_row(Row(0, None))),
        (write_key(FloorKey(1 << 60)), now + (1 << 60).to_bytes(8)),
        (
            write_key(MarkerKey("other")),
            now + b'{"session_id":"other","first":0,"closed_at":0,"a":' + deep + b"}",
        ),
    ]

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await publish(log, TURN)
            await worked(log, "turns")
            await log.transact(Transaction(puts=entries))
            await publish(log, ended(reward=1.0))
            processor = await worked(log, "sessions_closed")
            assert processor.counts["foreign_rows"] == 3
            written = await records(log, SETTINGS.samples_topic)
            (outcome,) = (one for one in written if isinstance(one, SessionClosed))
            assert (len(outcome.sample_ids), outcome.withheld) == (1, None)

    asyncio.run(scenario())


def test_a_row_with_padding_is_read_back_without_it(tmp_path: Path) -> None:
    turn = codec.to_msgpack(codec.from_json(json.dumps(TURN).encode()))
    padded = msgpack.packb(msgpack.unpackb(turn) | {"later": b"x" * 100_000})

    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            await log.publish(Outgoing(topic=SETTINGS.turns_topic, key=b"s", value=padded))
            for counted in ("turns", "rows_recovered"):
                processor = await worked(log, counted)
                (row,) = processor._state.rows["s"].values()
                assert row.value is not None
                assert len(row.value) < 1_000

    asyncio.run(scenario())


def test_folders_that_are_missing_end_it_at_once(tmp_path: Path) -> None:
    ran = processor_command(tmp_path / "not" / "there" / "log.db")
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b"cannot be made: No such file or directory" in ran.stderr.splitlines()[-1]


def test_a_second_processor_on_one_file_is_refused(tmp_path: Path) -> None:
    async def scenario() -> str:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            first, second = EmbeddedProcessor(SETTINGS, log), EmbeddedProcessor(SETTINGS, log)
            stop = asyncio.Event()
            both = [asyncio.create_task(one.run(stop)) for one in (first, second)]
            await publish(log, TURN)
            done, _ = await asyncio.wait(both, timeout=SECONDS_MAX, return_when="FIRST_COMPLETED")
            stop.set()
            await asyncio.gather(*both, return_exceptions=True)
            (error,) = {one.exception() for one in done}
            assert isinstance(error, PositionMoved)
            return str(error)

    assert "another process works for it" in asyncio.run(scenario())
