"""The servers of the benchmark: how one says that it is ready, what it has spent, how it ends.

    child    stdout   {"port": N, ...}          when it serves
             stdin    a line                    is answered with the CPU seconds so far
             stdin    the end                   it ends, also when its parent has died

A child takes a free port from the system and says which, so that no leftover of an earlier run
can answer in its place.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any, Self

from benchmarks.child import Child, tell

ANSWER_S_MAX = 60.0


async def serve_until_told(port: int, **more: Any) -> None:
    """The child's side: ready, then until stdin ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tell({"port": port, **more})
    while await reader.readline():
        tell({"cpu_s": time.process_time()})


class Server(Child):
    """The parent's side: a process that serves for the length of a block."""

    def __init__(self, module: str, *words: str, python: Path | None = None) -> None:
        """Nothing runs yet; `python` is another than ours."""
        super().__init__(module, *words, python=python)
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """Started and serving."""
        super().__enter__()
        try:
            self.ready = self.line(ANSWER_S_MAX)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    @property
    def port(self) -> int:
        port: int = self.ready["port"]
        assert port > 0, f"{self.module} listens nowhere"
        return port

    def cpu_s(self) -> float:
        """What it has spent so far, in all its threads."""
        self.nudge()
        return float(self.line(ANSWER_S_MAX)["cpu_s"])
