"""Admission on a real broker: a consumer group that lags, and one that catches up."""

import asyncio
import dataclasses
from pathlib import Path

from aiokafka import AIOKafkaConsumer

from streams.adapters.gateway.access.admission import ASK_AGAIN_S
from streams.log.kafka import KafkaLog
from streams.settings import Settings
from tests.adapters.gateway.agents import says, user
from tests.adapters.gateway.world import World
from tests.kafka.test_gateway import world
from tests.kafka.test_processor import worker

GROUP = "trainer-of-{run_id}"


async def read_all(settings: Settings, group: str) -> int:
    """A trainer of the run: joins its group, reads what there is, commits; how far it came."""
    consumer = AIOKafkaConsumer(
        settings.samples_topic,
        bootstrap_servers=settings.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        async with KafkaLog(settings) as log:
            ends = await log.end_positions(settings.samples_topic)
        read = 0
        while read < sum(ends.values()):
            await consumer.getmany(timeout_ms=500)
            read = sum([await consumer.position(place) for place in consumer.assignment()])
        await consumer.commit()
        return read
    finally:
        await consumer.stop()


async def closed(made: World, run_id: str) -> None:
    agent = await made.open(run_id=run_id)
    await agent.ask(user("Hi"))
    await made.ends_whole(agent)


async def opened(made: World, run_id: str) -> int:
    """The status of an opening, when the last answer of the log is old."""
    await asyncio.sleep(ASK_AGAIN_S)
    status, told = await made.control("sessions", {"run_id": run_id})
    if status == 429:
        assert f"trainer-of-{run_id} is 2 records behind" in told["error"]
    return status


def test_a_run_waits_for_its_own_group_until_that_has_caught_up(
    settings: Settings, tmp_path: Path
) -> None:
    given = dataclasses.replace(settings, metrics_port=0, admission_lag_max=1, trainer_group=GROUP)

    async def story() -> None:
        async with world(given, *(says("Yes.") for _ in range(9))) as made:
            told = made.gateway.admission
            # No such group yet: everybody is let in, and that is said.
            await closed(made, "a")
            assert told.told is not None
            assert told.told["groups"] == {
                "trainer-of-a": {"unknown": "no such group: it never committed"}
            }
            for run in ("a", "b"):
                assert await read_all(given, f"trainer-of-{run}") == 2
            assert [await opened(made, run) for run in ("a", "b")] == [200, 200]
            await closed(made, "a")
            assert await read_all(given, "trainer-of-b") == 4
            assert [await opened(made, run) for run in ("a", "b")] == [429, 200]
            assert await read_all(given, "trainer-of-a") == 4
            assert [await opened(made, run) for run in ("a", "b")] == [200, 200]

    with worker(given, tmp_path / "worker.log"):
        asyncio.run(story())
