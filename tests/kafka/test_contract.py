"""What every store of the log does, claimed once and run against the real broker and a file.

The topics have one partition, so positions can be compared as they are.
"""

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

import pytest

from streams.errors import NoSuchPosition, TooLarge, WrongTopic
from streams.log.interface import Entry, Log, Outgoing, Position
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from tests.kafka.broker import Broker
from tests.kafka.entries import event

SECONDS_MAX = 30


@dataclass(frozen=True)
class Store:
    """One place for a log; each `open` is another user of it."""

    settings: Settings
    open: Callable[[], Log]

    @property
    def topic(self) -> str:
        return self.settings.turns_topic


@pytest.fixture(params=["kafka", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    prefix = f"contract-{uuid.uuid4().hex[:8]}"
    if request.param == "sqlite":
        settings = Settings(topic_prefix=prefix, partitions=1)
        return Store(settings, lambda: SqliteLog(tmp_path / "log.db", settings))
    broker: Broker = request.getfixturevalue("broker")
    servers = broker.bootstrap_servers
    settings = Settings(bootstrap_servers=servers, topic_prefix=prefix, partitions=1)
    assert asyncio.run(create_topics(settings)).problems == []
    return Store(settings, lambda: KafkaLog(settings))


def run(store: Store, scenario: Callable[[Log], Coroutine[None, None, None]]) -> None:
    """Open the log, let the scenario use it, close it; bounded."""

    async def bounded() -> None:
        async with asyncio.timeout(SECONDS_MAX), store.open() as log:
            await scenario(log)

    asyncio.run(bounded())


async def entries(log: Log, topic: str, start: int = 0) -> list[Entry]:
    """All from there to the end."""
    end = (await log.end_positions(topic))[0]
    reader = await log.read(topic, {0: start})
    found: list[Entry] = []
    while reader.positions[0] < end:
        found += await reader.next_batch(0.5)
    await reader.close()
    return found


def test_what_was_published_is_read_back_at_the_position_it_was_given(store: Store) -> None:
    async def scenario(log: Log) -> None:
        before_ms = time.time() * 1000 - 1000
        places = [await log.publish(event(store.settings, f"s{n}", f"v{n}")) for n in range(8)]
        assert places == [Position(store.topic, 0, n) for n in range(8)]
        found = await entries(log, store.topic)
        assert [e.position for e in found] == places
        assert [(e.key, e.value) for e in found] == [
            (f"s{n}".encode(), f"v{n}".encode()) for n in range(8)
        ]
        times_ms = [e.timestamp_ms for e in found]
        assert times_ms == sorted(times_ms)
        assert before_ms < times_ms[0]
        assert times_ms[-1] < time.time() * 1000 + 1000

    run(store, scenario)


def test_what_is_sent_without_waiting_stands_in_the_order_it_was_sent(store: Store) -> None:
    async def scenario(log: Log) -> None:
        sent = [await log.send(event(store.settings, f"s{n % 7}", f"{n}")) for n in range(3000)]
        assert [(await one).offset for one in sent] == list(range(3000))
        found = await entries(log, store.topic)
        assert [int(e.value or b"") for e in found] == list(range(3000))
        assert [e.position.offset for e in found] == list(range(3000))

    run(store, scenario)


def test_a_sender_is_called_back_once_its_entry_is_durable(store: Store) -> None:
    async def scenario(log: Log) -> None:
        sent = [await log.send(event(store.settings, "s", f"{n}")) for n in range(3)]
        called: list[int] = []
        done = asyncio.Event()

        def settled(n: int) -> None:
            called.append(sent[n].settled_position().offset)
            if len(called) == 3:
                done.set()

        for n in range(3):
            sent[n].on_settled(lambda n=n: settled(n))  # type: ignore[misc]  # bound now
        await done.wait()
        assert called == [0, 1, 2]
        assert [(await one).offset for one in sent] == [0, 1, 2]

    run(store, scenario)


def test_topics_count_their_positions_for_themselves(store: Store) -> None:
    async def scenario(log: Log) -> None:
        settings = store.settings
        for n in range(3):
            await log.publish(event(settings, "s", f"turn {n}"))
        sample = Outgoing(topic=settings.samples_topic, key=b"g", value=b"sample")
        assert await log.publish(sample) == Position(settings.samples_topic, 0, 0)
        assert await log.end_positions(settings.turns_topic) == {0: 3}
        assert await log.end_positions(settings.samples_topic) == {0: 1}
        assert [e.value for e in await entries(log, settings.samples_topic)] == [b"sample"]

    run(store, scenario)


def test_a_topic_without_an_entry_starts_and_ends_at_0_and_can_be_waited_for(store: Store) -> None:
    async def scenario(log: Log) -> None:
        assert await log.start_positions(store.topic) == {0: 0}
        assert await log.end_positions(store.topic) == {0: 0}
        assert await log.lag("g", store.topic) == {0: 0}
        reader = await log.read(store.topic, {0: 0})
        assert await reader.next_batch(0.2) == []
        assert reader.positions == {0: 0}
        await log.publish(event(store.settings, "s", "first"))
        assert [e.value for e in await reader.next_batch(10)] == [b"first"]
        await reader.close()

    run(store, scenario)


def test_a_reader_starts_where_it_is_told_and_goes_on(store: Store) -> None:
    async def scenario(log: Log) -> None:
        for n in range(5):
            await log.publish(event(store.settings, "s", f"{n}"))
        reader = await log.read(store.topic, {0: 3})
        assert [e.value for e in await reader.next_batch(10)] == [b"3", b"4"]
        assert reader.positions == {0: 5}
        assert await reader.next_batch(0.2) == []
        assert reader.silent_s < 2
        await log.publish(event(store.settings, "s", "5"))
        assert [e.value for e in await reader.next_batch(10)] == [b"5"]
        await reader.close()

    run(store, scenario)


def test_a_batch_is_no_longer_than_asked_and_nothing_is_skipped(store: Store) -> None:
    async def scenario(log: Log) -> None:
        sent = [await log.send(event(store.settings, "s", f"{n}")) for n in range(100)]
        await sent[-1]
        reader = await log.read(store.topic, {0: 0})
        found: list[Entry] = []
        while len(found) < 100:
            batch = await reader.next_batch(10, 7)
            assert 0 < len(batch) <= 7
            found += batch
            assert reader.positions == {0: len(found)}
        assert [int(e.value or b"") for e in found] == list(range(100))
        await reader.close()

    run(store, scenario)


def test_readers_do_not_disturb_each_other(store: Store) -> None:
    async def scenario(log: Log) -> None:
        for n in range(4):
            await log.publish(event(store.settings, "s", f"{n}"))
        first, second = await log.read(store.topic, {0: 0}), await log.read(store.topic, {0: 2})
        assert [e.value for e in await second.next_batch(10)] == [b"2", b"3"]
        assert [e.value for e in await first.next_batch(10)] == [b"0", b"1", b"2", b"3"]
        await first.close()
        await log.publish(event(store.settings, "s", "4"))
        assert [e.value for e in await second.next_batch(10)] == [b"4"]
        await second.close()

    run(store, scenario)


@pytest.mark.parametrize("offset", [-1, 2, 99])
def test_a_position_the_log_does_not_hold_is_an_error(store: Store, offset: int) -> None:
    async def scenario(log: Log) -> None:
        await log.publish(event(store.settings, "s", "1"))
        with pytest.raises(NoSuchPosition) as refused:
            await log.read(store.topic, {0: offset})
        assert str(refused.value) == f"{store.topic}/0/{offset}: the log holds 0 up to 1"

    run(store, scenario)


def test_committed_positions_belong_to_a_group_and_give_its_lag(store: Store) -> None:
    async def first(log: Log) -> None:
        for n in range(6):
            await log.publish(event(store.settings, "s", f"{n}"))
        assert await log.committed("mine", store.topic) == {}
        assert await log.lag("mine", store.topic) == {0: 6}
        await log.commit("mine", store.topic, {0: 4})
        assert await log.committed("mine", store.topic) == {0: 4}
        assert await log.lag("mine", store.topic) == {0: 2}

    async def second(log: Log) -> None:
        assert await log.committed("mine", store.topic) == {0: 4}
        await log.let_go("mine")
        await log.let_go("nobody's")
        assert await log.committed("mine", store.topic) == {0: 4}
        assert await log.committed("other", store.topic) == {}
        assert await log.committed("mine", store.settings.samples_topic) == {}
        assert await log.lag("other", store.topic) == {0: 6}
        await log.commit("mine", store.topic, {0: 1})
        assert await log.committed("mine", store.topic) == {0: 1}
        await log.commit("mine", store.topic, {0: 6})
        assert await log.lag("mine", store.topic) == {0: 0}

    run(store, first)
    run(store, second)


def test_a_value_over_the_limit_is_refused_by_name_and_nothing_is_written(store: Store) -> None:
    async def scenario(log: Log) -> None:
        fits = store.settings.message_bytes_max - len("session-1")
        with pytest.raises(TooLarge) as refused:
            await log.publish(event(store.settings, "session-1", bytes(fits + 1)))
        text = "oversize: session session-1, turn t1: 8388609 bytes, the limit is 8388608"
        assert str(refused.value) == text
        assert (refused.value.code, refused.value.turn_id) == ("oversize", "t1")
        with pytest.raises(TooLarge):
            await log.send(event(store.settings, "session-1", bytes(fits + 1)))
        assert await log.end_positions(store.topic) == {0: 0}

    run(store, scenario)


def test_the_largest_event_and_what_holds_it_pass(store: Store) -> None:
    settings, key = store.settings, b"session-1"
    value = os.urandom(settings.message_bytes_max - len(key))
    letter = os.urandom(settings.record_bytes_max - len(key))

    async def scenario(log: Log) -> None:
        await log.publish(event(settings, key.decode(), value))
        assert [e.value for e in await entries(log, store.topic)] == [value]
        await log.publish(Outgoing(topic=settings.dead_letters_topic, key=key, value=letter))
        (found,) = await entries(log, settings.dead_letters_topic)
        assert found.value == letter

    run(store, scenario)


def test_a_tombstone_has_no_value_which_is_not_the_same_as_an_empty_one(store: Store) -> None:
    async def scenario(log: Log) -> None:
        pairs: list[tuple[bytes | None, bytes | None]] = [
            (b"k", None),
            (b"k", b""),
            (b"\x00\xff", b"\x00" * 3),
            (None, b"v"),
        ]
        for key, value in pairs:
            await log.publish(Outgoing(topic=store.topic, key=key, value=value, partition=0))
        assert [(e.key, e.value) for e in await entries(log, store.topic)] == pairs

    run(store, scenario)


def test_an_entry_without_a_key_needs_a_partition_and_the_partition_has_to_be_there(
    store: Store,
) -> None:
    async def scenario(log: Log) -> None:
        with pytest.raises(ValueError, match="explicit partition"):
            await log.publish(Outgoing(topic=store.topic, key=None, value=b"v"))
        with pytest.raises(WrongTopic, match=r"turns has no partition 1, but 1"):
            await log.publish(Outgoing(topic=store.topic, key=b"k", value=b"v", partition=1))
        assert await log.end_positions(store.topic) == {0: 0}

    run(store, scenario)


def test_a_log_that_is_closed_with_entries_under_way_writes_them(store: Store) -> None:
    async def first(log: Log) -> None:
        sent = [await log.send(event(store.settings, "s", f"{n}")) for n in range(500)]
        await log.close()
        assert [one.settled_position().offset for one in sent] == list(range(500))

    async def second(log: Log) -> None:
        found = await entries(log, store.topic)
        assert [int(e.value or b"") for e in found] == list(range(500))

    run(store, first)
    run(store, second)


def test_two_writers_and_a_reader_of_its_own_share_a_log(store: Store) -> None:
    async def scenario(log: Log) -> None:
        async with store.open() as other, store.open() as third:
            reader = await third.read(store.topic, {0: 0})

            async def write(writer: Log, name: str) -> list[Position]:
                sent = [
                    await writer.send(event(store.settings, name, f"{name}{n}")) for n in range(300)
                ]
                return [await one for one in sent]

            places = await asyncio.gather(write(log, "a"), write(other, "b"))
            assert sorted(place.offset for mine in places for place in mine) == list(range(600))
            found: list[Entry] = []
            while len(found) < 600:
                found += await reader.next_batch(10)
            for name, mine in zip("ab", places, strict=True):
                read = [e for e in found if e.key == name.encode()]
                assert [e.position for e in read] == mine
                assert [e.value for e in read] == [f"{name}{n}".encode() for n in range(300)]
            await reader.close()

    run(store, scenario)
