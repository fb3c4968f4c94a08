"""How busy the machine was during a run, and how much of that was the run itself.

Waiting times say something about the gateways only where processors were free for them.
"""

import os
import time
from pathlib import Path

_IDLE = slice(3, 5)
"""Of the first line of /proc/stat: nothing to do, and waiting for a disk."""


class Machine:
    """From now on."""

    def __init__(self) -> None:
        """Note what the clocks say."""
        self._began_s = time.monotonic()
        self._busy_s = _busy_s()
        self._own_s = _own_s()

    def report(self) -> str:
        """Of the time of all processors; what ended until now is counted."""
        count = os.cpu_count() or 1
        all_s = (time.monotonic() - self._began_s) * count
        busy, own = (_busy_s() - self._busy_s) / all_s, (_own_s() - self._own_s) / all_s
        return f"{count} processors, busy {busy:.0%}: this run {own:.0%}, others {busy - own:.0%}"


def _busy_s() -> float:
    _, *ticks = Path("/proc/stat").read_text("ascii").splitlines()[0].split()
    spent = [int(tick) for tick in ticks[:8]]
    return (sum(spent) - sum(spent[_IDLE])) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
