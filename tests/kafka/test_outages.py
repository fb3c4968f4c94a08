"""The broker goes away and comes back: bounded errors, nothing lost, nothing twice."""

import asyncio
import contextlib
import dataclasses
import itertools
import re
import time
from collections.abc import Iterator

import pytest

from streams.errors import LogAway
from streams.log.interface import Position
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.kafka.broker import Broker
from tests.kafka.entries import event, everything


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker to break; each test finds it running and leaves it so."""
    with Broker(tmp_path_factory.mktemp("fragile")) as broker:
        yield broker


@pytest.fixture
def settings(fragile: Broker, request: pytest.FixtureRequest) -> Settings:
    if not fragile.running:
        fragile.start()  # a test that failed may have left it down
    prefix = request.node.name[:60]
    servers = fragile.bootstrap_servers
    settings = Settings(bootstrap_servers=servers, topic_prefix=prefix, partitions=4)
    assert asyncio.run(create_topics(settings)).problems == []
    return settings


def test_without_a_broker_everything_fails_in_time_and_goes_on_afterwards(
    fragile: Broker, settings: Settings
) -> None:
    hasty = dataclasses.replace(settings, publish_timeout_s=1.0, request_timeout_s=1.0)
    topic = settings.turns_topic

    async def scenario() -> None:
        async with KafkaLog(hasty) as log:
            first = await log.publish(event(hasty, "s", "1"))
            reader = await log.read(topic, {first.partition: 0})
            closed = KafkaLog(hasty)
            await closed.publish(event(hasty, "closed", "1"))
            await asyncio.to_thread(fragile.stop)
            await _fails_in_time(log, hasty)
            await closed.send(event(hasty, "closed", "2"))
            await closed.close()
            assert [e.value for e in await reader.next_batch(1)] == [b"1"]
            assert await reader.next_batch(1.2) == []
            assert reader.silent_s > 1

            await asyncio.to_thread(fragile.start)
            last = await asyncio.wait_for(_until_published(log, hasty), 30)
            found = await everything(log, topic)
            # An idempotent producer retries for ever; one that was given up does not.
            assert [e.value for e in found if e.key == b"closed"] == [b"1"]
            # What was not acknowledged may still arrive, but in its place and once.
            numbers = [int(e.value or b"") for e in found if e.key == b"s"]
            assert numbers == sorted(set(numbers))
            assert numbers[0] == 1
            assert max(e.position for e in found if e.key == b"s") == last
            seen = [1]
            async with asyncio.timeout(30):
                while seen[-1] != numbers[-1]:
                    seen += [int(e.value or b"") for e in await reader.next_batch(5)]
            assert seen == numbers
            assert reader.silent_s < 1.5
            await reader.close()

    asyncio.run(scenario())


async def _fails_in_time(log: KafkaLog, settings: Settings) -> None:
    topic, begun_s = settings.turns_topic, time.monotonic()
    with pytest.raises(LogAway) as away:
        await log.publish(event(settings, "s", "2"))
    text = f"publish to {topic}, session s, turn t1: not acknowledged by 127"
    assert str(away.value).startswith(text)
    assert str(away.value).endswith("in 1 s; it may still be stored")
    with pytest.raises(LogAway, match=f"topic {topic}: no answer from 127"):
        await log.end_positions(topic)
    assert time.monotonic() - begun_s < 6


async def _until_published(log: KafkaLog, settings: Settings) -> Position:
    for number in itertools.count(3):
        with contextlib.suppress(LogAway):
            return await log.publish(event(settings, "s", f"{number}"))
    raise AssertionError


def test_what_is_on_its_way_survives_a_killed_broker_in_order_and_once(
    fragile: Broker, settings: Settings
) -> None:
    async def scenario() -> None:
        async with KafkaLog(settings) as log:
            sent = []
            for n in range(2000):
                sent.append(await log.send(event(settings, f"s{n % 7}", f"{n}")))
                if n == 1000:
                    await sent[500]
                    fragile.kill()
                    fragile.spawn()
            places = [await one for one in sent]
            fragile.wait()
            found = await everything(log, settings.turns_topic)
        assert sorted(places) == [entry.position for entry in found]
        for session in range(7):
            mine = [int(e.value or b"") for e in found if e.key == f"s{session}".encode()]
            assert mine == list(range(session, 2000, 7))

    asyncio.run(scenario())


def test_a_log_is_closed_in_time_while_the_broker_hangs(
    fragile: Broker, settings: Settings
) -> None:
    hasty = dataclasses.replace(settings, publish_timeout_s=1.0, request_timeout_s=1.0)

    async def scenario() -> float:
        log = KafkaLog(hasty)
        try:
            await log.publish(event(hasty, "s", "1"))
            await log.end_positions(hasty.turns_topic)
            fragile.pause()
            await log.send(event(hasty, "s", "2"))
            begun_s = time.monotonic()
            await log.close()
            return time.monotonic() - begun_s
        finally:
            fragile.resume()

    assert asyncio.run(scenario()) < 8


def test_no_broker_at_all_is_said_in_time() -> None:
    settings = Settings(
        bootstrap_servers="127.0.0.1:19999", request_timeout_s=0.5, publish_timeout_s=0.8
    )

    async def scenario() -> None:
        async with KafkaLog(settings) as log:
            text = r"no answer from 127.0.0.1:19999 in 0.8 s.*"
            many = [log.publish(event(settings, "s", f"{n}")) for n in range(20)]
            for error in await asyncio.gather(*many, return_exceptions=True):
                assert isinstance(error, LogAway)
                assert re.search(text, str(error))
            with pytest.raises(LogAway, match=r"no answer from 127.0.0.1:19999 in 0.5 s"):
                await log.committed("g", settings.turns_topic)

    begun_s = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - begun_s < 30
