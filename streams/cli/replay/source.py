"""Where events come from: a file of JSON lines, a pipe, or the turns of a log.

A pipe is read in a thread of its own: one that is silent must neither hold up what was sent
already nor keep Ctrl-C waiting.

Invariant: every event is handed over once, a session's in order; what cannot be read is handed
over as a refusal in its place.
"""

import asyncio
import contextlib
import os
import stat
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from schemas.bad_record import BadRecord
from schemas.events import Event
from streams.cli.event_lines import EventLine, read_events
from streams.cli.progress import Progress
from streams.cli.snapshot import read_snapshot, snapshot_of
from streams.log.homes import refuse_elsewhere, require_partitions
from streams.log.interface import Entry, Log, Position
from streams.processor.arrivals import read_event
from streams.settings import KAFKA, Settings

_AHEAD_LINES = 256
"""Read and not yet handed over."""
_PAUSE_EVENTS = 64
"""After so many the loop has its turn: acknowledgements, and Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """One event, or why there is none."""

    event: Event | BadRecord
    partition: int
    position: int
    """In the log it is read from, or was dumped from."""
    logged_ms: int | None
    """When the log took it; None: a file does not say."""
    where: Position | int
    """Its place in the log, or its line."""
    raw: bytes
    """As it stands there."""

    @property
    def place(self) -> str:
        """For people."""
        return f"line {self.where}" if isinstance(self.where, int) else str(self.where)


Take = Callable[[Arrived, Progress], Awaitable[None]]


class Source(Protocol):
    """Anything that has events."""

    async def each(self, label: str, take: Take) -> None:
        """Hand over all there is, one after the other."""
        ...


class FileSource:
    """The lines of a file."""

    def __init__(self, file: BinaryIO) -> None:
        """Nothing is read yet."""
        self._file = file

    async def each(self, label: str, take: Take) -> None:
        """Every line; it is read as fast as it is taken."""
        size = _size(self._file)
        lines = _File(self._file) if size is not None else _Pipe(self._file)
        with Progress(label, "events", size, counted=False) as progress:
            while (line := await lines.next()) is not None:
                await take(_of_line(line), progress)
                progress.advance(1, len(line.text) + 1)
                if line.number % _PAUSE_EVENTS == 0:
                    await asyncio.sleep(0)


class LogSource:
    """The turns of a log, as they stand when it is asked."""

    def __init__(self, log: Log, settings: Settings, *, as_processor: bool = False) -> None:
        """Nothing is read yet; `as_processor` refuses events that are on a wrong partition."""
        self._log = log
        self._settings = settings
        self._as_processor = as_processor

    async def each(self, label: str, take: Take) -> None:
        """Every entry that is still there."""
        if self._as_processor:
            await require_partitions(self._log, self._settings)
        snapshot = await snapshot_of(self._log, self._settings.turns_topic)
        with Progress(label, "events", snapshot.entries) as progress:

            async def take_all(entries: Sequence[Entry]) -> None:
                for count, entry in enumerate(entries):
                    await take(self._arrived(entry), progress)
                    if count % _PAUSE_EVENTS == 0:
                        await asyncio.sleep(0)

            await read_snapshot(self._log, snapshot, self._settings, progress, take_all)

    def _arrived(self, entry: Entry) -> Arrived:
        event = read_event(entry.key, entry.value)
        at, value = entry.position, entry.value or b""
        if self._as_processor and self._settings.log == KAFKA:
            event = refuse_elsewhere(event, at.partition, self._settings)
        return Arrived(event, at.partition, at.offset, entry.timestamp_ms, at, value)


class _File:
    """Lines that are there."""

    def __init__(self, file: BinaryIO) -> None:
        self._lines = read_events(file)

    async def next(self) -> EventLine | None:
        """The next line; None at the end."""
        return next(self._lines, None)


class _Pipe:
    """Lines on their way from the thread that reads them."""

    def __init__(self, file: BinaryIO) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: deque[EventLine | Exception | None] = deque()
        self._room = threading.Semaphore(_AHEAD_LINES)
        self._more = asyncio.Event()
        # A daemon: a process that ends does not wait for a pipe that nobody writes to.
        threading.Thread(target=self._read, args=(file,), daemon=True).start()

    async def next(self) -> EventLine | None:
        """The next line; None at the end."""
        while not self._ready:
            self._more.clear()
            if not self._ready:
                await self._more.wait()
        line = self._ready.popleft()
        self._room.release()
        if isinstance(line, Exception):
            raise line
        return line

    def _read(self, file: BinaryIO) -> None:
        """In the thread."""
        try:
            with _own(file) as stream:
                for line in read_events(stream):
                    self._put(line)
            self._put(None)
        except Exception as error:  # told where the lines are taken
            self._put(error)

    def _put(self, line: EventLine | Exception | None) -> None:
        self._room.acquire()
        self._ready.append(line)
        if len(self._ready) == 1:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._more.set)


def _of_line(line: EventLine) -> Arrived:
    return Arrived(line.event, 0, line.position, None, line.number, line.text)


def _own(file: BinaryIO) -> BinaryIO:
    """A stream that nobody else closes: closing one that a thread waits for would wait too."""
    return os.fdopen(os.dup(file.fileno()), "rb")


def _size(file: BinaryIO) -> int | None:
    """In bytes; None for a pipe."""
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None
