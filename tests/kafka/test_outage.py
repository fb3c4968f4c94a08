"""A worker while the broker is away: it says so, waits, loses nothing and can be stopped."""

import asyncio
import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

from streams.log.kafka_topics import create_topics
from streams.processor import faust_hooks
from streams.settings import Settings
from tests.cli.command import COMMAND
from tests.harness import linearized
from tests.kafka.broker import Broker
from tests.kafka.test_processor import (
    SECONDS_MAX,
    as_json,
    events,
    publish,
    records,
    wait_for,
    worker,
)

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
    # While the broker is there: a worker that is quicker than this would find no topics, and end.
    asyncio.run(create_topics(settings))
    broker.kill()
    with worker(settings, said) as running:
        wait_for(said, r"(waiting for it)")
        broker.start()
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


def test_a_consumer_stops_while_its_fetch_waits_to_try_again(
    broker: Broker, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    faust_hooks.let_fetches_be_cancelled()
    asyncio.run(create_topics(settings))

    async def scenario() -> None:
        consumer = AIOKafkaConsumer(
            settings.turns_topic,
            bootstrap_servers=settings.bootstrap_servers,
            retry_backoff_ms=600_000,
        )
        await consumer.start()
        for place in consumer.assignment():
            await consumer.position(place)
        broker.kill()
        until_s = time.monotonic() + SECONDS_MAX
        while "Failed fetch messages" not in caplog.text and time.monotonic() < until_s:
            await asyncio.wait_for(consumer.getmany(timeout_ms=50), SECONDS_MAX)
        async with asyncio.timeout(SECONDS_MAX):
            await consumer.stop()
        assert "Failed fetch messages" in caplog.text

    asyncio.run(scenario())


def progress(pages: str) -> tuple[int, dict[str, Any]]:
    """Status and facts of `/healthz`."""
    try:
        with urllib.request.urlopen(f"{pages}/healthz", timeout=10) as answer:
            return int(answer.status), json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def until_healthz(pages: str, status: int) -> dict[str, Any]:
    until_s = time.monotonic() + SECONDS_MAX
    while (found := progress(pages))[0] != status:
        assert time.monotonic() < until_s, found
        time.sleep(0.2)
    return found[1]


SILENCES: dict[str, tuple[Callable[[Broker], object], Callable[[Broker], object]]] = {
    "a broker that hangs": (Broker.pause, Broker.resume),
    "a broker that is gone": (Broker.kill, Broker.start),
}


@pytest.mark.parametrize(("silence", "answer"), SILENCES.values(), ids=SILENCES)
def test_a_worker_that_hears_nothing_is_not_healthy_and_knows_of_no_lag(
    broker: Broker,
    settings: Settings,
    tmp_path: Path,
    silence: Callable[[Broker], object],
    answer: Callable[[Broker], object],
) -> None:
    said = tmp_path / "worker.log"
    asyncio.run(create_topics(settings))
    with worker(settings, said):
        pages = wait_for(said, r"health and metrics on (http://\S+)")
        wait_for(said, r"recovered (0) rows")
        assert until_healthz(pages, 200)["lag"] == 0
        # Longer than any break that the check of a worker with nothing to do could mistake.
        until_s = time.monotonic() + 2 * settings.away_after_s
        while time.monotonic() < until_s:
            assert progress(pages)[0] == 200
            time.sleep(0.2)
        silence(broker)
        try:
            told = until_healthz(pages, 503)
            with urllib.request.urlopen(f"{pages}/metrics", timeout=10) as page:
                metrics = page.read().decode()
        finally:
            answer(broker)
        assert told["trouble"].startswith("no answer from the broker for ")
        assert told["lag"] is None
        assert "turnstream_lag NaN" in metrics
        assert until_healthz(pages, 200)["lag"] == 0


def test_a_sink_that_hears_nothing_is_not_healthy_and_knows_of_no_lag(
    broker: Broker, settings: Settings, tmp_path: Path
) -> None:
    said = tmp_path / "sink.log"
    asyncio.run(create_topics(settings))
    with worker(settings, said, COMMAND, "sink", "jsonl", "--to", tmp_path / "traces"):
        pages = wait_for(said, r"health and metrics on (http://\S+)")
        until_s = time.monotonic() + SECONDS_MAX
        while progress(pages)[1]["partitions"] != settings.partitions:
            assert time.monotonic() < until_s, said.read_text()
            time.sleep(0.1)
        broker.pause()
        try:
            told = until_healthz(pages, 503)
        finally:
            broker.resume()
        assert told["trouble"].startswith("no answer from the log for ")
        assert told["lag"] is None
        assert until_healthz(pages, 200)["lag"] == 0
