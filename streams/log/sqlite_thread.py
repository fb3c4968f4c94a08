"""The thread that writes the embedded log: transactions, and the checkpoints between them.

A transaction that fails stores nothing, and what was handed over behind it fails too, up to
where the senders could know: else an entry would stand without the one that was sent before it.

Checkpoints are ours and hold the write lock (RESTART, never PASSIVE): up to SQLite 3.51.2 one
that runs beside another connection's commit can lose what was committed. They wait until no
reader is left in the file of the write-ahead log, so that it is written again from its start
and stays small.

Invariant: jobs are settled after the fsync of their transaction, never before.
"""

import asyncio
import contextlib
import logging
import queue
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable

from streams.errors import LogAway, LogError, LogFull
from streams.log.sqlite_file import PAGE_BYTES, LogFile, is_busy
from streams.log.sqlite_jobs import Job
from streams.log.sqlite_transaction import Pen

TRANSACTION_BYTES_MAX = 16 << 20
TRANSACTION_JOBS_MAX = 4096
CHECKPOINT_BYTES = 8 << 20
"""Written since the last one. Rarer ones copy less in all, but each holds up what waits."""
CHECKPOINT_WAIT_S = 5.0
"""For writers and readers. Who reads for longer holds up the writers, so the next try comes
after `CHECKPOINT_PAUSE_S` only."""
CHECKPOINT_PAUSE_S = 30.0
_CHECKPOINT_RETRY_S = 0.05

_PAGES_TOUCHED = 2
"""By a transaction however small: a leaf and what leads to it."""
_RETRY_S = (0.0005, 0.002)
_LOGGER = logging.getLogger("turnstream.log")

Settle = Callable[[list[Job], list[object], int, frozenset[str]], None]


class WriterThread:
    """Does the jobs that are put into `jobs`, until it is told to end."""

    def __init__(self, file: LogFile, busy_s: float, settle: Settle) -> None:
        """It runs; `settle` is called in the loop that is running now."""
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        """None is the end."""
        self.transactions = 0
        self._file = file
        self._busy_s = busy_s
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._connection: sqlite3.Connection | None = None
        self._failures = 0
        self._failure = LogError("the writer has ended")
        self._given_up = False
        self._unmoved_bytes = 0
        self._checkpoint_after_s = 0.0
        # A daemon: a disk that hangs must not keep the process from ending.
        threading.Thread(target=self._run, name="turnstream-log-writer", daemon=True).start()

    def give_up(self) -> None:
        """Nothing more is begun."""
        self._given_up = True
        self.jobs.put(None)

    def _run(self) -> None:
        waiting: deque[Job] = deque()
        ended = False
        try:
            while True:
                ended = self._fetch(waiting, ended=ended)
                if not waiting or self._given_up:
                    break
                self._transact(self._next_group(waiting))
                self._checkpoint_if_due()
        except RuntimeError:
            pass  # the loop is closed, so nobody waits for an answer
        finally:
            self._close()
            with contextlib.suppress(RuntimeError):  # as above
                self._loop.call_soon_threadsafe(_done, self.ended)

    def _fetch(self, waiting: deque[Job], *, ended: bool) -> bool:
        """Add all that was handed over, waiting for the first; whether that was the end."""
        while not ended and not (waiting and self.jobs.empty()):
            job = self.jobs.get()
            if job is None:
                return True
            waiting.append(job)
        return ended

    def _next_group(self, waiting: deque[Job]) -> list[Job]:
        group: list[Job] = []
        size_bytes = 0
        while waiting and size_bytes < TRANSACTION_BYTES_MAX and len(group) < TRANSACTION_JOBS_MAX:
            job = waiting.popleft()
            size_bytes += job.size_bytes
            group.append(job)
        return group

    def _transact(self, group: list[Job]) -> None:
        # Those that were handed over before the last failure was known are behind it.
        behind = [job for job in group if job.failures < self._failures]
        group = [job for job in group if job.failures == self._failures]
        if behind:
            self._tell(behind, [self._failure] * len(behind))
        if not group:
            return
        try:
            answers, grown = self._committed(group)
        except Exception as error:
            self._failure = self._recovered(error)
            self._failures += 1
            answers, grown = [self._failure] * len(group), frozenset()
        self._tell(group, answers, grown)

    def _committed(self, group: list[Job]) -> tuple[list[object], frozenset[str]]:
        """What each job gave, durable by now, and the topics that have grown."""
        if self._connection is None:
            self._connection = self._file.open()
        self._file.check_in_place()
        self._begin(self._connection)
        pen = Pen(self._connection, time.time_ns() // 1_000_000)
        answers = [_written(job, pen) for job in group]
        pen.flush()
        self._connection.execute("COMMIT")
        self.transactions += 1
        self._unmoved_bytes += sum(job.size_bytes for job in group) + _PAGES_TOUCHED * PAGE_BYTES
        return answers, pen.grown

    def _begin(self, connection: sqlite3.Connection) -> None:
        """SQLite's own wait grows up to 100 ms a look, and a busy writer leaves gaps of less."""
        until_s = time.monotonic() + self._busy_s
        connection.execute("PRAGMA busy_timeout = 0")
        while True:
            if self._given_up:
                raise LogError("the log is closed")
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                if not is_busy(error) or time.monotonic() > until_s:
                    raise
                time.sleep(random.uniform(*_RETRY_S))
            else:
                return

    def _recovered(self, error: Exception) -> LogError:
        """The error in our words; a connection that may be spoilt is dropped."""
        told = error if isinstance(error, LogError) else self._file.told(error)
        if not isinstance(error, LogError | sqlite3.Error):
            _LOGGER.error("the writer of %s failed", self._file.path, exc_info=error)
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop()
        if not isinstance(told, LogAway | LogFull):
            self._drop()
        return told

    def _checkpoint_if_due(self) -> None:
        if self._unmoved_bytes < CHECKPOINT_BYTES or self._connection is None:
            return
        if time.monotonic() >= self._checkpoint_after_s:
            self._checkpoint(self._connection)

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Move the write-ahead log into the database; a failure costs time, never an entry."""
        pause_s = CHECKPOINT_PAUSE_S
        try:
            connection.execute(f"PRAGMA busy_timeout = {int(CHECKPOINT_WAIT_S * 1000)}")
            busy, pages, _ = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except sqlite3.Error as error:
            _LOGGER.warning("checkpoint: %s", self._file.told(error))
        else:
            if not busy:
                self._unmoved_bytes = 0
                return
            if pages < 0:  # it did not begin: another process is at it
                pause_s = _CHECKPOINT_RETRY_S
        self._checkpoint_after_s = time.monotonic() + pause_s

    def _close(self) -> None:
        # SQLite itself does this for the last of all connections only.
        if self._connection is not None and self._unmoved_bytes and not self._given_up:
            self._checkpoint(self._connection)
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):  # it is dropped for what it failed at before
                connection.close()

    def _tell(
        self, jobs: list[Job], answers: list[object], grown: frozenset[str] = frozenset()
    ) -> None:
        self._loop.call_soon_threadsafe(self._settle, jobs, answers, self._failures, grown)


def _written(job: Job, pen: Pen) -> object:
    try:
        return job.write(pen)
    except LogError as refused:
        return refused


def _done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
