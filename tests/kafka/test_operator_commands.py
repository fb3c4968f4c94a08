"""`turnstream inspect` and `turnstream dead-letters` on a real broker with a real worker."""

import asyncio
import dataclasses
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from schemas import codec
from streams.log.interface import Log, Outgoing
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.log.keys import event_key
from streams.log.partitioner import partition_of
from streams.processor.rows import Row, RowKey, write_key, write_row
from streams.settings import PREFIX, Settings
from tests.cli import inspect_claims, letter_claims
from tests.cli.command import Ran, turn, turnstream
from tests.cli.stores import Store, caught_up, example
from tests.kafka.broker import Broker
from tests.kafka.test_processor import worker

Claim = inspect_claims.Claim
CLAIMS = [*inspect_claims.CLAIMS, *letter_claims.CLAIMS]


class OnKafka(Store):
    """A broker, and a worker of its own process."""

    def run(self, *arguments: str | Path) -> Ran:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(f"{PREFIX}BOOTSTRAP_SERVERS", self.settings.bootstrap_servers)
            patch.setenv(f"{PREFIX}TOPIC_PREFIX", self.settings.topic_prefix)
            patch.setenv(f"{PREFIX}PARTITIONS", str(self.settings.partitions))
            return turnstream(*arguments, "--log", "kafka")

    async def processed(self, log: Log) -> None:
        await caught_up(log, self.settings)


def quick_settings(broker: Broker) -> Settings:
    return Settings(
        bootstrap_servers=broker.bootstrap_servers,
        topic_prefix=f"test-{uuid.uuid4().hex[:8]}",
        partitions=4,
        metrics_port=0,
        processor_session_timeout_s=6.0,
        processor_commit_interval_s=0.1,
    )


@pytest.fixture(scope="module")
def store(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnKafka]:
    folder = tmp_path_factory.mktemp("operator")
    settings = quick_settings(broker)
    assert asyncio.run(create_topics(settings)).problems == []
    with worker(settings, folder / "worker.log"):
        yield OnKafka(settings, folder)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.__name__ for claim in CLAIMS])
def test_on_kafka(claim: Claim, store: OnKafka) -> None:
    claim(store)


def test_a_session_the_table_has_forgotten_is_found_by_searching(
    broker: Broker, tmp_path: Path
) -> None:
    settings = dataclasses.replace(
        quick_settings(broker), marker_retention_s=0.5, processor_sweep_interval_s=0.2
    )
    assert asyncio.run(create_topics(settings)).problems == []
    forgetful = OnKafka(settings, tmp_path)
    with worker(settings, tmp_path / "worker.log"):
        forgetful.feed(*example("purged"))
        until_s = time.monotonic() + 30
        while (unknown := forgetful.run("inspect", "purged")).code == 0:
            assert time.monotonic() < until_s, "the marker stays"
    assert "session purged is not known" in unknown.err
    ran = forgetful.run("inspect", "purged", "--search")
    assert ran.code == 0
    assert ran.out.rstrip().endswith(forgetful.drawn_from_file(*example("purged")))


def test_events_that_retention_took_are_named_and_what_was_sent_is_shown(store: OnKafka) -> None:
    settings = store.settings
    store.feed(*example("removed"))
    partition = partition_of(event_key("removed"), settings.partitions)

    async def remove() -> int:
        async with KafkaLog(settings) as log:
            end = (await log.end_positions(settings.turns_topic))[partition]
        admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
        await admin.start()
        try:
            place = TopicPartition(settings.turns_topic, partition)
            await admin.delete_records({place: RecordsToDelete(before_offset=end)})
        finally:
            await admin.close()
        return end

    end = asyncio.run(remove())
    ran = store.run("inspect", "removed")
    assert (ran.code, ran.err) == (0, "")
    begin = f"{settings.turns_topic}/{partition}/{end}"
    assert f"events are missing: retention has removed what stood before {begin}\n" in ran.out
    assert "turns and tree cannot be drawn; this is what was sent\n" in ran.out
    assert "sample 1 of 1  " in ran.out
    assert "total  trained 33 of 54  reward 1" in ran.out


def test_only_the_partition_of_the_session_is_read(settings: Settings, tmp_path: Path) -> None:
    home = partition_of(event_key("s"), settings.partitions)
    event = codec.to_msgpack(codec.from_json(json.dumps(turn("s")).encode()))

    async def fill() -> None:
        async with KafkaLog(settings) as log:
            for partition in range(settings.partitions):
                key = write_key(RowKey(0, "s"))
                value = write_row(Row(0, event)) if partition == home else b"no row at all"
                topic = settings.changelog_topic
                await log.publish(Outgoing(topic=topic, key=key, value=value, partition=partition))

    asyncio.run(fill())
    ran = OnKafka(settings, tmp_path).run("inspect", "s")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("session s  open  policy seed\n")


def test_topics_that_are_missing_are_named(
    bare_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So long a topic may stay unknown; each command waits for it.
    monkeypatch.setenv(f"{PREFIX}REQUEST_TIMEOUT_S", "4")
    bare = OnKafka(bare_settings, tmp_path)
    for command in (["inspect", "s"], ["dead-letters", "list"]):
        ran = bare.run(*command)
        assert (ran.code, ran.out) == (1, "")
        (line,) = ran.err.splitlines()
        assert line.endswith("there is no such topic; create it with `turnstream topics`")


def test_topics_without_an_entry_are_empty(settings: Settings, tmp_path: Path) -> None:
    empty = OnKafka(settings, tmp_path)
    assert empty.run("dead-letters", "list").out.startswith("no dead letters on ")
    ran = empty.run("inspect", "s")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("turnstream: session s is not known: ")
