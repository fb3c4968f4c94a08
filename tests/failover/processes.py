"""Engine and gateways as processes: started, killed and started again at the same address.

Invariant: whatever happens, every process is gone when its block is left.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np

from streams.adapters.engines.scripted import Sampled, Script
from streams.settings import Settings
from tests.adapters.gateway.outcomes import Generated
from tests.adapters.gateway.updates import Joined, joined
from tests.chaos.arena import environ_of
from tests.cli.command import COMMAND
from tests.drift.qwen3 import tokenizer_folder
from tests.kafka.broker import free_port

START_SECONDS_MAX = 600.0
STOP_SECONDS_MAX = 120.0
SECRET = "a secret that all gateways of the test share"
CONTROL_KEY = "the control key of the gateways of the test"


@dataclasses.dataclass(frozen=True)
class Engine:
    """A scripted engine in a process of its own, which outlives every gateway."""

    url: str
    journal: Path
    pid: int

    def sampled(self, session_id: str) -> Counter[Generated]:
        """What it says it gave in a session; generations that nobody waited for are in it too."""
        return self.sampled_by_session()[session_id]

    def sampled_by_session(self) -> defaultdict[str, Counter[Generated]]:
        """The same of all."""
        found: defaultdict[str, Counter[Generated]] = defaultdict(Counter)
        for session_id, turns in self.joined_by_session().items():
            found[session_id].update(turn.generated for turn in turns)
        return found

    def joined_by_session(self) -> dict[str, list[Joined]]:
        """The same with versions and joins: what was stopped and gone on with is one."""
        lines = [json.loads(text) for text in self.journal.read_text("utf-8").splitlines()]
        entries: defaultdict[str, list[Sampled]] = defaultdict(list)
        for line in sorted(lines, key=itemgetter("call")):
            ids = np.asarray(line["input_ids"], np.int32)
            entries[line["routing_key"]].append(Sampled(**{**line, "input_ids": ids}))
        return {session_id: joined(own) for session_id, own in entries.items()}


@contextlib.contextmanager
def engine(folder: Path, script: Script, *, journal_keep: int | None = None) -> Iterator[Engine]:
    """One that plays the script; with `journal_keep` it writes no journal and forgets the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.json").write_bytes(msgspec.json.encode(script))
    journal = folder / "journal.jsonl"
    command = [sys.executable, "-m", "streams.adapters.engines.scripted"]
    kept = {"journal": journal} if journal_keep is None else {"journal-keep": journal_keep}
    options = {"script": folder / "script.json", "tokenizer": tokenizer_folder()}
    for name, value in {**options, **kept}.items():
        command += [f"--{name}", str(value)]
    with (folder / "engine.log").open("wb") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert url.startswith("http://"), (folder / "engine.log").read_text()
        yield Engine(url, journal, process.pid)
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


class GatewayProcess:
    """`turnstream gateway` at one address, through any number of lives."""

    def __init__(self, folder: Path, name: str, settings: Settings, engine_url: str) -> None:
        """Nothing is started yet."""
        self.name = name
        self.turnstream = [str(COMMAND)]
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / f"{name}.log"
        self._engine_url = engine_url
        given = dataclasses.replace(
            settings,
            gateway_port=self.port,
            gateway_secret=settings.gateway_secret or SECRET,
            gateway_control_key=settings.gateway_control_key or CONTROL_KEY,
        )
        self._environ = environ_of(given)
        self._process: subprocess.Popen[bytes] | None = None
        self.starts_s: list[float] = []
        """How long each start took until it listened."""
        self.pids: list[int] = []

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        return self._log.read_text("utf-8", errors="replace")

    def start(self) -> None:
        """Begin to start; `listening` tells when it is done."""
        command = [*self.turnstream, "gateway", "--engine", self._engine_url]
        command += ["--tokenizer", str(tokenizer_folder())]
        with self._log.open("ab") as said:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        self.pids.append(self._process.pid)
        self._began_s = time.monotonic()

    async def listening(self) -> None:
        """Until it takes calls."""
        deadline_s = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            assert self._process is not None
            assert self._process.poll() is None, f"{self.name} ended: {self.said[-2000:]}"
            assert time.monotonic() < deadline_s, f"{self.name} does not start: {self.said[-2000:]}"
            await asyncio.sleep(0.05)
        self.starts_s.append(time.monotonic() - self._began_s)

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def stop(self) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        os.kill(self.pids[-1], signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pids[-1], signal.SIGCONT)

    async def terminate(self) -> int:
        """SIGTERM; its exit code when it has let its calls end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self._process.wait, STOP_SECONDS_MAX)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
        except OSError:
            return False
        return True


@contextlib.contextmanager
def gateways(
    folder: Path, names: str, settings: Settings, engine_url: str
) -> Iterator[list[GatewayProcess]]:
    """One for each letter, none of them started."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [GatewayProcess(folder, name, settings, engine_url) for name in names]
    try:
        yield made
    finally:
        for gateway in made:
            gateway.kill()


async def control(url: str, path: str, **body: Any) -> dict[str, Any]:
    """A call of the control API that has to succeed at once."""
    headers = {"authorization": f"Bearer {CONTROL_KEY}"}
    async with httpx.AsyncClient(verify=False, trust_env=False, timeout=30.0) as client:
        reply = await client.post(f"{url}/control/{path}", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    told: dict[str, Any] = reply.json()
    return told
