"""How far a command has come, for whoever sits at the terminal.

    replay  [############----------]   54%  00:00:21  27,000 of 50,000 events, 1,100/s
    records 1,204, 38/s, 3 behind

Invariant: nothing is written unless stderr is a terminal, and nothing else is written over it.
"""

import itertools
import shutil
import sys
import time
from collections import deque
from types import TracebackType
from typing import Self

import click

from streams.core.drawing import visible

_WINDOW_S = 5.0
_STEPS = 500
"""At most so many drawings of a bar."""
_CLEAR = "\r\x1b[K"


def counted(count: int, what: str) -> str:
    """`1 session`, `2 sessions`."""
    return f"{count} {what}" + ("" if count == 1 else "s")


class Rate:
    """Things a second, over the last few seconds."""

    def __init__(self) -> None:
        """None so far."""
        self.count = 0
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def add(self, count: int) -> None:
        """So many more."""
        self.count += count
        now_s = time.monotonic()
        self._seen.append((now_s, self.count))
        while len(self._seen) > 1 and self._seen[1][0] < now_s - _WINDOW_S:
            self._seen.popleft()

    @property
    def per_s(self) -> float:
        """As of the last `add`."""
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def __str__(self) -> str:
        """For people."""
        return f"{self.per_s:,.{0 if self.per_s >= 10 else 1}f}/s"  # noqa: PLR2004


class Progress:
    """A bar: how much of all there is, how long yet, how fast."""

    def __init__(self, label: str, unit: str, length: int | None, *, counted: bool = True) -> None:
        """Nothing is done yet.

        Args:
            label: What is being done.
            unit: What is counted, in the plural.
            length: All there is; None: nobody knows.
            counted: Whether the length is in units; else in something like them, as bytes are.
        """
        self._terminal = sys.stderr.isatty()
        self._unit = unit
        self._of = f" of {length:,}" if counted and length is not None else ""
        self._rate = Rate()
        self._bar = click.progressbar(
            itertools.repeat(""),
            length=length,
            label=label,
            file=sys.stderr,
            hidden=not self._terminal or length == 0,
            fill_char="#",
            empty_char="-",
            width=24,
            item_show_func=lambda text: text,
            bar_template="%(label)s  [%(bar)s]  %(info)s",
            update_min_steps=max(1, (length or 0) // _STEPS),
        )

    def __enter__(self) -> Self:
        """Draw it."""
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave it as it stands."""
        self._bar.__exit__(kind, error, trace)

    def advance(self, units: int, steps: int | None = None) -> None:
        """So many more units, and so much more of the length."""
        if self._terminal:
            self._rate.add(units)
            text = f"{self._rate.count:,}{self._of} {self._unit}, {self._rate}"
            self._bar.update(units if steps is None else steps, text)

    def say(self, text: str) -> None:
        """A line on stderr that the bar does not run into, and that steers no terminal."""
        shown = visible(text, most=None)
        click.echo(f"{_CLEAR}{shown}" if self._terminal else shown, err=True)


class StatusLine:
    """One line that is written over, below whatever else is printed."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        self.terminal = sys.stderr.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        """This text instead of what stood there."""
        if self.terminal:
            columns = shutil.get_terminal_size().columns
            click.echo(_CLEAR + text[: columns - 1], nl=False, err=True)
            self._shown = True

    def clear(self) -> None:
        """Make room for something else."""
        if self._shown:
            click.echo(_CLEAR, nl=False, err=True)
            self._shown = False
