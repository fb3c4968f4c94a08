"""Silence counts only while the broker answers and nothing waits."""

import asyncio
import json
import random
import time
from collections import Counter
from typing import cast

from schemas import codec
from schemas.events import SessionExpired
from streams.core.state import Rules
from streams.errors import LogAway
from streams.log.interface import Log
from streams.processor.outlet import Outlet
from streams.processor.partition_state import PartitionState
from streams.processor.rows import Row
from streams.processor.sweeper import Sweeper
from streams.settings import Settings
from tests.core.test_large_outcomes import TURN
from tests.processor.crashing import die
from tests.processor.memory_log import MemoryLog

IDLE_S = 0.05
SETTINGS = Settings(partitions=1, idle_limit_s=IDLE_S, reward_grace_s=IDLE_S)
END = 1


class Answering(MemoryLog):
    """A log that may be away; it holds one event."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.away = False

    async def end_positions(self, topic: str) -> dict[int, int]:
        if self.away:
            raise LogAway("nobody answers")
        return {0: END}


class Looking:
    """A worker's one partition with one silent session, and its sweeper."""

    def __init__(self) -> None:
        self.log = Answering()
        log = cast(Log, self.log)
        self.sweeper = Sweeper(SETTINGS, log, Outlet(SETTINGS, log, Counter(), die))
        self.state = PartitionState(Rules())
        value = codec.to_msgpack(codec.from_json(json.dumps(TURN).encode()))
        self.state.keep("s", 0, Row(int(time.time() * 1000) - 3_600_000, value))
        self.done = END

    async def look(self) -> list[str]:
        """Sweep once; whose end was asked for."""
        await self.sweeper.sweep([0], lambda _: self.state, lambda _: self.done)
        await self.log.deliver()
        asked = [codec.from_msgpack(v or b"") for _, v in self.log.topics[SETTINGS.turns_topic]]
        return [event.session_id for event in asked if isinstance(event, SessionExpired)]


def test_a_silent_session_is_asked_to_end_once_nothing_waits() -> None:
    async def scenario() -> None:
        worker = Looking()
        assert await worker.look() == []
        assert await worker.look() == []
        await asyncio.sleep(2 * IDLE_S)
        assert await worker.look() == ["s"]
        assert await worker.look() == ["s"], "once"

    asyncio.run(scenario())


def test_time_without_the_broker_is_nobodys_silence() -> None:
    async def scenario() -> None:
        worker = Looking()
        await worker.look()
        await worker.look()
        worker.log.away = True
        await worker.look()
        await asyncio.sleep(2 * IDLE_S)
        worker.log.away = False
        assert await worker.look() == []
        assert await worker.look() == []

    asyncio.run(scenario())


def test_time_behind_is_nobodys_silence() -> None:
    async def scenario() -> None:
        worker = Looking()
        worker.done = 0
        await worker.look()
        await worker.look()
        await asyncio.sleep(2 * IDLE_S)
        assert await worker.look() == []

    asyncio.run(scenario())
