"""`turnstream up` as a user has it: a process, what it printed, and an end by a signal.

Invariant: the process is gone when the block is left, whatever happened in it.
"""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from schemas import codec
from schemas.record import Record
from schemas.samples import Sample, SessionClosed
from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from tests.cli.command import COMMAND
from tests.drift.qwen3 import tokenizer_folder

PATIENCE_S = 60.0
LAST_LINE = "Ctrl-C stops it"
QUIET = {"TURNSTREAM_METRICS_PORT": "0", "http_proxy": "http://127.0.0.1:9"}
"""No fixed port, and a proxy that nobody may use for loopback."""


@dataclass
class Running:
    """A service that was started and said that it runs."""

    process: "subprocess.Popen[bytes]"
    printed: Path

    @property
    def said(self) -> str:
        return self.printed.read_text("utf-8")

    def found(self, pattern: str) -> str:
        """What the pattern's group matches in the output."""
        match = re.search(pattern, self.said, re.MULTILINE)
        assert match is not None, f"{pattern!r} is not in: {self.said}"
        return match[1]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code after that signal."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def until(
    holds: Callable[[], object], what: Callable[[], str], seconds: float = PATIENCE_S
) -> None:
    """Wait for something that another process does, bounded; `what` says what came instead."""
    until_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until_s, what()
        time.sleep(0.05)


@contextmanager
def started(
    folder: Path, *arguments: str | Path, until: str, **variables: str
) -> Iterator[Running]:
    """The command, once its output holds a text; killed at the end if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    printed = folder / f"said-{time.monotonic_ns()}"
    with printed.open("wb") as said:
        process = subprocess.Popen(
            [COMMAND, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd=folder,
            env={**os.environ, **QUIET, **variables},
        )
    running = Running(process, printed)
    try:
        until_s = time.monotonic() + PATIENCE_S
        while until not in running.said:
            assert process.poll() is None, f"ended with {process.returncode}: {running.said}"
            assert time.monotonic() < until_s, f"{until!r} does not come: {running.said}"
            time.sleep(0.05)
        yield running
    finally:
        process.kill()
        process.wait(PATIENCE_S)


@dataclass
class Up:
    """What a user of `up` knows."""

    running: Running
    data: Path

    @property
    def url(self) -> str:
        return self.running.found(r"^turnstream is up on (http://\S+)$")

    @property
    def control_key(self) -> str:
        return self.running.found(r"^  control key (tc-\S+)$")

    @property
    def base_url(self) -> str:
        return self.running.found(r"^  export OPENAI_BASE_URL=(\S+)$")

    @property
    def key(self) -> str:
        return self.running.found(r"^  export OPENAI_API_KEY=(\S+)$")

    @property
    def session_id(self) -> str:
        return self.running.found(r"^session (\S+) is open")

    @property
    def log(self) -> Path:
        return self.data / "turnstream.db"

    def closed(self, session_id: str) -> SessionClosed:
        """The outcome of a session, waiting for it."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            for record in read(self.log, Settings().samples_topic, session_id):
                if isinstance(record, SessionClosed):
                    return record
            time.sleep(0.1)
        raise TimeoutError(f"session {session_id} does not close")

    def samples(self, session_id: str) -> list[Sample]:
        """Those of a session that is closed."""
        records = read(self.log, Settings().samples_topic, session_id)
        return [record for record in records if isinstance(record, Sample)]

    def events(self, session_id: str) -> list[Record]:
        """The events of a session so far."""
        return read(self.log, Settings().turns_topic, session_id)


def read(file: Path, topic: str, session_id: str) -> list[Record]:
    """What a topic of an embedded log holds of a session."""

    async def everything() -> list[Record]:
        found: list[Record] = []
        async with SqliteLog(file, Settings(log=str(file)), create=False) as log:
            end = (await log.end_positions(topic)).get(0, 0)
            reader = await log.read(topic, {0: (await log.start_positions(topic)).get(0, 0)})
            while reader.positions[0] < end:
                batch = await reader.next_batch(1.0)
                found += [codec.from_msgpack(entry.value or b"") for entry in batch]
            await reader.close()
        return found

    records = asyncio.run(everything())
    return [each for each in records if getattr(each, "session_id", None) == session_id]


@contextmanager
def up(folder: Path, *arguments: str | Path, **variables: str) -> Iterator[Up]:
    """`turnstream up` over `folder/data`, on a free port, with the real Qwen3 tokenizer."""
    data = folder / "data"
    options = ["--data", data, "--port", "0", "--tokenizer", tokenizer_folder(), *arguments]
    with started(folder, "up", *options, until=LAST_LINE, **variables) as running:
        yield Up(running, data)
