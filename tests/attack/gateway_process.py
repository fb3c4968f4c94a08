"""A real gateway process under attack: its sessions, its memory, its latency, its log lines.

Invariant: the process is gone when the block is left.
"""

import asyncio
import contextlib
import json
import os
import re
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from streams.adapters.client import Turnstream
from tests.cli.command import turnstream
from tests.cli.up_process import Running, started
from tests.drift.qwen3 import tokenizer_folder
from tests.soak.memory import own_bytes

RUNS = "turnstream gateway: http"
SECONDS_MAX = 300.0
LOOK_SECONDS_MAX = 60.0
LOOK_INTERVAL_S = 0.05
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
MB = 1e6


@dataclass
class Victim:
    """A gateway that runs on a log of its own, with a scripted engine."""

    running: Running
    log: Path
    control_key: str
    peak_bytes: int = 0

    @property
    def port(self) -> int:
        return int(self.running.found(r"^turnstream gateway: http://127\.0\.0\.1:(\d+),"))

    @property
    def pid(self) -> int:
        return self.running.process.pid

    def memory_bytes(self) -> int:
        """Pages that it shares with no other process, now."""
        return own_bytes(self.pid)

    def stopwatch(self) -> Callable[[], float]:
        """Seconds since now, or what the gateway's threads worked since, whichever is less.

        On a busy machine everything takes long; what the gateway itself does in between does not.
        """

        def cpu_s() -> float:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) * TICK_S

        began_s, began_cpu_s = time.monotonic(), cpu_s()
        return lambda: min(time.monotonic() - began_s, cpu_s() - began_cpu_s + TICK_S)

    def files_max(self) -> int:
        """How many files and sockets it may have open."""
        limits = Path(f"/proc/{self.pid}/limits").read_text()
        found = re.search(r"^Max open files +(\d+)", limits, re.MULTILINE)
        assert found is not None, limits
        return int(found[1])

    def descriptors(self) -> int:
        """Files and sockets that it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def open_session(self) -> str:
        """The key of a new session, which expires by itself."""
        control = Turnstream(f"http://127.0.0.1:{self.port}", self.control_key)
        return control.session().__enter__().key

    async def asked(self, path: str, key: str = "none", body: bytes | None = None) -> int:
        """The status of a request on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            method = "GET" if body is None else "POST"
            writer.write(head(method, path, key, f"content-length: {len(body or b'')}"))
            writer.write(body or b"")
            return await status_of(reader)
        finally:
            await hang_up(writer)

    @contextlib.asynccontextmanager
    async def watched(self) -> "AsyncIterator[Watched]":
        """Ask for /healthz and note the memory, again and again while the block runs.

        The look that is under way when the block ends counts: what holds the gateway up may hold
        up the block's last answer as well.
        """
        watched, over = Watched(self.memory_bytes()), asyncio.Event()
        watching = asyncio.create_task(self._watch(watched, over))
        try:
            yield watched
        finally:
            over.set()
            await watching

    async def _watch(self, watched: "Watched", over: asyncio.Event) -> None:
        while not over.is_set():
            took_s = self.stopwatch()
            try:
                async with asyncio.timeout(LOOK_SECONDS_MAX):
                    healthy = await self.asked("/healthz") == 200
            except (OSError, TimeoutError, ValueError):
                healthy = False
            watched.looks += 1
            watched.failed += not healthy
            watched.slowest_s = max(watched.slowest_s, took_s())
            watched.peak_bytes = max(watched.peak_bytes, self.memory_bytes())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), LOOK_INTERVAL_S)


@dataclass
class Watched:
    """What the gateway was like meanwhile."""

    before_bytes: int
    peak_bytes: int = 0
    looks: int = 0
    failed: int = 0
    slowest_s: float = 0.0
    """The longest look, by the gateway's stopwatch."""

    @property
    def grown_mb(self) -> float:
        return (self.peak_bytes - self.before_bytes) / MB


@contextlib.contextmanager
def files_at_most(soft: int) -> Iterator[None]:
    """What this process, and one that it starts, may have open; the soft limit as it was after."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, most), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def head(method: str, path: str, key: str, *fields: str) -> bytes:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", f"authorization: Bearer {key}", *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def hang_up(*writers: asyncio.StreamWriter) -> None:
    """Close connections at once, whatever waits to be sent on them."""
    for writer in writers:
        writer.transport.abort()
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def status_of(reader: asyncio.StreamReader) -> int:
    """The status of the next answer.

    Raises:
        ValueError: the connection was closed without one.
    """
    async with asyncio.timeout(SECONDS_MAX):
        line = await reader.readline()
    if not line.startswith(b"HTTP/1.1 "):
        raise ValueError(f"no answer: {line!r}")
    return int(line.split()[1])


@contextlib.contextmanager
def victim(folder: Path, **variables: str) -> Iterator[Victim]:
    """A gateway of its own; ended with the block."""
    script = folder / "script.json"
    script.write_text(json.dumps({"otherwise": {"text": "Yes.", "gap_ms": 200}}), "utf-8")
    log = folder / "run.db"
    options = ["--engine", f"scripted:{script}", "--tokenizer", str(tokenizer_folder())]
    given = {"TURNSTREAM_GATEWAY_PORT": "0", **variables}
    with started(folder, "gateway", "--log", log, *options, until=RUNS, **given) as running:
        printed = turnstream("gateway", "--log", log, "--print-control-key")
        yield Victim(running, log, printed.out.strip())
