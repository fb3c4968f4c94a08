"""Sessions ordered by a number, such as their first offset or a deadline, the lowest first.

Entries are never searched for: one whose session has changed since is dropped when it reaches
the front, and all of them are dropped once they outnumber the sessions.

Invariant: each call costs the logarithm of the number of entries, averaged over calls.
"""

import heapq
from collections.abc import Callable, Sequence

_COMPACT_FROM = 64


class Earliest:
    """A heap of sessions, with entries that may be outdated."""

    __slots__ = ("_heap", "_is_current", "_next_compaction")

    def __init__(self, is_current: Callable[[float, str], bool]) -> None:
        """`is_current` says whether an entry still holds for its session."""
        self._heap: list[tuple[float, str]] = []
        self._is_current = is_current
        self._next_compaction = _COMPACT_FROM

    def add(self, number: float, session_id: str) -> None:
        """Add an entry; earlier ones of the session stay until they are found outdated."""
        heapq.heappush(self._heap, (number, session_id))
        if len(self._heap) > self._next_compaction:
            self._compact()

    def add_all(self, entries: Sequence[tuple[float, str]]) -> None:
        """Add several entries, many at less than it costs one by one."""
        if len(entries) > len(self._heap) // 8:
            self._heap.extend(entries)
            self._compact()
            return
        for number, session_id in entries:
            self.add(number, session_id)

    def first(self) -> float | None:
        """The lowest number that still holds."""
        while self._heap:
            if self._is_current(*self._heap[0]):
                return self._heap[0][0]
            heapq.heappop(self._heap)
        return None

    def take_below(self, limit: float) -> list[str]:
        """Remove all entries below a limit; the sessions of those that still held."""
        taken: dict[str, None] = {}
        while self._heap and self._heap[0][0] < limit:
            entry = heapq.heappop(self._heap)
            if self._is_current(*entry):
                taken[entry[1]] = None
        return list(taken)

    def _compact(self) -> None:
        self._heap = [entry for entry in self._heap if self._is_current(*entry)]
        heapq.heapify(self._heap)
        self._next_compaction = max(_COMPACT_FROM, 2 * len(self._heap))

    def __len__(self) -> int:
        """Entries, outdated ones included."""
        return len(self._heap)
