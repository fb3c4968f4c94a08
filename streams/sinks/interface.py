"""What a sink is to the consumer that feeds it.

    opened() ─► where to read on      take() ... take()      settle() ─► what is done with
                                                             close()

Invariant: a position that `settled` names is never needed again, whatever dies afterwards.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Literal, Protocol

from schemas.traces import Trace
from streams.log.interface import Position

Passed = Literal["unreadable", "taken_by_retention"]


class Sink(Protocol):
    """One place that traces are put into; only its consumer's thread of control uses it."""

    counts: Counter[str]
    """Sessions by what became of them."""

    def opened(self, topic: str) -> dict[int, int] | None:
        """Make the place ready; what it wants to read next, or None: what the group committed.

        Raises:
            BadSetting: the place cannot be used, or what writes to it is not installed.
        """
        ...

    def take(self, trace: Trace, position: Position) -> None:
        """One session, in the order of its partition; it may come twice. Never blocks."""
        ...

    def passed(self, position: Position, why: Passed, count: int = 1) -> None:
        """What stands there is no trace, or stands there no more; so are `count - 1` before it."""
        ...

    def due(self) -> bool:
        """Whether there is something to settle now."""
        ...

    def settle(self, *, everything: bool = False) -> None:
        """Put away what is due, or everything; may block, and is then tried again.

        Raises:
            OSError: it did not work; what was taken is kept.
        """
        ...

    def settled(self, read: Mapping[int, int]) -> dict[int, int]:
        """What is next to be read if we die now, given what was read; may leave partitions out."""
        ...

    @property
    def held(self) -> int:
        """Sessions taken and not settled."""
        ...

    def close(self) -> None:
        """Let go, bounded."""
        ...
