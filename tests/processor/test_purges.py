"""What purges and closes cost the events behind them."""

import asyncio
import json
import random
from collections import Counter
from typing import Any, cast

from schemas import codec
from streams.core.state import Rules
from streams.log.interface import Log
from streams.processor.arrivals import Incoming
from streams.processor.offsets import Offsets
from streams.processor.outlet import Outlet
from streams.processor.worker import _WAITING_BYTES_MAX, _WAITING_EVENTS_MAX, Worker
from streams.settings import Settings
from tests.processor.crashing import die
from tests.processor.memory_log import MemoryLog, settle

SETTINGS = Settings(partitions=1)


class Feeding:
    """A worker with one partition, given one event after the other."""

    def __init__(self) -> None:
        self.log = MemoryLog(random.Random(0))
        self.counts: Counter[str] = Counter()
        outlet = Outlet(SETTINGS, cast(Log, self.log), self.counts, die)
        self.worker = Worker(SETTINGS, Rules(), outlet, self.counts, die)
        self.worker.state(0)
        self.offsets = Offsets(1, 0)

    def give(self, **event: Any) -> asyncio.Task[None]:
        """Hand over the next event."""
        value = codec.to_msgpack(codec.from_json(json.dumps(event).encode()))
        offset, key = self.offsets.next, str(event.get("session_id", "")).encode()
        self.offsets.arrive(offset)
        incoming = Incoming(0, offset, offset, key or None, value)
        return asyncio.create_task(self.worker.handle(incoming, self.offsets.begin(offset)))

    async def close(self, session_id: str) -> None:
        self.give(type="session_ended", session_id=session_id, end_status="error")
        await settle()


def test_a_purge_without_effect_holds_nothing_up() -> None:
    async def scenario() -> None:
        feeding = Feeding()
        feeding.give(type="session_opened", session_id="open")
        await feeding.close("closing")
        for _ in range(100):
            feeding.give(type="purge", floor=1)
        last = feeding.give(type="session_opened", session_id="behind")
        await settle()
        assert last.done()
        assert not feeding.worker._purging, "nothing waits, although a close is under way"
        assert "behind" in feeding.worker.states[0].rows
        assert feeding.counts["ignored"] == 100

    asyncio.run(scenario())


def test_a_refused_purge_is_done_when_its_letter_is_durable() -> None:
    async def scenario() -> None:
        feeding = Feeding()
        feeding.give(type="purge", floor=10)
        await settle()
        assert feeding.offsets.position == 0
        await feeding.log.deliver()
        assert feeding.offsets.position == 1
        assert len(feeding.log.topics[SETTINGS.dead_letters_topic]) == 1

    asyncio.run(scenario())


def test_events_behind_a_purge_are_left_in_the_log_when_too_many_wait() -> None:
    async def scenario() -> None:
        feeding = Feeding()
        await feeding.close("closed")
        feeding.give(type="purge", floor=1)
        handling = [
            feeding.give(type="session_opened", session_id=f"s{number}")
            for number in range(_WAITING_EVENTS_MAX)
        ]
        await settle()
        assert all(task.done() for task in handling[:-2])
        assert not handling[-1].done(), "the log is read no further"
        while not feeding.log.quiet:
            await feeding.log.deliver()
        assert handling[-1].done()
        assert len(feeding.worker.states[0].rows) == _WAITING_EVENTS_MAX
        assert not feeding.worker.states[0].markers

    asyncio.run(scenario())


def test_events_behind_the_close_of_their_session_are_left_in_the_log_when_too_many_wait() -> None:
    async def scenario() -> None:
        feeding = Feeding()
        await feeding.close("closing")
        message = {"role": "user", "content": "x" * 4_000_000}
        turn = {"prompt_messages": [message], "prompt_ids": [1], "output_ids": [2]}
        few = _WAITING_BYTES_MAX // 4_000_100
        handling = [
            feeding.give(type="turn", session_id="closing", turn_id=f"t{number}", **turn)
            for number in range(few + 1)
        ]
        await settle()
        assert all(task.done() for task in handling[:-1])
        assert not handling[-1].done(), "the log is read no further"
        while not feeding.log.quiet:
            await feeding.log.deliver()
        assert handling[-1].done()
        assert len(feeding.log.topics[SETTINGS.dead_letters_topic]) == few + 1
        assert feeding.worker._behind_closes_bytes == 0

    asyncio.run(scenario())
