"""Reads a topic onwards, also where retention was faster: what it took is told, and passed over.

Invariant: from the first position on, every entry is handed out or told of as taken, once.
"""

from collections.abc import Callable, Mapping

from streams.errors import NoSuchPosition
from streams.log.interface import Entry, Log, Position, Reader

Taken = Callable[[Position, int], None]
"""The last entry that is gone, and how many are."""


class Onward:
    """One reader after another, where the log lets go of what the first was to read."""

    def __init__(self, log: Log, topic: str, taken: Taken) -> None:
        """It stands nowhere yet."""
        self._log = log
        self._topic = topic
        self._taken = taken
        self._reader: Reader | None = None

    @property
    def positions(self) -> dict[int, int]:
        """What comes next, by partition."""
        return {} if self._reader is None else self._reader.positions

    @property
    def silent_s(self) -> float:
        """Seconds since the log answered; 0 before it is read."""
        return 0.0 if self._reader is None else self._reader.silent_s

    async def stand_at(self, wanted: Mapping[int, int]) -> None:
        """Read on from there; a partition that is not named from its very first entry on.

        Raises:
            NoSuchPosition: the log does not reach that far.
        """
        while True:
            starts = await self._log.start_positions(self._topic)
            gone = {at: start - wanted.get(at, 0) for at, start in starts.items()}
            positions = {at: max(start, wanted.get(at, 0)) for at, start in starts.items()}
            try:
                reader = await self._log.read(self._topic, positions)
                break
            except NoSuchPosition:
                if starts == await self._log.start_positions(self._topic):
                    raise  # behind the end, and not taken in this moment
        await self.close()
        self._reader = reader
        for at, count in gone.items():
            if count > 0:
                self._taken(Position(self._topic, at, starts[at] - 1), count)

    async def next_batch(self, wait_s: float, entries_max: int) -> list[Entry]:
        """What is there, waiting at most `wait_s` for the first; empty if nothing came."""
        assert self._reader is not None, "it stands somewhere"
        try:
            return await self._reader.next_batch(wait_s, entries_max)
        except NoSuchPosition:
            await self.stand_at(self._reader.positions)
            return []

    async def close(self) -> None:
        """Let go."""
        if self._reader is not None:
            await self._reader.close()
