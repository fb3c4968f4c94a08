"""Where records come from, and where positions are kept: alone, or as one of a group.

    Alone      reads the partitions it was told to; on a file, and after a restore
    Shared     (in `sharing`) reads what a Kafka group gives it; others may come and go

Invariant: no entry is skipped unseen. A position that the log no longer holds is an error, never
a jump to another place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from streams.errors import LogError, NoSuchPosition, PositionMoved
from streams.log.interface import Entry, Log, Outgoing, Reader
from streams.log.sqlite import SqliteLog, Transaction

ENTRIES_MAX = 100
"""Of one fetch: samples are large, and what was fetched is not yet counted as buffered."""

Start = Literal["committed", "beginning", "end"] | datetime
"""Where a group begins: where it stands, else at the beginning; or a place or time of its own."""


@dataclass(slots=True)
class Fetched:
    """What one look at the log gave."""

    entries: list[Entry] = field(default_factory=list)
    gained: dict[int, str] = field(default_factory=dict)
    """Partitions that are ours from now on, each with the note of who had it before."""
    lost: set[int] = field(default_factory=set)


class Source(Protocol):
    """Records in, positions out."""

    notes_max: int
    """Of groups that `commit` keeps beside the position of a partition."""

    @property
    def positions(self) -> dict[int, int]:
        """What comes next, of the partitions that are ours."""
        ...

    @property
    def given_out(self) -> bool:
        """Whether it is certain which partitions those are; it may be none."""
        ...

    async def fetch(self, wait_s: float, *, entries: bool) -> Fetched:
        """What is new; `entries`: whether there is room for any.

        Raises:
            NoSuchPosition: what stood there is gone.
            LogError: the log refuses.
        """
        ...

    async def commit(
        self, outgoing: Outgoing, positions: Mapping[int, int], notes: Mapping[int, str]
    ) -> bool:
        """Write the record, then the positions; False if those were not ours to write."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class Alone:
    """Partitions that nobody else reads for this group."""

    notes_max = 0
    """Who reads alone goes on from a state, which knows them all."""

    def __init__(self, log: Log, topic: str, group: str, reader: Reader) -> None:
        """The reader stands where it shall begin; made by `read_alone`."""
        self._log = log
        self._topic = topic
        self._group = group
        self._reader = reader
        self._told = False
        self._expected: int | None = None

    async def begin(self) -> None:
        """Note where the group stands: nobody but us may move it from now on."""
        committed = await self._log.committed(self._group, self._topic)
        self._expected = committed.get(0)

    @property
    def positions(self) -> dict[int, int]:
        """What comes next."""
        return self._reader.positions

    @property
    def given_out(self) -> bool:
        """From the first look on."""
        return self._told

    async def fetch(self, wait_s: float, *, entries: bool) -> Fetched:
        """What is new."""
        fetched = Fetched()
        if not self._told:
            self._told = True
            fetched.gained = dict.fromkeys(self._reader.positions, "")
        elif entries:
            fetched.entries = await self._reader.next_batch(wait_s, ENTRIES_MAX)
        return fetched

    async def commit(
        self, outgoing: Outgoing, positions: Mapping[int, int], notes: Mapping[int, str]
    ) -> bool:
        """In one transaction where the log has them."""
        if isinstance(self._log, SqliteLog):
            name = (self._group, self._topic)
            moved = {name: positions[0]} if positions else {}
            expected = {name: self._expected} if positions else {}
            await self._log.transact(
                Transaction(outgoing=[outgoing], commits=moved, expect_commits=expected)
            )
            self._expected = moved.get(name, self._expected)
        else:
            await self._log.publish(outgoing)
            try:
                await self._log.commit(self._group, self._topic, positions)
            except PositionMoved:
                # A member that was killed lives on in the group for its timeout. Whoever was
                # restored goes by its state, so nothing is lost by trying again next time.
                return False
        return True

    async def close(self) -> None:
        """Let go."""
        await self._reader.close()


async def beginnings(
    log: Log, topic: str, start: Start, committed: Mapping[int, int]
) -> dict[int, int]:
    """Where a group that reads alone begins, by partition."""
    if isinstance(start, datetime):
        return await log.positions_at(topic, int(start.timestamp() * 1000))
    if start == "end":
        return await log.end_positions(topic)
    first = await log.start_positions(topic)
    return {**first, **committed} if start == "committed" else first


async def read_alone(log: Log, topic: str, group: str, positions: Mapping[int, int]) -> Alone:
    """A source from these positions on."""
    source = Alone(log, topic, group, await log.read(topic, positions))
    await source.begin()
    return source


def gone(error: NoSuchPosition, group: str) -> LogError:
    """The same error, and what can be done about it."""
    return NoSuchPosition(
        f"group {group}: {error}; samples there were lost to retention. To go on without them say "
        'so: subscribe(..., start="beginning"), and keep samples longer '
        "(TURNSTREAM_RETENTION_SAMPLES_HOURS)"
    )
