"""Starts `tests.log.sqlite_child`, reads what it says, and looks into the file it left."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from streams.log.interface import Entry
from streams.log.sqlite import SqliteLog
from tests.log.sqlite_child import SETTINGS

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS_MAX = 60


class Child:
    """One such process; ended, if need be by force, at the end of the block."""

    def __init__(self, *words: object) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `__exit__`
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.log.sqlite_child", *map(str, words)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=self._said.fileno(),
        )

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._said.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_lines(self, count: int) -> None:
        """Until it has said so much."""
        until_s = time.monotonic() + SECONDS_MAX
        while len(self.lines()) < count:
            assert self._process.poll() is None, "it ended early"
            assert time.monotonic() < until_s, f"no {count} lines in {SECONDS_MAX} s"
            time.sleep(0.005)

    def lines(self) -> list[str]:
        """What it said so far, in whole lines."""
        size = os.fstat(self._said.fileno()).st_size
        said = os.pread(self._said.fileno(), size, 0).decode()
        return said[: said.rfind("\n") + 1].splitlines()

    def kill(self) -> list[str]:
        """Kill -9; what it had said."""
        self._process.kill()
        self._process.communicate(timeout=SECONDS_MAX)
        return self.lines()

    def finish(self) -> list[str]:
        """Let its input end and wait for its end; what it said."""
        self._process.communicate(timeout=SECONDS_MAX)
        assert self._process.returncode == 0, self.lines()[-5:]
        return self.lines()


class Lock:
    """The write lock of the file, held by another connection of this process."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


def stored(path: Path) -> list[tuple[str, int]]:
    """Name and number of every entry of the turns; positions are checked on the way."""

    async def scenario() -> list[Entry]:
        async with asyncio.timeout(SECONDS_MAX), SqliteLog(path, SETTINGS, create=False) as log:
            topic = SETTINGS.turns_topic
            end = (await log.end_positions(topic))[0]
            reader = await log.read(topic, {0: 0})
            found: list[Entry] = []
            while len(found) < end:
                found += await reader.next_batch(5)
            return found

    found = asyncio.run(scenario())
    assert [entry.position.offset for entry in found] == list(range(len(found)))
    times_ms = [entry.timestamp_ms for entry in found]
    assert times_ms == sorted(times_ms)
    return [((entry.key or b"").decode(), int((entry.value or b"").split()[0])) for entry in found]


def acknowledged(lines: list[str]) -> dict[int, int]:
    """Numbers by position, as a writer said them."""
    return {int(at): int(number) for at, number in (line.split() for line in lines)}
