"""A writer or a reader as a process: when it may begin, and what it has spent.

    child    stdout   {}                       ready: everything is imported and connected
             stdin    a line                   begin
             stdout   {"ended_s": ..., ...}    done

Times are of the clock that all processes of the machine share; memory is the peak since it was
ready. What stands beside them for longer (a broker, an actor) is asked for by its id, with all
that it has started.

Invariant: this module needs the standard library alone, and a child never outlives its parent's
block.
"""

import json
import os
import re
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

READY_S_MAX = 300.0
END_S_MAX = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT_AND_TIMES = re.compile(r"\) \S (\d+)(?: \S+){9} (\d+) (\d+)")


def serve(work: Callable[[], dict[str, Any]]) -> None:
    """The child's side: ready, told to begin, done."""
    _tell({})
    sys.stdin.readline()
    before, spent = _peak_mb(), time.process_time()
    told = work()
    _tell(
        {
            "ended_s": time.monotonic(),
            "cpu_s": time.process_time() - spent,
            "peak_mb": _peak_mb() - before,
            **told,
        }
    )


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Worker:
    """The parent's side: one child for the length of a block."""

    def __init__(self, module: str, *words: str, python: Path | None = None) -> None:
        """Nothing runs yet; `python` is another than ours."""
        self.module = module
        self._command = [str(python or sys.executable), "-m", module, *words]

    def __enter__(self) -> Self:
        """Started; not yet ready."""
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            # PyTorch and what stands on it take three times as long to load uncompiled.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ended, by its id if need be."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S_MAX)
        self._process.stdout.close()
        self._stderr.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> dict[str, Any]:
        """Wait until it could begin."""
        return self._line(READY_S_MAX)

    def begin(self) -> float:
        """Let it; the time."""
        assert self._process.stdin is not None
        began_s = time.monotonic()
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return began_s

    def done(self, seconds: float) -> dict[str, Any]:
        """Wait until it is through; what it told."""
        return self._line(seconds)

    def _line(self, seconds: float) -> dict[str, Any]:
        said = self._process.stdout
        assert said is not None
        ready, _, _ = select.select([said], [], [], seconds)
        line = said.readline() if ready else b""
        if not line:
            self._stderr.seek(0)
            last = self._stderr.read()[-2000:].decode(errors="replace")
            raise RuntimeError(f"{' '.join(self._command[1:4])} does not answer: {last}")
        told: dict[str, Any] = json.loads(line)
        return told


def tree_cpu_s(pid: int) -> float:
    """CPU time of a process and of all that it has started and that still runs."""
    found: dict[int, tuple[int, float]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                told = _PARENT_AND_TIMES.search((folder / "stat").read_text(errors="replace"))
            except OSError:
                continue  # it has ended
            if told:
                parent, user, system = map(int, told.groups())
                found[int(folder.name)] = (parent, (user + system) / _TICKS)
    wanted, total = {pid}, 0.0
    while wanted:
        total += sum(found[one][1] for one in wanted if one in found)
        wanted = {one for one, (parent, _) in found.items() if parent in wanted}
    return total
