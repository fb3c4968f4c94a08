"""The promise under one fault of each main kind, on every run of the tests."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.chaos.arena import Arena, short_settings
from tests.chaos.comparison import Verdict
from tests.chaos.faults import BROKER_KILL, KILL, STOP, Faults
from tests.kafka.broker import Broker

SEED = 4
WORKERS = 2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Its own, since it is killed."""
    with Broker(tmp_path / "broker") as running:
        yield running


def test_killed_stopped_and_without_a_broker_the_workers_give_what_one_process_would(
    broker: Broker, tmp_path: Path
) -> None:
    settings = short_settings(
        [broker], idle_limit_s=8.0, reward_grace_s=8.0, processor_buffer_events=4096
    )

    async def scenario() -> Verdict:
        async with Arena(tmp_path / "workers", [broker], settings, SEED, side_by_side=30) as arena:
            await arena.load.publish(900)
            arena.crew.pace(0.01)
            arena.crew.supervise(WORKERS)
            arena.start_load(rate=200, backlog_max=1000)
            faults = Faults(arena, Random(SEED), WORKERS)
            for kind in (KILL, STOP, BROKER_KILL):
                assert await faults.wait_for_backlog(20)
                fault = await faults.inject(kind)
                assert fault is not None
                assert fault.counts
            assert await arena.end_the_hard_way(WORKERS) == [0] * WORKERS
            assert arena.crew.unexpected == []
            return await arena.judged()

    verdict = asyncio.run(scenario())
    assert verdict.differences == {}
