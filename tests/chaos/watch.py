"""How far the workers are, as the broker tells it: what is committed, what waits, what moves.

Invariant: while the broker is away the last answer stays; nothing here raises because of it.
"""

import asyncio
import time
from collections.abc import Callable

from streams.errors import LogError
from streams.log.kafka import KafkaLog
from streams.settings import Settings

ASK_EVERY_S = 0.2


class Watch:
    """Asks again and again, in the background."""

    def __init__(self, log: KafkaLog, settings: Settings) -> None:
        self._log = log
        self._settings = settings
        self.committed: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self._answered = asyncio.Event()

    @property
    def lags(self) -> dict[int, int]:
        return {p: end - self.committed.get(p, 0) for p, end in self.ends.items()}

    @property
    def lag(self) -> int:
        return sum(self.lags.values())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if await self._ask():
                self._answered.set()
                self._answered.clear()
            await asyncio.sleep(ASK_EVERY_S)

    async def _ask(self) -> bool:
        group, topic = self._settings.processor_id, self._settings.turns_topic
        try:
            committed = await self._log.committed(group, topic)
            self.ends = await self._log.end_positions(topic)
        except LogError:
            return False
        self.committed = committed
        return True

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait for something to hold, asked again at every answer of the broker."""
        try:
            async with asyncio.timeout(seconds):
                await self._answered.wait()
                while not holds():
                    await self._answered.wait()
        except TimeoutError:
            return False
        return True

    async def moved(self, seconds: float) -> float | None:
        """Seconds until every partition with events waiting has moved on; none: they did not."""
        began_s = time.monotonic()
        waiting = {p: self.committed.get(p, 0) for p, lag in self.lags.items() if lag > 0}
        moving = await self.until(
            lambda: all(self.committed.get(p, 0) > at for p, at in waiting.items()), seconds
        )
        return time.monotonic() - began_s if moving else None
