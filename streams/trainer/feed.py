"""The consumer: a thread with an event loop of its own, between the log and the book.

    thread            fetch ──► decode ──► book ──► fetch ...        beats, whatever the loop does
    training loop                          book ──► batch            may take twenty minutes a step

When the buffer is full and the loop is busy, nothing more is fetched until it asks for a batch;
membership is kept up meanwhile.

Invariant: the book is only touched under the lock, and an error of the thread is raised in the
loop, never only logged.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import importlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, cast

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.samples import Sample, SampleRevised, SessionClosed
from schemas.trained import Trained
from streams.core.closed_groups import DIGEST_BYTES
from streams.core.open_group import Fence, GroupRules
from streams.errors import LogAway, NoSuchPosition
from streams.log.client_logs import CLIENT, calm_client_logs
from streams.log.interface import Entry, Log, Outgoing
from streams.log.keys import run_key
from streams.log.opening import open_log
from streams.settings import KAFKA
from streams.trainer.asking import Asked
from streams.trainer.book import Book
from streams.trainer.epochs import epochs_of
from streams.trainer.sources import Fetched, Source, beginnings, gone, read_alone
from streams.trainer.state import AHEAD, State, read, remember, spelled

_WAIT_S = 0.2
_LOOK_S = 1.0
"""Between two looks at the end of the log."""
_SKEW_MS = 5_000
"""Between our clock and the log's, at most: a group times out so much later where nothing comes."""
_CLOSE_S = 30.0

Answer = TypeVar("Answer")
Taken = list[tuple[Entry, Sample | SessionClosed | SampleRevised]]


class Feed:
    """One subscription's reading and committing."""

    def __init__(self, asked: Asked, book: Book, state: State | None) -> None:
        """Nothing runs yet; with a state it goes on from there."""
        self.asked = asked
        self.book = book
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self.at_end = False
        """All that the log held at the start was read."""
        self.lag = 0
        self.paused_s = 0.0
        self.run_epoch = asked.run_epoch
        self.positions: dict[int, int] = {}
        self._given_out = False
        self.on_change: Callable[[], None] | None = None
        self._state = state
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._source: Source | None = None
        self._stopping: asyncio.Event | None = None
        self._room: asyncio.Event | None = None
        self._ready = threading.Event()
        self._target: dict[int, int] | None = None
        self._closing = False
        self._pending: set[concurrent.futures.Future[Any]] = set()

    def start(self) -> None:
        """Begin to read; where the run stands is known when this returns."""
        thread = threading.Thread(target=self._run, name="turnstream-trainer", daemon=True)
        thread.start()
        self._thread = thread
        self._ready.wait()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Stop, bounded; also while it starts."""
        self._closing = True
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stopping.set)
            self.make_room()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def make_room(self) -> None:
        """The loop has taken a batch."""
        if self._loop is not None and self._room is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for room
                self._loop.call_soon_threadsafe(self._room.set)

    def wait(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run a coroutine in the thread; what it gives.

        Raises:
            RuntimeError: the thread has ended; if an error ended it, that one instead.
        """
        try:
            return self._submit(work).result()
        except concurrent.futures.CancelledError:
            raise self._over() from None

    async def awaited(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """As `wait`, from another event loop."""
        future = self._submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._over() from None

    def _submit(self, work: Coroutine[Any, Any, Answer]) -> "concurrent.futures.Future[Answer]":
        with self.changed:
            if self._loop is None or self._loop.is_closed():
                work.close()
                raise self._over()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def _over(self) -> BaseException:
        return self.error or RuntimeError("the subscription is closed")

    async def commit(self, record: Trained, batches: set[int]) -> bool:
        """Write the record, then what is to be read again if we die now."""
        assert self._source is not None, "started"
        settings = self.asked.settings
        with self.changed:
            # Not the source's: it may have read what the book does not have yet.
            positions = self.book.positions(self.positions, batches)
            above = self.book.ended_above(positions, batches)
            moved = self.book.partitions_of(batches) - positions.keys()
        outgoing = Outgoing(
            topic=settings.trained_topic,
            key=run_key(record.run_id),
            value=codec.to_msgpack(record),
        )
        most = self._source.notes_max
        notes = {p: spelled(names[: most * DIGEST_BYTES]) for p, names in above.items()}
        ours = await self._source.commit(outgoing, positions, notes)
        counts = (len(names) // DIGEST_BYTES for names in above.values())
        with self.changed:
            self.book.repeatable = sum(max(0, n - most) for n in counts)
        return ours and not moved

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # raised in the loop, whatever it is
            with self.changed:
                self.error = error
        finally:
            with self.changed:
                for future in list(self._pending):
                    future.cancel()  # its loop will not come to it any more
            self._ready.set()
            self._tell()

    def _tell(self) -> None:
        with self.changed:
            self.changed.notify_all()
            call = self.on_change
        if call is not None:
            call()

    async def _work(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping, self._room = asyncio.Event(), asyncio.Event()
        if self._closing:
            self._stopping.set()
        async with open_log(self.asked.settings) as log:
            try:
                self._source = await self._open(log)
                self._ready.set()
                await self._follow(log, self._source)
            except NoSuchPosition as error:
                raise gone(error, self.asked.group) from error

    async def _follow(self, log: Log, source: Source) -> None:
        assert self._stopping is not None, "started"
        looking = asyncio.ensure_future(self._look(log, source))
        try:
            while not self._stopping.is_set():
                if looking.done():
                    looking.result()
                await self._step(source)
        finally:
            looking.cancel()
            await source.close()

    async def _step(self, source: Source) -> None:
        full = self._full()
        fetched = await source.fetch(_WAIT_S, entries=not full)
        taken = [(entry, record) for entry in fetched.entries if (record := _record(entry))]
        with self.changed:
            self._take(fetched, taken)
            self.book.dropped["unreadable"] += len(fetched.entries) - len(taken)
            self.positions, self._given_out = source.positions, source.given_out
        if fetched.entries or fetched.gained:
            self._tell()
        elif full:
            begun_s = time.monotonic()
            await self._wait_for_room()
            self.paused_s += time.monotonic() - begun_s
        elif not self.positions:
            await self._wait_for_room()  # nothing is given to us yet

    def _full(self) -> bool:
        """More than the buffer is meant to hold, and the loop does not wait for more."""
        with self.changed:
            return not self.book.hungry and self.book.buffered_bytes > self.asked.buffer_bytes

    async def _wait_for_room(self) -> None:
        assert self._room is not None, "started"
        self._room.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                await self._room.wait()

    def _take(self, fetched: Fetched, taken: Taken) -> None:
        for partition in fetched.lost:
            self.book.lose(partition)
        for partition, note in fetched.gained.items():
            self.book.gain(partition)
            # All of them stand behind the position, or the note would not have them.
            remember(self.book.closed, read(note), delivered=True, last=(partition, AHEAD))
        for entry, record in taken:
            place = (entry.position.partition, entry.position.offset)
            key = (entry.key or b"").decode("utf-8", "replace")
            self.book.take(record, place, entry.timestamp_ms, len(entry.value or b""), key)
        unsized = self.book.unsized()
        if unsized is not None:
            detail = (
                f"group {unsized} does not say how many sessions it has (`group_size`): give "
                "subscribe(..., group_size=N), or a group_timeout"
            )
            raise ValueError(detail)

    async def _look(self, log: Log, source: Source) -> None:
        """How much is left to read; and what has waited too long where nothing comes."""
        topic = self.asked.topic
        while True:
            asked_ms = int(time.time() * 1000)
            with contextlib.suppress(LogAway):  # as it was before; it is asked again soon
                ends = await log.end_positions(topic)
                self._seen(ends, source.positions, asked_ms)
            await asyncio.sleep(_LOOK_S if self._target is None or self.at_end else _WAIT_S / 4)

    def _seen(self, ends: Mapping[int, int], positions: Mapping[int, int], asked_ms: int) -> None:
        if self._target is None and self.asked.until_end:
            self._target = dict(ends)
        with self.changed:
            self.lag = sum(max(0, ends[p] - at) for p, at in positions.items())
            for partition, at in self.positions.items():
                if at >= ends[partition]:
                    # Whatever the log took before we asked for its end has been read.
                    self.book.expire(partition, asked_ms - _SKEW_MS)
            if self._target is not None and self._given_out:
                target = self._target
                self.at_end = all(at >= target[p] for p, at in self.positions.items())
        self._tell()

    async def _open(self, log: Log) -> Source:
        """Where the run stands, and a source from there on."""
        asked, state = self.asked, self._state
        settings, topic = asked.settings, asked.topic
        ends = await log.end_positions(topic)
        fences: tuple[Fence, ...] = ()
        if state is not None:
            seen = await epochs_of(log, settings, asked.run_id)
            self.run_epoch, fences = state.restored(seen, ends)
        self._set_rules(len(ends), fences)
        if state is not None and state.positions:
            if (missing := ends.keys() - state.positions.keys()) and not asked.one_of_several:
                raise ValueError(_partly(topic, sorted(missing)))
            return await read_alone(log, topic, asked.group, state.positions)
        if settings.log != KAFKA or asked.start != "committed":
            committed = await log.committed(asked.group, topic)
            places = await beginnings(log, topic, asked.start, committed)
            return await read_alone(log, topic, asked.group, places)
        if not logging.getLogger(CLIENT).handlers:
            calm_client_logs()
        # By name: a trainer on a file must not wait for the Kafka client to load.
        join = importlib.import_module("streams.log.kafka_member").join_group
        shared = importlib.import_module("streams.trainer.sharing").Shared
        member = await join(settings, topic, asked.group, asked.member_timeout_s)
        return cast(Source, shared(log, topic, member, asked.member_timeout_s))

    def _set_rules(self, partitions: int, fences: tuple[Fence, ...]) -> None:
        book = self.book
        rules: GroupRules = dataclasses.replace(
            book.rules,
            fences=fences,
            # So that all that ended above any position is still known.
            overtaken_max=max(1, book.closed.most // partitions // 2),
            open_bytes_max=max(1, self.asked.buffer_bytes // partitions),
        )
        book.rules = rules


def _partly(topic: str, missing: Sequence[int]) -> str:
    return (
        f"the state has no position for partitions {', '.join(map(str, missing))} of {topic}: "
        "others of its group read them when it was saved. Where each trainer goes on from a state "
        "of its own, and those have all partitions: subscribe(..., one_of_several=True). A single "
        "one goes on without a state, from where the group stands"
    )


def _record(entry: Entry) -> Sample | SessionClosed | SampleRevised | None:
    """The record; None if it is not one of this topic."""
    try:
        record = codec.from_msgpack(entry.value or b"")
    except BadRecord:
        return None
    return record if isinstance(record, Sample | SessionClosed | SampleRevised) else None
