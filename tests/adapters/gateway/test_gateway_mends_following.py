"""The follower hands on what is written, what was written last, and outlives faults of the log."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from streams.adapters.gateway.following import LOOK_BACK, Follower
from streams.errors import LogAway, LogError, NoSuchPosition
from streams.log.interface import Entry, Outgoing, Reader
from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.world import until

TOPIC = "t"


class Failing(Faulty):
    """Some readings of it fail."""

    def __init__(self, log: SqliteLog) -> None:
        super().__init__(log)
        self.failures: list[LogError] = []

    async def read(self, topic: str, positions: Mapping[int, int]) -> Reader:
        if self.failures:
            raise self.failures.pop()
        return await super().read(topic, positions)


def followed(
    folder: Path,
    story: Callable[[Failing, Follower, list[int]], Awaitable[None]],
    look_back: int = LOOK_BACK,
) -> None:
    async def whole() -> None:
        path = folder / "log.db"
        async with asyncio.timeout(60), SqliteLog(path, Settings(log=str(path))) as sqlite:
            log, met = Failing(sqlite), list[int]()

            def meet(entry: Entry) -> None:
                met.append(entry.position.offset)

            follower = Follower(log, TOPIC, meet, look_back=look_back)
            try:
                await story(log, follower, met)
            finally:
                await follower.close()

    asyncio.run(whole())


async def write(log: Failing, count: int) -> None:
    for _ in range(count):
        await log.publish(Outgoing(topic=TOPIC, key=b"k", value=b"v"))


async def is_met(met: list[int], expected: list[int]) -> None:
    async def holds() -> bool:
        return met == expected

    await until(holds)


def test_what_is_written_is_met_and_so_is_the_newest_of_what_was_there(tmp_path: Path) -> None:
    async def story(log: Failing, follower: Follower, met: list[int]) -> None:
        await write(log, 5)
        follower.start()
        await follower.looked_back(10.0)
        assert met == [2, 3, 4]
        await write(log, 2)
        await is_met(met, [2, 3, 4, 5, 6])

    followed(tmp_path, story, look_back=3)


def test_faults_of_the_log_do_not_end_it(tmp_path: Path) -> None:
    async def story(log: Failing, follower: Follower, met: list[int]) -> None:
        log.failures = [LogError("broken"), NoSuchPosition("gone")]
        await write(log, 2)
        follower.start()
        await is_met(met, [0, 1])
        assert log.failures == []

    followed(tmp_path, story)


def test_a_log_that_is_away_is_said(tmp_path: Path) -> None:
    async def story(log: Failing, follower: Follower, _: list[int]) -> None:
        log.away = "lost"
        follower.start()
        with pytest.raises(LogAway, match="was not read in"):
            await follower.looked_back(0.3)

    followed(tmp_path, story)
