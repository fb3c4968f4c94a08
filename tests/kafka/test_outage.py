"""A worker while the broker is away: it says so, waits, loses nothing and can be stopped."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.harness import linearized
from tests.kafka.broker import Broker
from tests.kafka.test_processor import as_json, events, publish, records, wait_for, worker

AWAY_S = 12.0
LINES_MAX = 40
"""In an outage; aiokafka alone says several lines every 100 ms."""
STOPPED_WITHIN_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def settings(broker: Broker) -> Settings:
    return Settings(
        bootstrap_servers=broker.bootstrap_servers,
        partitions=2,
        metrics_port=0,
        processor_session_timeout_s=6.0,
    )


def test_a_worker_outlives_its_broker(broker: Broker, settings: Settings, tmp_path: Path) -> None:
    said = tmp_path / "worker.log"
    broker.kill()
    with worker(settings, said) as running:
        wait_for(said, r"(waiting for it)")
        broker.start()
        asyncio.run(create_topics(settings))
        wait_for(said, r"(the broker answers)")
        wait_for(said, r"recovered (0) rows")
        told = events()
        asyncio.run(publish(settings, told[:3]))
        before = len(said.read_text().splitlines())
        broker.kill()
        time.sleep(AWAY_S)
        assert running.poll() is None, said.read_text()
        during = said.read_text().splitlines()[before:]
        assert 0 < len(during) < LINES_MAX, "\n".join(during)
        broker.start()
        asyncio.run(publish(settings, told[3:]))
        found = asyncio.run(records(settings, settings.samples_topic, 2))
        assert running.poll() is None, said.read_text()
    offline = linearized(told)
    assert as_json(found) == offline.samples + offline.closed


def test_a_worker_without_a_broker_can_be_stopped(
    broker: Broker, settings: Settings, tmp_path: Path
) -> None:
    said = tmp_path / "worker.log"
    asyncio.run(create_topics(settings))
    with worker(settings, said) as running:
        wait_for(said, r"recovered (0) rows")
        asyncio.run(publish(settings, events()[:3]))
        broker.kill()
        time.sleep(2)
        running.send_signal(signal.SIGTERM)
        assert running.wait(STOPPED_WITHIN_S) == 0, said.read_text()


def test_a_worker_that_waits_for_its_broker_can_be_stopped(
    broker: Broker, settings: Settings, tmp_path: Path
) -> None:
    said = tmp_path / "worker.log"
    broker.kill()
    with worker(settings, said) as running:
        wait_for(said, r"(waiting for it)")
        running.send_signal(signal.SIGTERM)
        assert running.wait(STOPPED_WITHIN_S) == 0, said.read_text()
