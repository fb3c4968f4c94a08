"""A log that can be slow or away, between a gateway and the real one."""

import asyncio
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from streams.errors import LogAway
from streams.log.interface import Log, Outgoing, Position, Reader, Sending


class Faulty(Log):
    """A log that can be slow or away, outside of the gateway's reach."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.open = asyncio.Event()
        """Set: entries are taken."""
        self.open.set()
        self.heard = asyncio.Event()
        """Set: that they are stored is said."""
        self.heard.set()
        self.away: str | None = None
        """`lost`: refused at once, not stored. `unheard`: stored, but nobody says so."""
        self.committed_away: str | None = None
        """Asked for the positions of a group: `lost` refuses, `silent` does not answer."""
        self.committed_asked = 0
        self.published: list[float] = []
        """When each entry was acknowledged."""

    async def publish(self, outgoing: Outgoing) -> Position:
        if self.away == "lost":
            raise LogAway("the test says so; it is not stored")
        await self.open.wait()
        position = await self._log.publish(outgoing)
        await self.heard.wait()
        if self.away == "unheard":
            raise LogAway("the test says so; it is stored")
        self.published.append(time.monotonic())
        return position

    async def send(self, outgoing: Outgoing) -> Sending:
        return await self._log.send(outgoing)

    async def read(self, topic: str, positions: Mapping[int, int]) -> Reader:
        return await self._log.read(topic, positions)

    async def commit(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        await self._log.commit(group, topic, positions)

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        self.committed_asked += 1
        if self.committed_away == "lost":
            raise LogAway("the test says so")
        if self.committed_away == "silent":
            await asyncio.Event().wait()
        return await self._log.committed(group, topic)

    async def start_positions(self, topic: str) -> dict[int, int]:
        return await self._log.start_positions(topic)

    async def end_positions(self, topic: str) -> dict[int, int]:
        if self.away:
            raise LogAway("the test says so")
        return await self._log.end_positions(topic)

    async def positions_at(self, topic: str, time_ms: int) -> dict[int, int]:
        return await self._log.positions_at(topic, time_ms)

    async def lag(self, group: str, topic: str) -> dict[int, int]:
        return await self._log.lag(group, topic)

    async def let_go(self, group: str) -> None:
        await self._log.let_go(group)

    async def close(self) -> None:
        await self._log.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
