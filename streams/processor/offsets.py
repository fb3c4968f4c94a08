"""Which source events are done, in order, for one partition and one group generation.

Faust drops events at rebalances and commits past them. So every event is checked against the
offset that must come next, and the position to commit moves only over events whose every write
was acknowledged.

    arrived   7 8 9 10        next = 11
    done      7 8   10        commit position = 9

Invariant: an offset below `position` is durable in all its effects.
"""

import enum
from collections import deque


class Arrival(enum.Enum):
    """What an offset means when it arrives."""

    NEXT = "the one that had to come: process it"
    AGAIN = "below the next one: already handled in this generation"
    GAP = "above the next one: something was skipped; seek back and wait"


class Entry:
    """One event under way; it is done when its last write is acknowledged."""

    __slots__ = ("_offsets", "_open", "offset")

    def __init__(self, offsets: "Offsets", offset: int) -> None:
        """Open once, for the handling itself."""
        self.offset = offset
        self._offsets = offsets
        self._open = 1

    def hold(self) -> None:
        """One more write to wait for."""
        self._open += 1

    def release(self) -> None:
        """One write less; the last one finishes the event."""
        self._open -= 1
        if self._open == 0:
            self._offsets.advance()

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        return self._open == 0


class Offsets:
    """The order of events in one partition during one generation."""

    __slots__ = ("_entries", "committed", "generation", "next", "position", "seeks")

    def __init__(self, generation: int, start: int) -> None:
        """`start` is the committed offset as the broker itself tells it."""
        self.generation = generation
        self.next = start
        self.position = start
        self.committed = start
        self.seeks = 0
        """How often the event that has to come next was asked for in vain."""
        self._entries: deque[Entry] = deque()

    def arrive(self, offset: int) -> Arrival:
        """Judge an offset; only `NEXT` moves on."""
        if offset < self.next:
            return Arrival.AGAIN
        if offset > self.next:
            return Arrival.GAP
        self.next += 1
        self.seeks = 0
        return Arrival.NEXT

    def skip_to(self, offset: int) -> None:
        """There is nothing between: the log begins here, or goes on here."""
        if not self._entries:
            self.position = offset
        self.next = offset

    def pass_over(self, first: int, last: int) -> None:
        """One entry at `last` stands for all from `first` on, if the next is among them."""
        if first <= self.next < last:
            self.skip_to(last)

    def begin(self, offset: int) -> Entry:
        """Start handling an event that arrived in order."""
        entry = Entry(self, offset)
        self._entries.append(entry)
        return entry

    def advance(self) -> None:
        """Move the commit position over everything that is done from the front on."""
        while self._entries and self._entries[0].done:
            self.position = self._entries.popleft().offset + 1

    @property
    def pending(self) -> int:
        """Events begun and not done."""
        return len(self._entries)
