"""Weight updates on a real broker: the trainer speaks to one of two gateways."""

import asyncio
import dataclasses
import time
from contextlib import AsyncExitStack
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from schemas.control import Paused, Resumed
from streams.adapters.engines.scripted import ScriptedEngine
from streams.adapters.gateway.sampling.weights import Weights
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.log.topics import topic_specs
from streams.settings import Settings
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.adapters.gateway.updates import LABELS, TURNS_MIN, UPDATES, updated
from tests.adapters.gateway.world import World, served
from tests.kafka.entries import everything
from tests.kafka.test_processor import worker

SECONDS_MAX = 240.0
SESSIONS = 50


def test_the_other_gateway_hears_of_every_update_through_the_log(
    settings: Settings, tmp_path: Path
) -> None:
    quick = dataclasses.replace(settings, metrics_port=0)
    given = dataclasses.replace(
        settings, gateway_port=0, gateway_drain_timeout_s=10.0, gateway_weight_version=0
    )
    # It keeps its versions to itself: what is recorded was heard of through the log.
    engine = ScriptedEngine(LABELS, renderer().backend)

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


async def create_hasty(settings: Settings) -> None:
    """The control topic, compacted within a second instead of an hour."""
    (spec,) = (s for s in topic_specs(settings, 1) if s.name == settings.control_topic)
    hasty = {"segment.ms": "200", "min.cleanable.dirty.ratio": "0.01"}
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(spec.name, 1, 1, topic_configs=spec.configs | hasty)])
    finally:
        await admin.close()
    assert (await create_topics(settings)).problems == []


def test_what_is_compacted_away_changes_nothing_for_a_gateway_that_starts_late(
    bare_settings: Settings,
) -> None:
    settings = bare_settings

    async def story() -> None:
        await create_hasty(settings)
        async with asyncio.timeout(SECONDS_MAX), KafkaLog(settings) as log:
            first, late = Weights(settings, log), Weights(settings, log)
            first.follow()
            try:
                for version in range(5):
                    await first.tell(Resumed(run_id="old", version=version, cache_flushed=True))
                await first.tell(Resumed(run_id="back", version=7, run_epoch=1))
                await first.tell(Paused(run_id="old"))
                # Of a trainer that was replaced: it counts for nothing, also as the last of all.
                await first.tell(Resumed(run_id="back", version=9))
                version, until_s = 0, time.monotonic() + 60.0
                while 3 in [
                    e.position.offset for e in await everything(log, settings.control_topic)
                ]:
                    assert time.monotonic() < until_s, "it is not compacted"
                    version += 1
                    await first.tell(Paused(run_id="new"))
                    await first.tell(Resumed(run_id="new", version=version))
                    await asyncio.sleep(0.3)
                late.follow()
                await late.known()
                for run_id in ("old", "back", "new", "never heard of"):
                    knows, known = late.of(run_id), first.of(run_id)
                    assert (knows.paused, knows.version) == (known.paused, known.version)
                    assert (knows.run_epoch, knows.cache_flushed) == (
                        known.run_epoch,
                        known.cache_flushed,
                    )
                assert late.of("old").paused
                assert (late.of("old").version, late.of("back").version) == (4, 7)
            finally:
                await first.close()
                await late.close()

    asyncio.run(story())
