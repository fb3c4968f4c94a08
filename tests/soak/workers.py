"""The workers of a soak: processes, asked over HTTP what they did, by signal what they hold.

Invariant: no worker outlives its crew, and one that ends by itself ends the soak.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from tests.kafka.jars import ROOT
from tests.soak.memory import Memory, own_bytes
from tests.soak.watched_worker import ASK

_ADDRESS = re.compile(r"health and metrics on (http://\S+)")
_METRIC = re.compile(r"^turnstream_(\w+?)(?:_total)? ([\d.e+]+)$", re.MULTILINE)
ANSWER_SECONDS_MAX = 20.0


class Ended(Exception):
    """A worker is gone that nobody told to go."""


class Worker:
    """One process."""

    def __init__(self, name: str, folder: Path, environ: dict[str, str]) -> None:
        self.name = name
        self._folder = folder
        folder.mkdir(parents=True)
        self.peak_own = 0
        with (folder / "worker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.watched_worker"],
                cwd=ROOT,
                env={**os.environ, **environ, "SOAK_FOLDER": str(folder)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def text(self) -> str:
        return (self._folder / "worker.log").read_text("utf-8", errors="replace")

    def check(self) -> None:
        code = self._process.poll()
        if code is not None:
            last = "\n".join(self.text().splitlines()[-8:])
            raise Ended(f"{self.name} ended by itself, exit code {code}:\n{last}")

    async def metrics(self) -> dict[str, float]:
        """What it counts and shows; nothing while it does not answer yet."""
        self.check()
        address = _ADDRESS.search(self.text())
        if address is None:
            return {}
        patience = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
        async with (
            aiohttp.ClientSession(timeout=patience) as client,
            client.get(f"{address[1]}/metrics") as answer,
        ):
            return {name: float(value) for name, value in _METRIC.findall(await answer.text())}

    def note_peak(self) -> None:
        self.check()
        self.peak_own = max(self.peak_own, own_bytes(self._process.pid))

    async def memory(self) -> Memory:
        """Pages first: to be asked costs it some."""
        own = own_bytes(self._process.pid)
        answer = self._folder / "held.json"
        answer.unlink(missing_ok=True)
        self._process.send_signal(ASK)
        await until(answer.exists, ANSWER_SECONDS_MAX, f"{self.name} does not say what it holds")
        return Memory(held=sum(json.loads(answer.read_text()).values()), own=own)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        if self._process.stdin is not None:
            self._process.stdin.close()


class Crew:
    """Some workers of one group."""

    def __init__(self, folder: Path, environ: dict[str, str], size: int) -> None:
        self._folder, self._environ, self._size = folder, environ, size
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        for number in range(1, self._size + 1):
            name = f"w{number}"
            self.workers.append(Worker(name, self._folder / name, self._environ))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            worker.close()

    async def metrics(self) -> list[dict[str, float]]:
        return list(await asyncio.gather(*(worker.metrics() for worker in self.workers)))

    async def memories(self) -> list[Memory]:
        return [await worker.memory() for worker in self.workers]

    def check(self) -> None:
        for worker in self.workers:
            worker.check()

    async def watch(self, every_s: float = 2.0) -> None:
        """Note the peaks, until cancelled."""
        while True:
            for worker in self.workers:
                worker.note_peak()
            await asyncio.sleep(every_s)


async def until(holds: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Wait for something, bounded."""
    deadline_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{otherwise}, in {seconds:g} s")
        await asyncio.sleep(0.05)
