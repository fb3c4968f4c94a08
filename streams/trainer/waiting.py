"""What a trainer that waits for a batch sees of the log, and what it skips: one line of log output.

    waited 4 s for 1 group: 0 there; open: task-7 (1 of 2 sessions closed); skipped 3 sessions of
    other runs (r2: 2, none: 1), 1 of another split; asked for: run r1, split train

Logged as a warning of `turnstream.trainer` while no batch has come yet, and again when it changed.

Invariant: a batch that comes in time is not announced, and no line repeats the one before.
"""

import logging
import time
from collections.abc import Mapping, Sequence

from streams.core.open_group import GroupRules
from streams.trainer.book import Book

_LOGGER = logging.getLogger("turnstream.trainer")
_FIRST_S = 4.0
_AGAIN_S = 60.0
_NAMED_MAX = 3


class WaitNotice:
    """When to say it, and what was said last."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._since_s: float | None = None
        self._next_s = _FIRST_S
        self._last = ""

    def waiting(self, book: Book, lag: int) -> str | None:
        """The line, if it is due; called as long as there is no batch."""
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        if waited_s < self._next_s:
            return None
        self._next_s = waited_s + _AGAIN_S
        text = describe_wait(book, lag)
        if text == self._last:
            return None
        self._last = text
        return f"waited {waited_s:.0f} s for {book.size.wanted:,} {book.size.unit}: {text}"

    def over(self) -> None:
        """A batch has come; from now on a wait of some seconds is usual."""
        self._since_s, self._next_s = None, _AGAIN_S


def announce(line: str) -> None:
    """Where a training loop's own log goes; on stderr if nothing is configured."""
    _LOGGER.warning("%s", line)


def describe_wait(book: Book, lag: int) -> str:
    """What is there, what is open, what is skipped, and what was asked for."""
    parts = [f"{book.filled:,} there"]
    if lag:
        parts.append(f"{lag:,} records to read")
    if opened := book.open_summaries(_NAMED_MAX + 1):
        parts.append("open: " + _some(opened))
    other_runs, dropped = book.other_runs(), book.all_dropped()
    if other_runs:
        named = [f"{name}: {count:,}" for name, count in _largest_first(other_runs)]
        parts.append(f"skipped {dropped['other_run']:,} sessions of other runs ({_some(named)})")
    if other_split := dropped["other_split"]:
        parts.append(f"skipped {other_split:,} of another split")
    rest = {name: n for name, n in dropped.items() if name not in ("other_run", "other_split")}
    if rest:
        parts.append("dropped " + _some([f"{name} {n:,}" for name, n in _largest_first(rest)]))
    if not (opened or dropped or book.filled or lag):
        parts.append("no session of any run has closed; one without a reward waits for it")
    return "; ".join([*parts, _asked_for(book.rules)])


def _asked_for(rules: GroupRules) -> str:
    run = "any run" if rules.run_id is None else f"run {rules.run_id}"
    return f"asked for: {run}, split {rules.split}"


def _largest_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _some(texts: Sequence[str]) -> str:
    more = ", ..." if len(texts) > _NAMED_MAX else ""
    return ", ".join(texts[:_NAMED_MAX]) + more
