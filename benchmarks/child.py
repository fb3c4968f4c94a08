"""A process of a benchmark: it says lines of JSON, is told lines, and ends when stdin does.

Invariant: this module needs the standard library alone; a child that is not there, or does not
answer in time, is an error and never a figure; none outlives its parent's block.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

END_S_MAX = 30.0


def tell(what: dict[str, Any]) -> None:
    """The child's side: one line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Child:
    """The parent's side: a process for the length of a block."""

    def __init__(self, module: str, *words: str, python: Path | None = None) -> None:
        """Nothing runs yet; `python` is another than ours."""
        self.module = module
        self._command = [str(python or sys.executable), "-m", module, *words]

    def __enter__(self) -> Self:
        """Started."""
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
        """Told to end, then made to, by its id."""
        assert self._process.stdin is not None, "it has a pipe"
        assert self._process.stdout is not None, "it has a pipe"
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

    def nudge(self) -> None:
        """Tell it a line."""
        assert self._process.stdin is not None, "it has a pipe"
        if self._process.poll() is not None:
            raise RuntimeError(self._trouble("has ended"))
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def line(self, seconds: float) -> dict[str, Any]:
        """What it says next."""
        said = self._process.stdout
        assert said is not None, "it has a pipe"
        ready, _, _ = select.select([said], [], [], seconds)
        line = said.readline() if ready else b""
        if not line:
            raise RuntimeError(self._trouble("does not answer"))
        told: dict[str, Any] = json.loads(line)
        return told

    def _trouble(self, what: str) -> str:
        self._stderr.seek(0)
        last = self._stderr.read()[-2000:].decode(errors="replace")
        return f"{self.module} {what} ({' '.join(self._command[3:5])}): {last}"
