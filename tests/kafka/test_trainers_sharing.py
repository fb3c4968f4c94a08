"""Trainers that share a group's partitions, one after another and side by side."""

import asyncio
import threading
import uuid

import pytest

from streams.log.kafka_topics import create_topics
from streams.log.partitioner import partition_of
from streams.settings import Settings
from streams.trainer import Subscription, subscribe
from streams.trainer.sharing import Shared
from tests.kafka.broker import Broker
from tests.trainer.publishing import Published, publish
from tests.trainer.records import session
from tests.trainer.scenes import RUN, SECONDS_MAX, names, wait_for


@pytest.fixture
def one_partition(broker: Broker) -> Settings:
    settings = Settings(
        bootstrap_servers=broker.bootstrap_servers,
        topic_prefix=f"test-{uuid.uuid4().hex[:8]}",
        partitions=1,
    )
    assert asyncio.run(create_topics(settings)).problems == []
    return settings


def half(name: str) -> list[Published]:
    """One session of a group of two, which then waits."""
    return list(session(f"{name}-0", group_id=name, group_size=2, run_id=RUN))


def alone(*numbers: int) -> list[Published]:
    return [record for n in range(*numbers) for record in session(f"s{n}", run_id=RUN)]


def partitions(batches: Subscription) -> set[int]:
    """Those that it reads, once the group has settled."""
    _ = batches.run_epoch  # opens it
    feed = batches._feed
    assert feed is not None
    source = feed._source
    assert isinstance(source, Shared)
    return set(source.positions) if source.given_out else set()


def take(batches: Subscription, count: int) -> set[str]:
    found: list[str] = []
    while len(found) < count:
        found += names(next(batches))
    assert len(found) == len(set(found)) == count
    return set(found)


def test_what_one_trained_is_known_to_the_third_who_goes_on(one_partition: Settings) -> None:
    """A note outlives the second, who commits before and after it has read again."""
    publish(one_partition, [*half("slow"), *alone(30)])
    trained: list[str] = []
    for life in range(3):
        with subscribe(one_partition, run_id=RUN, batch_rollouts=5) as batches:
            if life == 1:
                wait_for(lambda now=batches: partitions(now) == {0})  # type: ignore[misc]
                batches.commit(100, 100)
            trained += names(next(batches))
            batches.commit(life, life)
            trained += names(next(batches))
            batches.commit(life, life)
            assert batches.status.repeatable == 0
    assert sorted(trained) == sorted(f"s{n}" for n in range(30))


def test_groups_beyond_what_a_note_holds_are_counted(one_partition: Settings) -> None:
    count = Shared.notes_max + 5
    publish(one_partition, [*half("slow"), *alone(count)])
    with subscribe(one_partition, run_id=RUN, batch_rollouts=Shared.notes_max) as batches:
        next(batches)
        batches.commit(1, 1)
        assert batches.status.repeatable == 0
    with subscribe(one_partition, run_id=RUN, batch_rollouts=5) as batches:
        next(batches)
        batches.commit(2, 2)
        assert batches.status.repeatable == 5
    with subscribe(one_partition, run_id=RUN, batch_rollouts=1, until_end=True) as batches:
        assert len([*batches]) == 5


def test_a_member_without_partitions_comes_to_the_end_too(one_partition: Settings) -> None:
    publish(one_partition, alone(3))
    with subscribe(one_partition, run_id=RUN, batch_rollouts=1) as first:
        wait_for(lambda: partitions(first) == {0})
        with subscribe(one_partition, run_id=RUN, batch_rollouts=1, until_end=True) as second:
            ended = threading.Event()
            wait = threading.Thread(target=lambda: ended.set() if [*second] == [] else None)
            wait.start()
            assert ended.wait(SECONDS_MAX)
        assert take(first, 3) == {"s0", "s1", "s2"}


def test_a_state_of_some_partitions_is_not_taken_for_one_of_all(settings: Settings) -> None:
    publish(settings, alone(40))
    with (
        subscribe(settings, run_id=RUN, batch_rollouts=1) as one,
        subscribe(settings, run_id=RUN, batch_rollouts=1) as two,
    ):
        wait_for(lambda: len(partitions(one)) == len(partitions(two)) == 2)
        trained = set()
        for batches in (one, two):
            trained |= set(names(next(batches)))
            batches.commit(1, 1)
        states = [one.state_dict(), two.state_dict()]
    with subscribe(settings, run_id=RUN, batch_rollouts=1) as batches:
        batches.load_state_dict(states[0])
        with pytest.raises(
            ValueError, match=r"no position for partitions \d, \d of .*several=True"
        ):
            next(batches)
    for state in states:
        with subscribe(
            settings, run_id=RUN, batch_rollouts=1, until_end=True, one_of_several=True
        ) as batches:
            batches.load_state_dict(state)
            rest = {name for batch in batches for name in names(batch)}
        assert not rest & trained
        trained |= rest
    assert trained == {f"s{n}" for n in range(40)}


def test_a_batch_whose_partition_went_to_another_is_counted(settings: Settings) -> None:
    """It was trained here and is read again there."""
    everyone = {f"s{n}" for n in range(20)}
    publish(settings, alone(20))
    with subscribe(settings, run_id=RUN, batch_rollouts=20) as first:
        assert take(first, 20) == everyone
        with subscribe(settings, run_id=RUN, batch_rollouts=1) as second:
            wait_for(lambda: len(partitions(first)) == len(partitions(second)) == 2)
            moved = {n for n in everyone if partition_of(n.encode(), 4) in partitions(second)}
            assert take(second, len(moved)) == moved
            first.commit(1, 1)
            assert first.status.dropped == {"commit_refused": 1}
