"""A thread that hands events to the log, so that environments that block need no event loop.

    any thread ──► put ──► queue, bounded ──► one thread, one loop, one log ──► durable
                    └──► a future: its position, or why not

An event that the log did not take is tried again until its time is over: a repeated event
changes nothing for a reader. What failed is sent again before anything newer is, so that events
of a session stay in order. Nothing runs before the first event, and a process that was forked
starts a thread of its own.

Invariant: every wait is bounded, by whoever waits and by the log; a future is always settled.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from streams.adapters.environments.problems import NotRecorded
from streams.errors import LogError, TooLarge, WrongLog, WrongTopic
from streams.log.interface import Log, Outgoing, Position, Sending
from streams.log.opening import open_log
from streams.settings import Settings

Handed = concurrent.futures.Future[Position]
OpenLog = Callable[[Settings], Log]

QUEUE_EVENTS_MAX = 1_000
_BATCH_EVENTS = 256
_RETRY_S = (0.1, 2.0)
"""Between two tries while the log is away, at first and at most."""


@dataclass(frozen=True, slots=True)
class _Job:
    outgoing: Outgoing
    until_s: float
    """On the monotonic clock; afterwards it is not tried again."""
    future: Handed


def create_log(settings: Settings) -> Log:
    """The log of the settings, made if it is a file that is not there."""
    return open_log(settings, create=True)


class Publisher:
    """Hands events to a log of its own, in a thread of its own."""

    def __init__(
        self,
        settings: Settings,
        *,
        queue_max: int = QUEUE_EVENTS_MAX,
        log: OpenLog = create_log,
    ) -> None:
        """Nothing runs and nothing is opened yet."""
        self._settings = settings
        self._queue_max = queue_max
        self._open_log = log
        self.counts: Counter[str] = Counter()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self.source = f"env-{uuid.uuid4().hex[:16]}"
        """One process start, and one fork."""
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._unsettled = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._closing = False
        self._close_by_s = float("inf")
        self._troubled = False
        self.trouble = "no answer"
        """What the log said last of what it did not do."""

    def after_fork(self) -> bool:
        """Start anew in a child process; whether this is one."""
        if self._pid == os.getpid():
            return False
        self._begin()
        return True

    def put(self, outgoing: Outgoing, patience_s: float, *, always: bool = False) -> Handed:
        """Hand an event over; never waits.

        Args:
            outgoing: What to store.
            patience_s: How long it is tried.
            always: Past the bound of the queue: for what ends something that began within it.

        Returns:
            Settled when it is durable, or with `NotRecorded` or `TooLarge`.
        """
        future: Handed = concurrent.futures.Future()
        job = _Job(outgoing, time.monotonic() + patience_s, future)
        with self._lock:
            if self._closing:
                return self._refused(job, "the recorder is closed")
            if self._unsettled >= self._queue_max and not always:
                return self._refused(job, f"{self._unsettled} events wait for the log")
            self._unsettled += 1
            self._waiting.append(job)
            self._start()
            self._call(self._set_wake)
        return future

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call back in the thread, some time from now."""
        with self._lock:
            if self._closing:
                return
            self._start()
            loop = self._loop
            assert loop is not None, "the thread was started"
            self._call(lambda: loop.call_later(seconds, call))

    def close(self, wait_s: float) -> int:
        """Store what is left, bounded; how many events were not."""
        with self._lock:
            self._closing = True
            self._close_by_s = time.monotonic() + wait_s
            thread, lost = self._thread, self.counts["lost"]
            if thread is not None:
                self._call(self._set_wake)
        if thread is not None:
            thread.join(wait_s)
        with self._lock:
            left = list(self._waiting)
            self._waiting.clear()
        for job in left:
            self._settle(job, NotRecorded(f"{job.outgoing}: the recorder was closed before"))
        return self._unsettled + self.counts["lost"] - lost

    def _refused(self, job: _Job, why: str) -> Handed:
        self.counts["refused"] += 1
        job.future.set_exception(NotRecorded(f"{job.outgoing}: {why}"))
        return job.future

    def _start(self) -> None:
        if self._thread is None:
            self._loop = asyncio.new_event_loop()
            self._wake = asyncio.Event()
            # A daemon: a log that hangs must not keep the process from ending.
            self._thread = threading.Thread(
                target=self._run, name="turnstream-environments", daemon=True
            )
            self._thread.start()

    def _call(self, call: Callable[[], object]) -> None:
        assert self._loop is not None, "the thread was started"
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(call)

    def _set_wake(self) -> None:
        assert self._wake is not None, "the thread was started"
        self._wake.set()

    def _run(self) -> None:
        assert self._loop is not None, "the thread was started"
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._main())

    async def _main(self) -> None:
        assert self._wake is not None, "the thread was started"
        log = self._open_log(self._settings)
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while batch := self._next():
                    try:
                        await self._store(log, batch)
                    except Exception as error:  # a defect costs these events, never the thread
                        for job in batch:
                            self._settle(job, NotRecorded(f"{job.outgoing}: {error!r:.500}"))
                if self._closing:
                    return
        finally:
            with contextlib.suppress(LogError):  # every event has been settled, well or not
                await log.close()

    def _next(self) -> list[_Job]:
        with self._lock:
            count = min(len(self._waiting), _BATCH_EVENTS)
            return [self._waiting.popleft() for _ in range(count)]

    async def _store(self, log: Log, left: list[_Job]) -> None:
        """All of them, in order, each until its time is over."""
        wait_s, most_s = _RETRY_S
        while left := await self._tried(log, left):
            self.counts["retries"] += 1
            now_s = time.monotonic()
            for job in left:
                if min(job.until_s, self._close_by_s) <= now_s:
                    why = "the log did not take it in time; it may still be stored"
                    self._settle(job, NotRecorded(f"{job.outgoing}: {why}: {self.trouble}"))
            left = [job for job in left if not job.future.done()]
            if left:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, most_s)

    async def _tried(self, log: Log, jobs: list[_Job]) -> list[_Job]:
        """Send them once; those that have to be sent again, in order."""
        sent: list[tuple[_Job, Sending]] = []
        unsent = jobs
        try:
            for at, job in enumerate(jobs):
                unsent = jobs[at:]  # and nothing behind it goes before it
                try:
                    sent.append((job, await log.send(job.outgoing)))
                except TooLarge as error:
                    self._settle(job, error)
            unsent = []
        except (WrongTopic, WrongLog) as error:  # somebody has to put it right first
            for job in unsent:
                self._settle(job, NotRecorded(f"{job.outgoing}: {error}"))
            unsent = []
        except LogError as error:
            self._say(error)
        failed: list[_Job] = []
        for job, sending in sent:
            try:
                self._settle(job, await sending)
            except TooLarge as error:  # the broker's own limit; a second try changes nothing
                self._settle(job, error)
            except LogError as error:
                self._say(error)
                failed.append(job)
        return failed + unsent

    def _say(self, error: LogError) -> None:
        """Once in each time that the log takes nothing: whoever waits for it learns why."""
        if not self._troubled:
            sys.stderr.write(f"turnstream environments: {error}; trying again\n")
        self._troubled, self.trouble = True, str(error)

    def _settle(self, job: _Job, answer: Position | Exception) -> None:
        if job.future.done():
            return
        stored = isinstance(answer, Position)
        with self._lock:
            self._unsettled -= 1
            self.counts["stored" if stored else "lost"] += 1
        if isinstance(answer, Position):
            self._troubled = False
            job.future.set_result(answer)
        else:
            job.future.set_exception(answer)
