"""A writer or a reader as a process: when it may begin, and what it has spent.

    child    stdout   {}                       ready: everything is imported and connected
             stdin    a line                   begin
             stdout   {"ended_s": ..., ...}    done

Times are of the clock that all processes of the machine share; memory is the peak since it was
ready. What stands beside them for longer (a broker, an actor) is asked for by its id, with all
that it has started.

Invariant: this module needs the standard library alone.
"""

import os
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.child import Child, tell

READY_S_MAX = 300.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT_AND_TIMES = re.compile(r"\) \S (\d+)(?: \S+){9} (\d+) (\d+)")


def serve(work: Callable[[], dict[str, Any]]) -> None:
    """The child's side: ready, told to begin, done."""
    tell({})
    sys.stdin.readline()
    before, spent = _peak_mb(), time.process_time()
    told = work()
    tell(
        {
            "ended_s": time.monotonic(),
            "cpu_s": time.process_time() - spent,
            "peak_mb": _peak_mb() - before,
            **told,
        }
    )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Worker(Child):
    """The parent's side: one child for the length of a block, told when to begin."""

    def ready(self) -> dict[str, Any]:
        """Wait until it could begin."""
        return self.line(READY_S_MAX)

    def begin(self) -> float:
        """Let it; the time."""
        began_s = time.monotonic()
        self.nudge()
        return began_s

    def done(self, seconds: float) -> dict[str, Any]:
        """Wait until it is through; what it told."""
        return self.line(seconds)


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
