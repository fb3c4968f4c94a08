"""Readers of the embedded log, and the thread that answers every question to it.

    own process     a commit wakes the readers of its topics at once
    others          a look every 20 ms, rarer where nothing has come for seconds

Invariant: no entry between the start and `positions` is skipped unseen, and no read transaction
stays open between two questions: it would keep the write-ahead log from starting again.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from streams.errors import LogAway, LogError, NoSuchPosition
from streams.log.interface import Entry, Position
from streams.log.sqlite_file import LogFile, is_busy, tail_of
from streams.settings import Settings

BATCH_BYTES_MAX = 8 << 20
"""Of one batch, or one larger entry alone."""
POLL_S = (0.02, 0.1)
"""Between two looks for what other processes wrote: at least, at most."""
_POLL_SHARE = 0.05
"""Of the time since the last entry: an idle reader is to cost nothing."""

_SELECT = (
    "SELECT place, timestamp_ms, key, value FROM entries"
    " WHERE place >= ? AND place < ? ORDER BY place LIMIT ?"
)
_AT = "SELECT timestamp_ms, key, value FROM entries WHERE place = ?"

Answer = TypeVar("Answer")


class Asker:
    """One connection for questions, in a thread of its own."""

    def __init__(self, file: LogFile, settings: Settings) -> None:
        """Nothing is opened yet."""
        self.file = file
        self._seconds = settings.request_timeout_s
        self._thread = ThreadPoolExecutor(1, "turnstream-log-reader")
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    async def ask(self, what: str, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """The answer, bounded; asked in order."""
        if self._closed:
            raise LogError(f"{what}: the log is closed")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._seconds):
                return await loop.run_in_executor(self._thread, self._answer, question)
        except TimeoutError:
            detail = f"no answer from {self.file.path} in {self._seconds:g} s"
            raise LogAway(f"{what}: {detail}") from None
        except LogError as error:
            raise type(error)(f"{what}: {error}") from error

    async def close(self) -> None:
        """Let go of the file, bounded."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await loop.run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _answer(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        try:
            if self._connection is None:
                self._connection = self.file.open()
                self._connection.execute("PRAGMA query_only = ON")
            self.file.check_in_place()
            return question(self._connection)
        except sqlite3.Error as error:
            if not is_busy(error):
                self._close()
            raise self.file.told(error) from error

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Growth:
    """Wakes a topic's readers when this process has written to it, and nobody else."""

    def __init__(self) -> None:
        """None so far."""
        self._counts: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], str] = {}

    def count(self, topic: str) -> int:
        """How often the topic has grown."""
        return self._counts[topic]

    def add(self, topic: str) -> None:
        """It has grown once more."""
        self._counts[topic] += 1
        for future, waited_for in self._waiting.items():
            if waited_for == topic and not future.done():
                future.set_result(None)

    def wake_all(self) -> None:
        """Everybody looks again."""
        for topic in set(self._waiting.values()):
            self.add(topic)

    async def wait(self, topic: str, count: int, seconds: float) -> None:
        """Until it has grown more often than `count`, at most so long."""
        if self._counts[topic] != count:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = topic
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await future
        finally:
            del self._waiting[future]


class SqliteReader:
    """Reads one topic; made by `SqliteLog.read`."""

    def __init__(self, asker: Asker, growth: Growth, topic: str, position: int | None) -> None:
        """The log holds the position; None reads nothing at all."""
        self._asker = asker
        self._growth = growth
        self._topic = topic
        self._position = position
        self._heard_s = self._found_s = time.monotonic()
        self._closed = False

    @property
    def positions(self) -> dict[int, int]:
        """What comes next, by partition."""
        return {} if self._position is None else {0: self._position}

    @property
    def silent_s(self) -> float:
        """Seconds since the file could be read."""
        return time.monotonic() - self._heard_s

    async def next_batch(self, wait_s: float, entries_max: int = 1000) -> list[Entry]:
        """What is there, waiting at most `wait_s` for the first."""
        until_s = time.monotonic() + wait_s
        while True:
            grown = self._growth.count(self._topic)
            found = await self._found(entries_max)
            left_s = until_s - time.monotonic()
            if found or left_s <= 0:
                return found
            least_s, most_s = POLL_S
            idle_s = time.monotonic() - self._found_s
            poll_s = max(least_s, min(most_s, idle_s * _POLL_SHARE))
            await self._growth.wait(self._topic, grown, min(poll_s, left_s))

    async def close(self) -> None:
        """Let go."""
        self._closed = True

    async def _found(self, entries_max: int) -> list[Entry]:
        if self._closed:
            raise LogError(f"read {self._topic}: the reader is closed")
        position = self._position
        if position is None:
            return []
        try:
            found = await self._asker.ask(
                f"read {self._topic}", lambda asked: self._fetch(asked, position, entries_max)
            )
        except LogAway:
            return []  # `silent_s` tells; it may answer again
        self._heard_s = time.monotonic()
        if found is None:
            detail = f"read {self._topic} at {self.positions}: retention has overtaken the reader"
            raise NoSuchPosition(detail)
        # Here and not in the thread: a batch whose reader was cancelled is read again.
        self._position = position + len(found)
        if found:
            self._found_s = self._heard_s
        return found

    def _fetch(
        self, connection: sqlite3.Connection, position: int, entries_max: int
    ) -> list[Entry] | None:
        """In the thread: the entries from there on; None if they are gone."""
        tail = tail_of(connection, self._topic)
        if tail is None:
            return []  # nothing was written to it yet
        if position < tail.start:
            return None
        found: list[Entry] = []
        size_bytes = 0
        cursor = connection.execute(
            _SELECT, (tail.place(position), tail.place(tail.end), entries_max)
        )
        for place, timestamp_ms, key, value in cursor:
            at = Position(self._topic, 0, position + len(found))
            if place != tail.place(at.offset):
                break  # trimmed since the first question; the next one finds the start moved
            found.append(Entry(at, timestamp_ms, key, value))
            size_bytes += len(key or b"") + len(value or b"")
            if size_bytes >= BATCH_BYTES_MAX:
                break
        cursor.close()  # with it ends the read transaction
        return found


def entries_at(connection: sqlite3.Connection, topic: str, offsets: Sequence[int]) -> list[Entry]:
    """The first of these entries, in this order, up to a missing one or a batch's size."""
    tail = tail_of(connection, topic)
    found: list[Entry] = []
    size_bytes = 0
    if tail is None:
        return found
    for offset in offsets:
        row = connection.execute(_AT, (tail.place(offset),)).fetchone()
        if row is None or not tail.start <= offset < tail.end or size_bytes >= BATCH_BYTES_MAX:
            break
        found.append(Entry(Position(topic, 0, offset), *row))
        size_bytes += len(row[2] or b"")
    return found


def position_at(connection: sqlite3.Connection, topic: str, time_ms: int) -> int:
    """Of the first entry that is not older, else the end."""
    # By halving: the times of a topic do not go backwards.
    tail = tail_of(connection, topic)
    low, high = (0, 0) if tail is None else (tail.start, tail.end)
    while tail is not None and low < high:
        middle = (low + high) // 2
        row = connection.execute(_AT, (tail.place(middle),)).fetchone()
        # What retention took since the first question is older than all that is left.
        if row is None or row[0] < time_ms:
            low = middle + 1
        else:
            high = middle
    return low
