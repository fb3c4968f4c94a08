"""Reads the traces of a log into one sink, and remembers how far it came.

Where a place cannot be written to, nothing more is read until it can: the log keeps what is
still to come, and whoever starts the sink again goes on from what is settled. What retention took
by then is said and counted, and the reading goes on behind it.

Invariant: a position is committed only after the sink has settled everything before it.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.traces import Trace
from streams.errors import LogAway, LogError
from streams.log.interface import Entry, Log, Position
from streams.settings import Settings
from streams.sinks.interface import Sink
from streams.sinks.reading import Onward

WAIT_S = 0.2
_BATCH_MAX = 200
"""Traces may be megabytes each."""
_COMMIT_S = 1.0
_LOOK_S = 1.0
_DRAIN_S = 10.0
"""To read on to the log's end when told to stop."""
_RETRY_S = (0.2, 5.0)


class Consuming:
    """One sink's consumer."""

    def __init__(
        self, settings: Settings, log: Log, sink: Sink, name: str, say: Callable[[str], None]
    ) -> None:
        """Nothing is read yet."""
        self._log = log
        self._sink = sink
        self._say = say
        self._topic = settings.traces_topic
        self.group = f"{settings.topic_prefix}-sink-{name}"
        self._committed: dict[int, int] = {}
        self._commit_s = 0.0
        self._ends: dict[int, int] = {}
        self._read: dict[int, int] = {}
        self._reader = Onward(log, self._topic, self._taken)
        self.trouble: str | None = None
        """Why nothing moves, if so."""

    @property
    def counts(self) -> Counter[str]:
        """Sessions by what became of them."""
        return self._sink.counts

    @property
    def silent_s(self) -> float:
        """Seconds since the log answered."""
        return self._reader.silent_s

    @property
    def lag(self) -> int:
        """Traces that were still before us at the last look."""
        return sum(max(0, end - self._read.get(at, 0)) for at, end in self._ends.items())

    @property
    def partitions(self) -> int:
        """Read by us; all there are, since a sink has one consumer."""
        return len(self._read)

    @property
    def held(self) -> int:
        """Sessions read and not settled."""
        return self._sink.held

    async def run(self, stop: asyncio.Event, *, once: bool = False) -> None:
        """Read until told to stop, then to the log's end, and settle; `once`: only the latter.

        Raises:
            BadSetting: the place cannot be used.
            LogError: what trying again would not mend.
            OSError: the place could not be written to up to the end.
        """
        wanted = await asyncio.to_thread(self._sink.opened, self._topic)
        looking = asyncio.ensure_future(self._look())
        try:
            if wanted is None:
                wanted = await self._log.committed(self.group, self._topic)
            await self._reader.stand_at(wanted)
            self._read = self._reader.positions
            if once:
                stop.set()  # as if told to at once: read on to the end, settle
            while not stop.is_set():
                await self._step(stop)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if once else _DRAIN_S):
                    await self._drain(stop)
            await asyncio.to_thread(self._sink.settle, everything=True)
            await self._commit(self._sink.settled(self._read))
        finally:
            looking.cancel()
            await self._reader.close()
            await asyncio.to_thread(self._sink.close)

    async def _drain(self, stop: asyncio.Event) -> None:
        ends = await self._log.end_positions(self._topic)
        while any(self._reader.positions.get(at, 0) < end for at, end in ends.items()):
            await self._step(stop)
            if self.trouble is not None:
                return  # the log keeps the rest

    async def _step(self, stop: asyncio.Event) -> None:
        for entry in await self._reader.next_batch(WAIT_S, _BATCH_MAX):
            self._take(entry)
        self._read = self._reader.positions
        if self._sink.due():
            await self._settle(stop)
        if time.monotonic() - self._commit_s > _COMMIT_S:
            self._commit_s = time.monotonic()
            with contextlib.suppress(LogAway):  # the next one says as much
                await self._commit(self._sink.settled(self._read))

    def _take(self, entry: Entry) -> None:
        try:
            record = codec.from_msgpack(entry.value or b"")
            if isinstance(record, Trace):
                self._sink.take(record, entry.position)
                return
            why = f"a {record.__struct_config__.tag}"
        except BadRecord as error:
            why = str(error)
        self.counts["unreadable"] += 1
        self._say(f"{entry.position} is no trace, and left out: {why}")
        self._sink.passed(entry.position, "unreadable")

    def _taken(self, last: Position, count: int) -> None:
        self.counts["taken_by_retention"] += count
        self._say(
            f"{last}: retention took it before it was read, and {count - 1:,} before it; going on "
            "behind it. TURNSTREAM_RETENTION_TRACES_HOURS is the time a sink has"
        )
        self._sink.passed(last, "taken_by_retention", count)

    async def _settle(self, stop: asyncio.Event) -> None:
        """Put away what is due; while that fails, wait, and read nothing more."""
        wait_s, most_s = _RETRY_S
        while True:
            try:
                await asyncio.to_thread(self._sink.settle)
            except OSError as error:
                if self.trouble is None:
                    self._say(f"{error}; nothing is lost, still trying")
                self.trouble = str(error)
            else:
                if self.trouble is not None:
                    self._say("it can be written to again")
                self.trouble = None
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await stop.wait()
            if stop.is_set():
                return  # the last attempt is that of the end
            wait_s = min(2 * wait_s, most_s)

    async def _commit(self, positions: dict[int, int]) -> None:
        if positions and positions != self._committed:
            await self._log.commit(self.group, self._topic, positions)
            self._committed = dict(positions)

    async def _look(self) -> None:
        while True:
            with contextlib.suppress(LogError):  # as it was before; it is asked again soon
                self._ends = await self._log.end_positions(self._topic)
            await asyncio.sleep(_LOOK_S)
