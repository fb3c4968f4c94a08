"""The processes of the benchmark: how one says that it is ready, what it has spent, how it ends.

    child    stdout   {"port": N, ...}          when it serves
             stdin    a line                    is answered with the CPU seconds so far
             stdin    the end                   it ends, also when its parent has died

A child takes a free port from the system and says which, so that no leftover of an earlier run
can answer in its place.

Invariant: a child that is not there, or does not answer in time, is an error and never a figure.
"""

import asyncio
import json
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ANSWER_S_MAX = 60.0
END_S_MAX = 30.0


async def serve_until_told(port: int, **more: Any) -> None:
    """The child's side: ready, then until stdin ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _tell({"port": port, **more})
    while await reader.readline():
        _tell({"cpu_s": time.process_time()})


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Child:
    """The parent's side: a process for the length of a block."""

    def __init__(self, module: str, *words: str, python: Path | None = None) -> None:
        """Nothing runs yet; `python` is another than ours."""
        self.module = module
        self._command = [str(python or sys.executable), "-m", module, *words]
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """Started and serving."""
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr
        )
        try:
            self.ready = self._line()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ended."""
        self._end()

    @property
    def port(self) -> int:
        port: int = self.ready["port"]
        assert port > 0, f"{self.module} listens nowhere"
        return port

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float:
        """What it has spent so far, in all its threads."""
        asked = self._process.stdin
        assert asked is not None, "it has a pipe"
        if self._process.poll() is not None:
            raise RuntimeError(self._trouble("has ended"))
        asked.write(b"\n")
        asked.flush()
        return float(self._line()["cpu_s"])

    def _line(self) -> dict[str, Any]:
        said = self._process.stdout
        assert said is not None, "it has a pipe"
        ready, _, _ = select.select([said], [], [], ANSWER_S_MAX)
        line = said.readline() if ready else b""
        if not line:
            raise RuntimeError(self._trouble("does not answer"))
        told: dict[str, Any] = json.loads(line)
        return told

    def _end(self) -> None:
        """Told to end, then made to, by its id."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S_MAX)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._stderr.close()

    def _trouble(self, what: str) -> str:
        self._stderr.seek(0)
        return f"{self.module} {what}: {self._stderr.read()[-2000:].decode(errors='replace')}"
