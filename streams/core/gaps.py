"""Are there turns we never got? Judged at the close, from the numbers adapters give.

Each source (one process start of an adapter) numbers its turns of a session from 1. A hole in
the numbering, or fewer turns than the end event names, is a gap. `turn_undelivered` fills the
number of a turn that never arrived. Turns without a number are not checked.
"""

from collections.abc import Mapping

from schemas.record import COUNT_MAX


class Numbering:
    """The sequence numbers seen, by source."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        """Nothing seen yet."""
        self.seen: dict[str, set[int]] = {}

    def add(self, source: str | None, seq: int | None) -> None:
        """One numbered event arrived."""
        if source is not None and seq is not None:
            seen = self.seen.get(source)
            if seen is None:
                seen = self.seen[source] = set()
            seen.add(seq)

    def missing(self, named: Mapping[str, int] | None) -> int:
        """How many numbers are missing; `named` gives the last one of each source."""
        last = dict(named or {})
        for source, numbers in self.seen.items():
            last[source] = max(last.get(source, 0), *numbers)
        missing = sum(most - len(self.seen.get(source, ())) for source, most in last.items())
        return min(missing, COUNT_MAX)

    def first_missing(self, source: str) -> int:
        """The lowest number of a source that never arrived."""
        numbers = self.seen.get(source, set())
        return next(n for n in range(1, len(numbers) + 2) if n not in numbers)
