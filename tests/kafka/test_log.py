"""The log on a real broker: what was published is read back, in order, from any position."""

import asyncio
import dataclasses
import os
import random
import time

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from streams.errors import LogError, NoSuchPosition, TooLarge, WrongTopic
from streams.log.interface import Log, Outgoing, Position
from streams.log.kafka import KafkaLog
from streams.log.partitioner import partition_of
from streams.settings import Settings
from tests.kafka.broker import Broker
from tests.kafka.entries import event, everything


async def make_topic(settings: Settings, name: str, partitions: int, **configs: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    await admin.start()
    named = {key.replace("_", "."): value for key, value in configs.items()}
    try:
        await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=named)])
    finally:
        await admin.close()


def test_what_was_published_is_read_back_at_the_position_it_was_given(settings: Settings) -> None:
    async def scenario() -> None:
        async with KafkaLog(settings) as kafka:
            log: Log = kafka  # the interface is all that is used
            before_ms = time.time() * 1000 - 1000
            places = [await log.publish(event(settings, f"s{n}", f"v{n}")) for n in range(8)]
            found = {
                entry.position: entry for entry in await everything(kafka, settings.turns_topic)
            }
        assert set(found) == set(places)
        for n, place in enumerate(places):
            assert (found[place].key, found[place].value) == (f"s{n}".encode(), f"v{n}".encode())
            assert before_ms < found[place].timestamp_ms < time.time() * 1000 + 1000

    asyncio.run(scenario())


def test_a_session_stays_in_its_partition_and_in_order(settings: Settings) -> None:
    async def scenario() -> None:
        async with KafkaLog(settings) as log:
            sent = [await log.send(event(settings, f"s{n % 10}", f"{n}")) for n in range(3000)]
            places = [await one for one in sent]
            found = await everything(log, settings.turns_topic)
        assert [e.position for e in found] == sorted(places)
        for session in range(10):
            mine = [e for e in found if e.key == f"s{session}".encode()]
            assert [int(e.value or b"") for e in mine] == list(range(session, 3000, 10))
            wanted = partition_of(f"s{session}".encode(), settings.partitions)
            assert {e.position.partition for e in mine} == {wanted}

    asyncio.run(scenario())


def test_a_reader_starts_where_it_is_told(settings: Settings) -> None:
    async def scenario() -> None:
        async with KafkaLog(settings) as log:
            places = [await log.publish(event(settings, "s", f"{n}")) for n in range(5)]
            at = places[0].partition
            reader = await log.read(settings.turns_topic, {at: 3})
            found = await reader.next_batch(10)
            assert [e.value for e in found] == [b"3", b"4"]
            assert reader.positions == {at: 5}
            assert await reader.next_batch(0.2) == []
            assert reader.silent_s < 2
            await log.publish(event(settings, "s", "5"))
            assert [e.value for e in await reader.next_batch(10)] == [b"5"]
            await reader.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("offset", [-1, 2, 99])
def test_a_position_the_log_does_not_hold_is_an_error(settings: Settings, offset: int) -> None:
    async def scenario() -> None:
        async with KafkaLog(settings) as log:
            place = await log.publish(event(settings, "s", "1"))
            with pytest.raises(NoSuchPosition, match=f"/{offset}: the log holds 0 up to 1"):
                await log.read(settings.turns_topic, {place.partition: offset})

    asyncio.run(scenario())


def test_committed_positions_belong_to_a_group_and_give_its_lag(settings: Settings) -> None:
    topic = settings.turns_topic

    async def scenario() -> None:
        async with KafkaLog(settings) as log:
            for n in range(6):
                await log.publish(dataclasses.replace(event(settings, "s", "v"), partition=n % 2))
            assert await log.start_positions(topic) == {0: 0, 1: 0, 2: 0, 3: 0}
            assert await log.end_positions(topic) == {0: 3, 1: 3, 2: 0, 3: 0}
            assert await log.committed("mine", topic) == {}
            assert await log.lag("mine", topic) == {0: 3, 1: 3, 2: 0, 3: 0}
            await log.commit("mine", topic, {0: 2, 2: 0})
        async with KafkaLog(settings) as log:
            assert await log.committed("mine", topic) == {0: 2, 2: 0}
            assert await log.lag("mine", topic) == {0: 1, 1: 3, 2: 0, 3: 0}
            assert await log.committed("other", topic) == {}
            assert set(log._groups) == {"mine", "other"}
            await log.let_go("other")
            assert set(log._groups) == {"mine"}
            await log.commit("mine", topic, {0: 1})
            assert await log.committed("mine", topic) == {0: 1, 2: 0}

    asyncio.run(scenario())


def test_positions_of_a_living_group_can_be_read_but_not_set(settings: Settings) -> None:
    topic = settings.turns_topic

    async def scenario() -> None:
        member = AIOKafkaConsumer(
            topic, bootstrap_servers=settings.bootstrap_servers, group_id="living"
        )
        await member.start()
        try:
            async with KafkaLog(settings) as log:
                assert await log.committed("living", topic) == {}
                with pytest.raises(LogError, match=r"group living .* has living members"):
                    await log.commit("living", topic, {0: 0})
        finally:
            await member.stop()

    asyncio.run(scenario())


def test_a_value_over_the_limit_is_refused_by_name_and_nothing_is_written(
    settings: Settings,
) -> None:
    async def scenario() -> None:
        async with KafkaLog(settings) as log:
            fits = settings.message_bytes_max - len("session-1")
            with pytest.raises(TooLarge) as refused:
                await log.publish(event(settings, "session-1", bytes(fits + 1)))
            text = "oversize: session session-1, turn t1: 8388609 bytes, the limit is 8388608"
            assert str(refused.value) == text
            assert (refused.value.code, refused.value.turn_id) == ("oversize", "t1")
            assert set((await log.end_positions(settings.turns_topic)).values()) == {0}

    asyncio.run(scenario())


def test_the_largest_event_and_what_holds_it_pass_the_broker(settings: Settings) -> None:
    """Random bytes, since zstd makes those longer; the broker counts what zstd made of them."""
    key = b"session-1"
    value = random.Random(1).randbytes(settings.message_bytes_max - len(key))
    letter = os.urandom(settings.record_bytes_max - len(key))

    async def scenario() -> None:
        async with KafkaLog(settings) as log:
            await log.publish(event(settings, key.decode(), value))
            (entry,) = await everything(log, settings.turns_topic)
            assert entry.value == value
            for topic in (settings.dead_letters_topic, settings.changelog_topic):
                await log.publish(Outgoing(topic=topic, key=key, value=letter))

    asyncio.run(scenario())


def test_entries_are_compressed_where_they_are_kept(broker: Broker, settings: Settings) -> None:
    async def scenario() -> Position:
        async with KafkaLog(settings) as log:
            return await log.publish(event(settings, "s", bytes(1_000_000)))

    place = asyncio.run(scenario())
    folder = broker.folder / "data" / f"{place.topic}-{place.partition}"
    assert sum(path.stat().st_size for path in folder.glob("*.log")) < 10_000


def test_a_tombstone_needs_no_value_and_an_entry_without_a_key_needs_a_partition(
    settings: Settings,
) -> None:
    topic = settings.turns_topic

    async def scenario() -> None:
        async with KafkaLog(settings) as log:
            await log.publish(Outgoing(topic=topic, key=b"k", value=None, partition=0))
            await log.publish(Outgoing(topic=topic, key=None, value=b"v", partition=0))
            found = await everything(log, topic)
            assert [(e.key, e.value) for e in found] == [(b"k", None), (None, b"v")]
            with pytest.raises(ValueError, match="explicit partition"):
                await log.publish(Outgoing(topic=topic, key=None, value=b"v"))
            with pytest.raises(WrongTopic, match="no partition 4"):
                await log.publish(Outgoing(topic=topic, key=b"k", value=b"v", partition=4))

    asyncio.run(scenario())


def test_a_missing_topic_is_named_in_bounded_time(bare_settings: Settings) -> None:
    settings = dataclasses.replace(bare_settings, request_timeout_s=0.4)

    async def scenario() -> None:
        async with KafkaLog(settings) as log:
            text = rf"{settings.turns_topic}.*: there is no such topic; .*`turnstream topics`"
            with pytest.raises(WrongTopic, match=text):
                await log.publish(event(settings, "s", "v"))
            with pytest.raises(WrongTopic, match=text):
                await log.end_positions(settings.turns_topic)
            with pytest.raises(WrongTopic, match=text):
                await log.read(settings.turns_topic, {0: 0})

    begun_s = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - begun_s < 10


def test_turns_are_not_published_to_another_number_of_partitions(bare_settings: Settings) -> None:
    async def scenario() -> None:
        await make_topic(bare_settings, bare_settings.turns_topic, 3)
        async with KafkaLog(bare_settings) as log:
            for _ in range(2):
                with pytest.raises(WrongTopic, match="has 3 partitions instead of 4"):
                    await log.publish(event(bare_settings, "s", "v"))

    asyncio.run(scenario())


def test_a_refused_batch_does_not_spoil_what_comes_after_it(bare_settings: Settings) -> None:
    """It leaves a hole in the producer's numbers; with that producer all that follows fails."""
    topic = bare_settings.samples_topic

    async def scenario() -> None:
        await make_topic(bare_settings, topic, 1, max_message_bytes="1000")
        async with KafkaLog(bare_settings) as log:
            await log.publish(Outgoing(topic=topic, key=b"k", value=b"1"))
            with pytest.raises(TooLarge, match="more than the broker takes"):
                await log.publish(Outgoing(topic=topic, key=b"k", value=os.urandom(5000)))
            for value in (b"2", b"3"):
                await log.publish(Outgoing(topic=topic, key=b"k", value=value))
            assert [e.value for e in await everything(log, topic)] == [b"1", b"2", b"3"]

    asyncio.run(scenario())
