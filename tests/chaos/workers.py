"""Workers as processes: started, hurt and ended by their id, everything they say in files.

    folder/w3/worker.log     standard output and error
    folder/w3/counts.json    what the worker counted, a quarter of a second old at most
    folder/pace              seconds per event, for all of them

Invariant: no worker outlives its crew; one that nobody hurt and that ended is remembered.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kafka.jars import ROOT

TERM_SECONDS_MAX = 75.0
_RECOVERED = re.compile(r"recovered (\d+) rows .* in (\d+) ms")


class Worker:
    """One process."""

    module = "tests.chaos.faulty_worker"

    def __init__(self, name: str, folder: Path, environ: dict[str, str]) -> None:
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True)
        self.expected_to_end = False
        self.stopped = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module],
                cwd=ROOT,
                env={**os.environ, **environ, "CHAOS_FOLDER": str(folder)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> Path:
        return self.folder / "worker.log"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def recoveries_ms(self) -> list[int]:
        """How long it took to load its partitions, each time it had to."""
        return [int(found[2]) for found in _RECOVERED.finditer(self.text())]

    @property
    def counts(self) -> Counter[str]:
        path = self.folder / "counts.json"
        return Counter(json.loads(path.read_text())) if path.exists() else Counter()

    def text(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    def said(self, lines: int = 8) -> str:
        return "\n".join(self.text().splitlines()[-lines:])

    def kill(self) -> None:
        """`kill -9`; works on a stopped process too."""
        self.expected_to_end = True
        self._process.kill()
        self._process.wait(10)

    def stop(self) -> None:
        self.stopped = True
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.stopped = False
        self._process.send_signal(signal.SIGCONT)

    def doom(self) -> None:
        """Let it kill itself at its next marker."""
        self.expected_to_end = True
        (self.folder / "die").touch()

    def spare(self) -> None:
        (self.folder / "die").unlink(missing_ok=True)
        self.expected_to_end = not self.alive

    async def terminate(self) -> int | str:
        """SIGTERM; the exit code, or that it hung and had to be killed."""
        self.expected_to_end = True
        self._process.send_signal(signal.SIGTERM)
        if await self.ended(TERM_SECONDS_MAX):
            return self._process.returncode
        self.kill()
        return "hung"

    async def ended(self, seconds: float) -> bool:
        return await _until(lambda: not self.alive, seconds)

    async def recovered(self, seconds: float) -> bool:
        """Until it has loaded partitions for the first time."""
        return await _until(lambda: bool(self.recoveries_ms) or not self.alive, seconds)

    def close(self) -> None:
        if self.alive:
            self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Crew:
    """The workers of a run, and whoever starts the dead ones again."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.environ = dict(environ)
        self.pace_file = folder / "pace"
        self.started: list[Worker] = []
        self.unexpected: list[str] = []
        """Ends that nobody asked for: the worker, its exit code, its last words."""
        self.pace(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.started:
            worker.close()

    def pace(self, seconds: float) -> None:
        """Slow every worker down by so much an event, or stop doing so."""
        new = self._folder / "pace.new"
        new.write_text(str(seconds))
        new.replace(self.pace_file)

    def start(self, **environ: str) -> Worker:
        name = f"w{len(self.started) + 1}"
        all_of_it = {**self.environ, "CHAOS_PACE": str(self.pace_file), **environ}
        worker = Worker(name, self._folder / name, all_of_it)
        self.started.append(worker)
        return worker

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.started if worker.alive]

    @property
    def able(self) -> list[Worker]:
        """Those that live and are not stopped."""
        return [worker for worker in self.living if not worker.stopped]

    def supervise(self, size: int) -> None:
        """Note who ended by himself; start new ones until there are so many."""
        for worker in self.started:
            if not worker.alive and not worker.expected_to_end:
                worker.expected_to_end = True
                last = worker.said(1)
                self.unexpected.append(f"{worker.name} exit {worker.exit_code}: {last:.300}")
        while len(self.living) < size:
            self.start()

    def counts(self) -> Counter[str]:
        """What all of them counted, the dead included."""
        return sum((worker.counts for worker in self.started), Counter())

    def recoveries_ms(self) -> list[int]:
        return [ms for worker in self.started for ms in worker.recoveries_ms]

    def kill_all(self) -> None:
        for worker in self.living:
            worker.kill()

    async def terminate_all(self) -> list[int | str]:
        return list(await asyncio.gather(*(worker.terminate() for worker in self.living)))


async def _until(holds: Callable[[], bool], seconds: float) -> bool:
    deadline_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(0.05)
    return True
