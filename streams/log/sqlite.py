"""The log in one SQLite file: no broker, several processes, every topic one partition.

    SqliteLog ──► SqliteWriter     one thread, one transaction for all that waits
              ──► SqliteReader     any number, over one thread that answers questions

Topics come into being by being written; one without an entry starts and ends at 0. An
acknowledged entry is fsynced. Beyond a `Log` it keeps the processor's table, and takes
entries, rows of the table and positions in one transaction.

Invariant: every call ends within its timeout, with an answer or an error that names the file.
"""

import functools
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from streams.errors import NoSuchPosition, WrongTopic
from streams.log.interface import Entry, Outgoing, Position
from streams.log.sizes import check_size
from streams.log.sqlite_file import LogFile, tail_of
from streams.log.sqlite_jobs import Sent
from streams.log.sqlite_reader import (
    BATCH_BYTES_MAX,
    Asker,
    Growth,
    SqliteReader,
    entries_at,
    position_at,
)
from streams.log.sqlite_transaction import Transaction, committed_of
from streams.log.sqlite_trim import STEPS_MAX, due_topics, remove_step, shrink_step, surplus_pages
from streams.log.sqlite_writer import SqliteWriter
from streams.settings import Settings

__all__ = ["SqliteLog", "Transaction"]

_BUSY_SHARE = 0.8
"""Of the time for a question: who holds the file is told before the time is over."""
_BATCH_MAX = 500


class SqliteLog:
    """A `Log` in the file at `path`, used from one event loop."""

    def __init__(self, path: Path, settings: Settings, *, create: bool = True) -> None:
        """Nothing is opened yet.

        Args:
            path: The file; of missing folders only the last is made.
            settings: Topics, limits, timeouts and retention.
            create: Whether a missing file is made; a command that only looks says False.
        """
        self._settings = settings
        file = LogFile(path, create=create, busy_s=settings.request_timeout_s * _BUSY_SHARE)
        self._growth = Growth()
        self._writer = SqliteWriter(file, settings, self._growth.add)
        self._asker = Asker(file, settings)

    async def __aenter__(self) -> Self:
        """The log, closed at the end of the block."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    @property
    def transactions(self) -> int:
        """How many this log has committed; entries sent together share one."""
        return self._writer.transactions

    async def send(self, outgoing: Outgoing) -> Sent:
        """Hand an entry over; await what comes back to know that it is durable."""
        self._check(outgoing)
        return await self._writer.send(outgoing)

    async def publish(self, outgoing: Outgoing) -> Position:
        """`send`, and wait until the entry is durable."""
        self._check(outgoing)
        return await (await self._writer.send(outgoing))

    async def transact(self, transaction: Transaction) -> list[Position]:
        """All of it or nothing, durable; the positions of the entries, in order.

        Raises:
            PositionMoved: a group is not where it was expected; nothing was changed.
            TooLarge: an entry is over the limit; nothing was changed.
            LogError: the log refuses. After `LogAway` it may still happen.
        """
        size_bytes = 0
        for outgoing in transaction.outgoing:
            self._check(outgoing)
            size_bytes += len(outgoing.key or b"") + len(outgoing.value or b"")
        size_bytes += sum(len(key) + len(value or b"") for key, value in transaction.puts)
        offsets = await self._writer.do(
            "transaction", lambda pen: pen.apply(transaction), size_bytes
        )
        pairs = zip(transaction.outgoing, offsets, strict=True)
        return [Position(outgoing.topic, 0, offset) for outgoing, offset in pairs]

    async def table_get(self, key: bytes) -> bytes | None:
        """One row of the processor's table; None if there is none."""

        def question(asked: sqlite3.Connection) -> bytes | None:
            sql = "SELECT value FROM table_rows WHERE key = ?"
            row = asked.execute(sql, (key,)).fetchone()
            return None if row is None else bytes(row[0])

        return await self._asker.ask("row of the table", question)

    async def table_entries(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Every row of the processor's table, ordered by key.

        They are read in batches: a row that is put or removed meanwhile may be seen or not.
        """
        start = b""
        while rows := await self._asker.ask("table", functools.partial(_table_batch, start=start)):
            for row in rows:
                yield row
            start = rows[-1][0] + b"\0"  # no key stands between the two

    async def read(self, topic: str, positions: Mapping[int, int]) -> SqliteReader:
        """A reader from the position on; the only partition is 0."""
        _check_partitions(topic, positions)
        wanted = positions.get(0)
        if wanted is not None:
            start, end = await self._bounds(f"read {topic}", topic)
            if not start <= wanted <= end:
                detail = f"the log holds {start} up to {end}"
                raise NoSuchPosition(f"{Position(topic, 0, wanted)}: {detail}")
        return SqliteReader(self._asker, self._growth, topic, wanted)

    async def entries_at(self, topic: str, offsets: Sequence[int]) -> list[Entry]:
        """The entries that stand there, in the order of the offsets.

        Raises:
            NoSuchPosition: one of them is gone or was never there.
        """
        found: list[Entry] = []
        while len(found) < len(offsets):
            left = offsets[len(found) : len(found) + _BATCH_MAX]
            batch = await self._asker.ask(
                f"entries of {topic}", functools.partial(entries_at, topic=topic, offsets=left)
            )
            found += batch
            if not batch:
                missing = Position(topic, 0, offsets[len(found)])
                raise NoSuchPosition(f"{missing}: the log does not hold it")
        return found

    async def commit(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        """Remember what the group reads next."""
        _check_partitions(topic, positions)
        if positions:
            what = f"commit for group {group} on {topic}"
            await self._writer.do(what, lambda pen: pen.commit(group, topic, positions[0]))

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """What the group reads next; empty if it never committed."""
        what = f"positions of group {group} on {topic}"
        found = await self._asker.ask(what, lambda asked: committed_of(asked, group, topic))
        return {} if found is None else {0: found}

    async def start_positions(self, topic: str) -> dict[int, int]:
        """The oldest entry that is still there."""
        return {0: (await self._bounds(f"start of {topic}", topic))[0]}

    async def end_positions(self, topic: str) -> dict[int, int]:
        """Where the next entry will stand."""
        return {0: (await self._bounds(f"end of {topic}", topic))[1]}

    async def positions_at(self, topic: str, time_ms: int) -> dict[int, int]:
        """The first entry of this time or later, else the end."""
        question = functools.partial(position_at, topic=topic, time_ms=time_ms)
        return {0: await self._asker.ask(f"time in {topic}", question)}

    async def lag(self, group: str, topic: str) -> dict[int, int]:
        """Entries the group has still to read."""
        committed = (await self.committed(group, topic)).get(0, 0)
        start, end = await self._bounds(f"lag of group {group} on {topic}", topic)
        # What retention took below the group's position or instead of it cannot be read.
        return {0: max(0, end - max(committed, start))}

    async def let_go(self, group: str) -> None:
        """Nothing is kept for a group."""

    async def trim(self, now_ms: int, needed: Mapping[str, int] | None = None) -> int:
        """Remove what is older than its topic's retention, in a bounded number of small steps.

        Args:
            now_ms: The time of day that ages are counted from.
            needed: By topic, the position from which on all is kept, however old.

        Returns:
            How many entries were removed; 0 when nothing is left to do.
        """
        due = await self._asker.ask("retention", lambda a: due_topics(a, self._settings, now_ms))
        steps, removed = STEPS_MAX, 0
        for topic, before_ms in due.items():
            kept = (needed or {}).get(topic)
            step = functools.partial(
                remove_step, topic=topic, before_ms=before_ms, now_ms=now_ms, needed=kept
            )
            while steps and (count := await self._writer.do(f"retention of {topic}", step)):
                removed += count
                steps -= 1
        surplus = await self._asker.ask("free space", surplus_pages)
        while steps and surplus > 0:
            surplus = await self._writer.do("free space", shrink_step)
            steps -= 1
        return removed

    async def close(self) -> None:
        """Write what is left, bounded, and let go."""
        await self._writer.close()
        await self._asker.close()
        self._growth.wake_all()  # who waits for entries is told that the log is closed

    async def _bounds(self, what: str, topic: str) -> tuple[int, int]:
        tail = await self._asker.ask(what, lambda asked: tail_of(asked, topic))
        return (0, 0) if tail is None else (tail.start, tail.end)

    def _check(self, outgoing: Outgoing) -> None:
        check_size(outgoing, self._settings)
        if outgoing.partition is None and outgoing.key is None:
            raise ValueError("an entry without a key needs an explicit partition")
        if outgoing.partition:
            raise WrongTopic(f"{outgoing.topic} has no partition {outgoing.partition}, but 1")


def _check_partitions(topic: str, positions: Mapping[int, int]) -> None:
    wrong = sorted(set(positions) - {0})
    if wrong:
        raise WrongTopic(f"{topic} has no partition {wrong[0]}, but 1")


def _table_batch(connection: sqlite3.Connection, start: bytes) -> list[tuple[bytes, bytes]]:
    cursor = connection.execute(
        "SELECT key, value FROM table_rows WHERE key >= ? ORDER BY key LIMIT ?",
        (start, _BATCH_MAX),
    )
    found: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    for key, value in cursor:
        found.append((key, value))
        size_bytes += len(key) + len(value)
        if size_bytes >= BATCH_BYTES_MAX:
            break
    cursor.close()  # with it ends the read transaction
    return found
