"""How long partitions of the turns topic stood still although events waited in them.

    committed ──►  3   3   3   3   9        stood still from the first look at which something
    end       ──►  3   5   6   9   9        waited to the one at which it had moved

Invariant: a partition without anything waiting does not stand still; while the broker is away
nothing is known, and the watch keeps its last answer.
"""

import asyncio
import time
from dataclasses import dataclass, field

from tests.chaos.watch import ASK_EVERY_S, Watch


@dataclass
class Standstill:
    """Looks at the watch's answers, in the background."""

    watch: Watch
    spans: list[tuple[float, float]] = field(default_factory=list)
    """From when to when, of every standstill that is over."""
    _since: dict[int, float] = field(default_factory=dict)
    _at: dict[int, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(ASK_EVERY_S / 2)

    def look(self, now_s: float) -> None:
        for partition, lag in self.watch.lags.items():
            committed = self.watch.committed.get(partition, 0)
            moved = committed > self._at.get(partition, -1)
            self._at[partition] = committed
            if partition in self._since and (moved or lag <= 0):
                self.spans.append((self._since.pop(partition), now_s))
            if lag > 0:
                self._since.setdefault(partition, now_s)

    def longest_s(self, since_s: float) -> float:
        """Of those that went on after that moment, from then on or from their own beginning."""
        now_s = time.monotonic()
        spans = [*self.spans, *((began, now_s) for began in self._since.values())]
        lengths = (end - max(began, since_s) for began, end in spans if end > since_s)
        return max(lengths, default=0.0)

    async def over(self, quiet_s: float, seconds: float) -> bool:
        """Until no partition has stood still for longer than usual; False: not in time."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            now_s = time.monotonic()
            if all(now_s - began < quiet_s for began in self._since.values()):
                return True
            await asyncio.sleep(ASK_EVERY_S)
        return False
