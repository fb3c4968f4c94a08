"""Task dumps of a running service: on SIGUSR1, and by itself when it makes no progress.

    kill -USR1 PID ──► a file that says what every task waits for; the service goes on
    no progress for `TURNSTREAM_STALL_AFTER_S` ──► the same, again after as long, until it moves

A service tells of its progress by a number that changes with it, and None while it has nothing to
do. Everything here is done by a thread of its own, so that it works while the event loop does not.

Invariant: a folder that was set and cannot be used is refused at the start; after that nothing
here ends a service or makes it wait, and what cannot be written is one line and leaves no file.
"""

import asyncio
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from streams.errors import BadSetting
from streams.operations.tasks import tasks_as_text
from streams.settings import PREFIX, Settings

KEPT = 20
"""Dumps of one process; older ones are removed."""
_LOOKS = 4
"""At the progress in the time after which it is a stall."""

Pulse = Callable[[], int | None]


class Watch:
    """Task dumps for one service, from `with` on."""

    def __init__(self, who: str, settings: Settings) -> None:
        """Nothing is watched yet; `who` is the service as its lines on stderr name it."""
        self.who = who
        self._pulse: Pulse = _idle
        self._folder_set = settings.dump_folder
        self._folder = Path()
        """As it was found when the block was entered."""
        self._no_dumps: str | None = None
        """Why there is none."""
        self._stall_after_s = settings.stall_after_s or None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True: write a dump. False: that is all."""
        self._thread: threading.Thread | None = None
        self._written: list[Path] = []
        self._numbered = 0

    def __enter__(self) -> Self:
        """Take the signal, where it can be had; else nothing is watched.

        Raises:
            BadSetting: the folder that was set cannot be used.
        """
        try:
            self._folder = _writable(self._folder_set or tempfile.gettempdir())
        except OSError as error:
            if self._folder_set is not None:
                where = f"{PREFIX}DUMP_FOLDER={self._folder_set}"
                raise BadSetting(f"{where}: no folder to write to: {error}") from error
            self._no_dumps = f"{error}; set {PREFIX}DUMP_FOLDER"
        try:
            self.take_signal()
        except (AttributeError, ValueError):  # no such signal here; not in the main thread
            return self
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = asyncio.get_event_loop_policy().get_event_loop()
        self._thread = threading.Thread(target=self._watch, name="turnstream-watch", daemon=True)
        self._thread.start()
        return self

    def ready(self, pulse: Pulse) -> None:
        """The service works, and this is its progress; whether it is watched is said."""
        self._pulse = pulse
        if self._thread is None:
            self._say("no task dumps and no watchdog: signals reach the main thread only")
            return
        if self._no_dumps is not None:
            self._say(f"no task dumps: {self._no_dumps}")
            return
        watchdog = "off" if self._stall_after_s is None else f"after {self._stall_after_s:g} s"
        self._say(f"SIGUSR1 writes a task dump to {self._folder}; stall watchdog {watchdog}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Watch no longer; the signal is ignored from here on."""
        if self._thread is not None:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            self._asked.put(False)
            self._thread.join(1.0)
            self._thread = None

    def take_signal(self) -> None:
        """Have SIGUSR1, whoever had it before."""
        # `put` of this queue may interrupt itself, which a lock or a print may not.
        signal.signal(signal.SIGUSR1, lambda *_: self._asked.put(True))

    def _watch(self) -> None:
        wait_s = None if self._stall_after_s is None else self._stall_after_s / _LOOKS
        seen, since_s = self._progress(), time.monotonic()
        while True:
            try:
                if not self._asked.get(timeout=wait_s):
                    return
                self._dump("as SIGUSR1 asked")
            except queue.Empty:
                now, now_s = self._progress(), time.monotonic()
                if now is None or now != seen:
                    seen, since_s = now, now_s
                elif self._stall_after_s is not None and now_s - since_s >= self._stall_after_s:
                    self._dump(f"no progress for {self._stall_after_s:g} s")
                    since_s = now_s

    def _progress(self) -> int | None:
        try:
            return self._pulse()
        except Exception:  # it is asked from another thread, in the middle of whatever goes on
            return None

    def _dump(self, why: str) -> None:
        try:
            text = f"{self.who}, process {os.getpid()}, {_now()}: {why}\n\n"
            text += tasks_as_text(self._loop)
            path = self._write(text)
        except Exception as error:  # a look at a service must not harm it
            self._say(f"no task dump: {type(error).__name__}: {error}")
            return
        self._say(f"task dump, {why}: {path}")

    def _write(self, text: str) -> Path:
        """Whole or not at all, for its owner's eyes only."""
        self._numbered += 1
        name = f"{self.who.replace(' ', '-')}-{os.getpid()}-{self._numbered:04}.txt"
        path = self._folder / name
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=self._folder, prefix=f".{name}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(aside).replace(path)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
        self._written.append(path)
        for old in self._written[:-KEPT]:
            old.unlink(missing_ok=True)
        self._written = self._written[-KEPT:]
        return path

    def _say(self, text: str) -> None:
        sys.stderr.write(f"{self.who}: {text}\n")
        sys.stderr.flush()


def _writable(path: str) -> Path:
    """The folder, made if need be, after a file was written there and removed."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return folder


def _idle() -> int | None:
    return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
