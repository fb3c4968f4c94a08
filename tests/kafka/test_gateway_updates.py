"""Weight updates on a real broker: the trainer speaks to one of two gateways."""

import asyncio
import dataclasses
from contextlib import AsyncExitStack
from pathlib import Path

from streams.adapters.engines.scripted import ScriptedEngine
from streams.log.kafka import KafkaLog
from streams.settings import Settings
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.prompt_setting import renderer
from tests.adapters.gateway.updates import SILENT, TURNS_MIN, UPDATES, updated
from tests.adapters.gateway.world import World, served
from tests.kafka.test_processor import worker

SECONDS_MAX = 240.0
SESSIONS = 50


def test_the_other_gateway_hears_of_every_update_through_the_log(
    settings: Settings, tmp_path: Path
) -> None:
    quick = dataclasses.replace(settings, metrics_port=0)
    given = dataclasses.replace(settings, gateway_port=0, gateway_drain_timeout_s=10.0)
    # It keeps its versions to itself: what is recorded was heard of through the log.
    engine = ScriptedEngine(SILENT, renderer().backend)

    async def story() -> None:
        async with asyncio.timeout(SECONDS_MAX), AsyncExitStack() as stack:
            worlds = []
            for _ in range(2):
                log = await stack.enter_async_context(KafkaLog(given))
                worlds.append(World(given, Faulty(log), engine))
                await stack.enter_async_context(served(worlds[-1]))
            counts = await updated(worlds[0], worlds[1], SESSIONS)
            assert counts["turns"] >= SESSIONS * TURNS_MIN
            assert {f"changed to {version}" for version in range(1, UPDATES + 1)} <= counts.keys()

    with worker(quick, tmp_path / "worker.log"):
        asyncio.run(story())
