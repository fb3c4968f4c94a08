"""What every store of the log does. A log has topics, a topic partitions, a partition positions.

    turnstream.turns   partition 0   0 1 2 3 4 5
                       partition 1   0 1 2 3
                                         ^     ^
                                 committed     end          lag = end - committed

A position is the place of one entry; "positions" of a topic map each partition to the place
that comes *next*, so `end` is where the next entry will stand and `committed` is what a group
reads next. Positions grow by one within a partition, except where compaction left holes.

Invariant: one writer's entries stand in a partition in the order they were sent; an entry that
was acknowledged stays; one that was not may still appear.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The place of one entry."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        """`topic/partition/offset`, as dead letters are keyed."""
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One entry to be written."""

    topic: str
    key: bytes | None
    value: bytes | None
    """None removes the key from a compacted topic."""
    partition: int | None = None
    """None: the key decides."""
    session_id: str | None = None
    """For errors, where the entry is about a session; so is the turn."""
    turn_id: str | None = None

    def __str__(self) -> str:
        """`topic, session s, turn t`, as far as known."""
        named = [self.topic]
        named += [f"session {self.session_id}"] if self.session_id else []
        named += [f"turn {self.turn_id}"] if self.turn_id else []
        return ", ".join(named)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as read."""

    position: Position
    timestamp_ms: int
    """When the log took it, by the log's own clock."""
    key: bytes | None
    value: bytes | None
    """None removes the key from a compacted topic."""


class Sending(Awaitable[Position], Protocol):
    """An entry on its way; awaiting it gives its position once it is durable."""

    def on_settled(self, call: Callable[[], None]) -> None:
        """Call back once it is durable or has failed; cheaper than a task that awaits it."""
        ...

    def settled_position(self) -> Position:
        """The position, once settled.

        Raises:
            TooLarge: the broker's own limit is lower than ours; it is not stored.
            LogError: it failed; it may still be stored.
        """
        ...


class Reader(Protocol):
    """Reads one topic onwards, partitions interleaved, each in order."""

    @property
    def positions(self) -> dict[int, int]:
        """What comes next, by partition."""
        ...

    @property
    def silent_s(self) -> float:
        """Seconds without an answer or an entry; the log answers also when there is nothing new."""
        ...

    async def next_batch(self, wait_s: float, entries_max: int = 1000) -> list[Entry]:
        """What is there, waiting at most `wait_s` for the first; empty if nothing came.

        Raises:
            NoSuchPosition: retention overtook the reader.
            LogError: the log refuses; the reader is of no further use.
        """
        ...

    async def close(self) -> None:
        """Let go; never waits long."""
        ...


class Log(Protocol):
    """A durable log. Every call is bounded in time and raises `LogAway` at the bound."""

    async def send(self, outgoing: Outgoing) -> Sending:
        """Hand an entry over, in order; await what comes back to know that it is durable.

        Waits only while buffers are full.

        Raises:
            TooLarge: over the limit; nothing was sent.
            LogError: the log refuses.
        """
        ...

    async def publish(self, outgoing: Outgoing) -> Position:
        """`send`, and wait until the entry is durable."""
        ...

    async def read(self, topic: str, positions: Mapping[int, int]) -> Reader:
        """A reader of the named partitions, each from its position on.

        Raises:
            NoSuchPosition: the log does not reach that far, back or ahead.
        """
        ...

    async def commit(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        """Remember what the group reads next."""
        ...

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """What the group reads next; a partition it never committed is left out."""
        ...

    async def start_positions(self, topic: str) -> dict[int, int]:
        """The oldest entry that is still there, by partition."""
        ...

    async def end_positions(self, topic: str) -> dict[int, int]:
        """Where the next entry will stand, by partition."""
        ...

    async def positions_at(self, topic: str, time_ms: int) -> dict[int, int]:
        """The first entry that the log took at this time or later, else the end, by partition."""
        ...

    async def lag(self, group: str, topic: str) -> dict[int, int]:
        """Entries the group has still to read, by partition; all of them if it never committed."""
        ...

    async def let_go(self, group: str) -> None:
        """Keep no connection for a group that is not asked for any more; it may be again."""
        ...

    async def close(self) -> None:
        """Send what is left, bounded, and let go."""
        ...

    async def __aenter__(self) -> Self:
        """Nothing is connected before it is used."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go."""
        ...
