"""The writer of the embedded log: all that waits becomes one transaction, with one fsync.

    send ──┐                BEGIN IMMEDIATE
    send ──┼──► queue ──►   positions, COMMIT   ──► one call for all of them
    send ──┘                sqlite_thread           back in the loop

What arrives while a transaction is under way waits for the next one, so the more wait, the more
share an fsync. The senders that one call wakes send again before the thread gets its turn, so
they stay together.

Invariant: entries stand in the order they were sent; no more than `QUEUE_BYTES_MAX` wait, or
one larger job alone.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from streams.errors import LogAway, LogError
from streams.log.interface import Outgoing
from streams.log.sqlite_file import LogFile
from streams.log.sqlite_jobs import Job, Sent, Work
from streams.log.sqlite_thread import WriterThread
from streams.log.sqlite_transaction import Pen
from streams.settings import Settings

QUEUE_BYTES_MAX = 64 << 20
_LAST_S = 1.0
"""For a thread that was told to give up; one that hangs in the disk is left behind."""

Answer = TypeVar("Answer")


class SqliteWriter:
    """Takes jobs in the event loop and has them done in order."""

    def __init__(self, file: LogFile, settings: Settings, grown: Callable[[str], None]) -> None:
        """Nothing is opened yet; `grown` hears in the loop of each topic with new entries."""
        self._file = file
        self._settings = settings
        self._grown = grown
        self._thread: WriterThread | None = None
        self._waiting: deque[tuple[Job, asyncio.Future[None]]] = deque()
        self._bytes = 0
        self._failures = 0
        self._closed = False
        self._emptied: asyncio.Future[None] | None = None

    @property
    def transactions(self) -> int:
        """Committed by this writer."""
        return 0 if self._thread is None else self._thread.transactions

    async def send(self, outgoing: Outgoing) -> Sent:
        """Hand an entry over, in order; waits only while the queue is full."""
        sent = Sent(outgoing, self._file.path, self._settings.publish_timeout_s)
        await self._hand_over(sent)
        return sent

    async def do(self, what: str, call: Callable[[Pen], Answer], size_bytes: int = 0) -> Answer:
        """What the call gives, once the transaction that it was part of is durable."""
        seconds = self._settings.publish_timeout_s
        work = Work(what, call, size_bytes, self._file.path, seconds)
        await self._hand_over(work)
        return await work.answer()

    async def close(self) -> None:
        """Write what is left, bounded, and let go of the file."""
        self._closed = True
        try:
            async with asyncio.timeout(self._settings.publish_timeout_s):
                if self._bytes:
                    self._emptied = asyncio.get_running_loop().create_future()
                    await self._emptied
                if self._thread is not None:
                    self._thread.jobs.put(None)
                    await self._thread.ended
        except TimeoutError:
            if self._thread is not None:
                self._thread.give_up()
                await asyncio.wait({self._thread.ended}, timeout=_LAST_S)

    async def _hand_over(self, job: Job) -> None:
        if self._closed:
            raise LogError(f"{job.what}: the log is closed")
        if self._fits(job) and not self._waiting:
            self._take(job)
            return
        # It is taken by whoever makes room, so that nobody overtakes it.
        taken = asyncio.get_running_loop().create_future()
        self._waiting.append((job, taken))
        try:
            async with asyncio.timeout_at(job.deadline_s):
                await taken
        except TimeoutError:
            seconds = self._settings.publish_timeout_s
            detail = f"no room in front of {self._file.path} in {seconds:g} s; it is not stored"
            raise LogAway(f"{job.what}: {detail}") from None

    def _fits(self, job: Job) -> bool:
        return not self._bytes or self._bytes + job.size_bytes <= QUEUE_BYTES_MAX

    def _take(self, job: Job) -> None:
        job.failures = self._failures
        self._bytes += job.size_bytes
        if self._thread is None:
            busy_s = self._settings.request_timeout_s
            self._thread = WriterThread(self._file, busy_s, self._settled)
        self._thread.jobs.put(job)

    def _settled(
        self, jobs: list[Job], answers: list[object], failures: int, grown: frozenset[str]
    ) -> None:
        """In the loop: what became of a transaction."""
        self._bytes -= sum(job.size_bytes for job in jobs)
        for job, answer in zip(jobs, answers, strict=True):
            job.settle(answer)
        failed = failures > self._failures
        self._failures = failures
        while self._waiting and (failed or self._fits(self._waiting[0][0])):
            job, taken = self._waiting.popleft()
            if taken.done():  # its sender has given up
                continue
            taken.set_result(None)
            if failed:  # it was sent behind what failed
                job.settle(answers[0])
            else:
                self._take(job)
        for topic in grown:
            self._grown(topic)
        if self._emptied is not None and not self._bytes and not self._emptied.done():
            self._emptied.set_result(None)
