"""How far the trainer is behind, how old its samples are, what waits and what was dropped.

    [#######-----] 19 of 32 rollouts · lag 1,204 · stale 0-3 · buffered 310 MB, 12 groups open
    · dropped 14 (stale 9, timeout 5) · waited 41 s (groups 30, samples 11)

Invariant: nothing is written unless stderr is a terminal.
"""

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

_CLEAR = "\r\x1b[K"
_BAR = 12
_EVERY_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One look at a subscription."""

    lag: int = 0
    """Records in the log that were not read yet."""
    staleness: tuple[int, int] | None = None
    """Least and most, in versions, over the rollouts of the newest batch; None: not known."""
    buffered_bytes: int = 0
    """Of samples that wait in memory."""
    open_groups: int = 0
    """Not complete."""
    ready_groups: int = 0
    """Complete, and not handed out."""
    filled: int = 0
    wanted: int = 0
    """How much of the next batch is there, in `unit`."""
    unit: str = "rollouts"
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rollouts that never train, and records without one, by reason."""
    revisions: Mapping[str, int] = field(default_factory=dict)
    """Later rewards: applied, handed_over, unknown."""
    repeatable: int = 0
    """Groups that were trained and that a trainer which goes on without a state would train again:
    an older one is still open, and the log keeps notes of so many only, or none."""
    waited_s: Mapping[str, float] = field(default_factory=dict)
    """Of the loop: for samples, for groups to be complete, for the log to be read; and
    `trainer`, where reading waited for the loop."""

    @property
    def bar(self) -> str:
        """How full the next batch is."""
        full = min(_BAR, _BAR * self.filled // max(1, self.wanted))
        bar = "#" * full + "-" * (_BAR - full)
        return f"[{bar}] {min(self.filled, self.wanted):,} of {self.wanted:,} {self.unit}"

    def __str__(self) -> str:
        """One line."""
        stale = "?" if self.staleness is None else "{}-{}".format(*self.staleness)
        parts = [
            f"lag {self.lag:,}",
            f"stale {stale}",
            f"buffered {self.buffered_bytes / 1e6:,.0f} MB, {self.open_groups} groups open",
            f"dropped {sum(self.dropped.values()):,}{_reasons(self.dropped)}",
        ]
        if waited := {k: round(v) for k, v in self.waited_s.items() if k != "trainer"}:
            parts.append(f"waited {sum(waited.values()):,} s{_reasons(waited)}")
        return " · ".join(parts)


def _reasons(counts: Mapping[str, int]) -> str:
    named = [f"{reason} {count:,}" for reason, count in sorted(counts.items()) if count]
    return f" ({', '.join(named)})" if named else ""


class Line:
    """The status on the last line of a terminal, while the loop waits."""

    def __init__(self, wanted: bool | None) -> None:
        """None: if there is a terminal."""
        self.on = sys.stderr.isatty() if wanted is None else wanted
        self._shown_s = 0.0
        self._there = False

    def due(self) -> bool:
        """Whether it is time to draw it again."""
        return self.on and time.monotonic() - self._shown_s >= _EVERY_S

    def show(self, status: Status) -> None:
        """Instead of what stood there."""
        columns = shutil.get_terminal_size().columns
        text = f"{status.bar} · {status}"
        sys.stderr.write(_CLEAR + text[: columns - 1])
        sys.stderr.flush()
        self._shown_s = time.monotonic()
        self._there = True

    def clear(self) -> None:
        """Make room for what the loop prints."""
        if self._there:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._there = False
