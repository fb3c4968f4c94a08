"""Events that do not arrive: skipped ones are fetched again, lost ones are passed over."""

import asyncio
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from streams.log.interface import Outgoing
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.core.test_limits import chain
from tests.kafka.test_processor import SECONDS_MAX, publish, wait_for, worker

SKIPS = (sys.executable, "-m", "tests.kafka.skipping_worker")
MANY = 600
SKIPPED = 300
STEADY_S = 0.02


@pytest.fixture
def one_partition(bare_settings: Settings) -> Settings:
    settings = dataclasses.replace(
        bare_settings, partitions=1, metrics_port=0, processor_session_timeout_s=6.0
    )
    asyncio.run(create_topics(settings))
    return settings


def turns(count: int, session_id: str) -> list[dict[str, Any]]:
    return [turn | {"session_id": session_id} for turn in chain(count)]


async def committed(log: KafkaLog, settings: Settings) -> int:
    found = await log.committed(settings.processor_id, settings.turns_topic)
    return found.get(0, 0)


def test_a_skipped_event_is_fetched_again_although_more_keep_coming(
    one_partition: Settings, tmp_path: Path
) -> None:
    said = tmp_path / "worker.log"

    async def steady() -> None:
        """Publish on and on until the worker is past what was skipped."""
        until_s = time.monotonic() + SECONDS_MAX
        async with KafkaLog(one_partition) as log:
            while await committed(log, one_partition) <= SKIPPED:
                assert time.monotonic() < until_s, said.read_text()
                outgoing = Outgoing(topic=one_partition.turns_topic, key=b"s", value=b"\xc1")
                await log.publish(outgoing)
                await asyncio.sleep(STEADY_S)

    asyncio.run(publish(one_partition, turns(MANY, "s")))
    with worker(one_partition, said, *SKIPS, str(SKIPPED)):
        wait_for(said, r"(skipped)")
        asyncio.run(steady())


def test_what_retention_took_is_passed_over_and_said(
    one_partition: Settings, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.log", tmp_path / "second.log"

    async def until(position: int) -> None:
        until_s = time.monotonic() + SECONDS_MAX
        async with KafkaLog(one_partition) as log:
            while await committed(log, one_partition) < position:
                assert time.monotonic() < until_s, second.read_text()
                await asyncio.sleep(0.1)

    async def forget(before: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=one_partition.bootstrap_servers)
        await admin.start()
        place = TopicPartition(one_partition.turns_topic, 0)
        await admin.delete_records({place: RecordsToDelete(before_offset=before)})
        await admin.close()

    with worker(one_partition, first):
        asyncio.run(publish(one_partition, turns(5, "a")))
        asyncio.run(until(5))
    asyncio.run(publish(one_partition, turns(20, "b")))
    asyncio.run(forget(12))
    with worker(one_partition, second):
        asyncio.run(until(25))
        assert wait_for(second, r"has nothing from (5 to 11)")
