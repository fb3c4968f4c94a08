"""Attacks by what other producers write into our topics: rows, partitions, batches, purges."""

import asyncio
import contextlib
import dataclasses
import json
import random
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from aiokafka import AIOKafkaProducer

from schemas import codec
from schemas.dead_letters import DeadLetter
from schemas.events import Purge, SessionEnded, SessionOpened
from schemas.record import Record
from schemas.samples import SessionClosed
from streams.log.interface import Outgoing
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.log.keys import event_key
from streams.log.partitioner import partition_of
from streams.processor.rows import MarkerKey, RowKey, write_key
from streams.settings import Settings
from tests.attack.scenario import Bound, scenario, scenarios_in
from tests.cli.stores import caught_up, example
from tests.kafka.broker import Broker
from tests.kafka.entries import everything
from tests.kafka.test_processor import worker

BOMB_BYTES = 100 << 20
"""Of one record of zeros: a few kilobytes on the wire."""
SECONDS_MAX = 120.0


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """One worker process."""

    settings: Settings
    process: subprocess.Popen[bytes]

    def memory_mb(self, field: str = "VmHWM") -> float:
        """At its peak, or now (`VmRSS`)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith(field)]
        return int(line.split()[1]) / 1024

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


@contextlib.contextmanager
def topics_of_its_own(folder: Path) -> Iterator[Settings]:
    """A broker, and topics on it; ended whatever happens."""
    with Broker(folder / "broker") as broker:
        settings = Settings(
            bootstrap_servers=broker.bootstrap_servers,
            topic_prefix=f"attack-{uuid.uuid4().hex[:8]}",
            partitions=4,
            metrics_port=0,
            processor_session_timeout_s=6.0,
            processor_commit_interval_s=0.2,
        )
        assert asyncio.run(create_topics(settings)).problems == []
        yield settings


@contextlib.contextmanager
def one_worker(settings: Settings, folder: Path) -> Iterator[Target]:
    """A worker process, ended whatever happens."""
    with worker(settings, folder / "worker.log") as process:
        yield Target(settings, process)


def outgoing(settings: Settings, record: Record, partition: int | None = None) -> Outgoing:
    """An event, on its own partition or another."""
    session_id = getattr(record, "session_id", None)
    key = None if session_id is None else event_key(session_id)
    value = codec.to_msgpack(record)
    return Outgoing(topic=settings.turns_topic, key=key, value=value, partition=partition)


async def read_all(log: KafkaLog, topic: str) -> list[Record]:
    return [codec.from_msgpack(entry.value or b"") for entry in await everything(log, topic)]


async def outcomes(log: KafkaLog, settings: Settings) -> Counter[str]:
    """How many each session got."""
    found = await read_all(log, settings.samples_topic)
    return Counter(record.session_id for record in found if isinstance(record, SessionClosed))


async def letters(log: KafkaLog, settings: Settings) -> list[DeadLetter]:
    """The dead letters."""
    found = await read_all(log, settings.dead_letters_topic)
    return [letter for letter in found if isinstance(letter, DeadLetter)]


async def send_bomb(settings: Settings, topic: str, compression: str) -> None:
    """A record that is small on the wire and large in memory, on partition 0."""
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap_servers,
        compression_type=compression,
        max_request_size=2 * BOMB_BYTES,
        max_batch_size=2 * BOMB_BYTES,
        request_timeout_ms=int(SECONDS_MAX * 1000),
    )
    await producer.start()
    try:
        await producer.send_and_wait(topic, bytes(BOMB_BYTES), b"bomb", partition=0)
    finally:
        await producer.stop()


async def end_sessions(log: KafkaLog, settings: Settings, *session_ids: str) -> None:
    """Sessions that end at once, and wait until the worker is done with everything."""
    for session_id in session_ids:
        await log.publish(
            outgoing(settings, SessionEnded(session_id=session_id, end_status="error"))
        )
    await caught_up(log, settings)


@scenario(quick=True)
def records_that_decompress_to_100_mb(folder: Path) -> Iterator[Bound]:
    """A batch of some kilobytes for every codec, in the events and in the table's changelog."""
    codecs = ("zstd", "gzip", "lz4")

    async def attack(target: Target) -> float:
        settings = target.settings
        async with KafkaLog(settings) as log:
            await end_sessions(log, settings, "before")
            before_mb = target.memory_mb("VmRSS")
            for compression in codecs:
                await send_bomb(settings, settings.turns_topic, compression)
            await end_sessions(log, settings, *(f"after-{number}" for number in range(20)))
            await send_bomb(settings, settings.changelog_topic, "zstd")
        return before_mb

    async def after(settings: Settings) -> tuple[list[DeadLetter], Counter[str]]:
        async with KafkaLog(settings) as log:
            await end_sessions(log, settings, "last")
            return await letters(log, settings), await outcomes(log, settings)

    with topics_of_its_own(folder) as settings:
        with one_worker(settings, folder) as target:
            before_mb = asyncio.run(attack(target))
            grown_mb = target.memory_mb() - before_mb
            yield Bound("growth of the worker's memory", grown_mb, at_most=200, unit="MB")
        with one_worker(settings, folder) as target:
            found, closed = asyncio.run(after(settings))
            peak_mb = target.memory_mb()
            yield Bound("memory of a worker that recovers", peak_mb, at_most=300, unit="MB")
        oversize = sum(letter.code == "oversize" for letter in found)
        yield Bound("dead letters", oversize, len(codecs), len(codecs))
        yield Bound("outcomes", closed.total(), 22, 22)


@scenario(quick=True)
def events_spread_by_another_partitioner(folder: Path) -> Iterator[Bound]:
    """One event in fifty on a wrong partition: no session may get two outcomes."""
    choices = random.Random(4)

    async def attack(settings: Settings) -> tuple[int, list[DeadLetter], Counter[str]]:
        wrong = 0
        async with KafkaLog(settings) as log:
            for number in range(100):
                for event in example(f"s{number}"):
                    record = codec.from_json(json.dumps(event).encode())
                    partition = partition_of(event_key(f"s{number}"), settings.partitions)
                    if choices.random() < 0.02:
                        partition, wrong = (partition + 1) % settings.partitions, wrong + 1
                    sent = await log.send(outgoing(settings, record, partition))
            await sent
            await caught_up(log, settings)
            return wrong, await letters(log, settings), await outcomes(log, settings)

    with topics_of_its_own(folder) as settings, one_worker(settings, folder) as target:
        wrong, found, closed = asyncio.run(attack(settings))
        refused = sum(letter.code == "wrong_partition" for letter in found)
        yield Bound("letters of events on a wrong partition", refused, wrong, wrong)
        twice = sum(count > 1 for count in closed.values())
        yield Bound("sessions with more than one outcome", twice, at_most=0)
        yield Bound("sessions with an outcome", len(closed), at_least=80)
        yield Bound("workers alive", target.alive, at_least=1)


@scenario(quick=True)
def foreign_entries_in_the_changelog(folder: Path) -> Iterator[Bound]:
    """Keys and values that no processor wrote; a worker that recovers has to survive them."""
    opened = [SessionOpened(session_id=f"open-{number}") for number in range(20)]

    async def attack(settings: Settings) -> None:
        async with KafkaLog(settings) as log:
            for event in opened:
                await log.publish(outgoing(settings, event))
            await caught_up(log, settings)
            keys = [b"zzz", b"", write_key(RowKey(9, "s")), write_key(MarkerKey("s"))]
            for partition in range(settings.partitions):
                for key in keys:
                    topic = settings.changelog_topic
                    await log.publish(
                        Outgoing(topic=topic, key=key, value=b"\xc1", partition=partition)
                    )

    async def after(settings: Settings) -> Counter[str]:
        async with KafkaLog(settings) as log:
            await end_sessions(log, settings, *(event.session_id for event in opened))
            return await outcomes(log, settings)

    with topics_of_its_own(folder) as settings:
        with one_worker(settings, folder):
            asyncio.run(attack(settings))
        with one_worker(settings, folder) as target:
            closed = asyncio.run(after(settings))
            yield Bound("workers alive", target.alive, at_least=1)
        yield Bound("outcomes", closed.total(), len(opened), len(opened))


@scenario(quick=False)
def one_purge_in_a_hundred_events(folder: Path) -> Iterator[Bound]:
    """Purges among the events must cost no more than other events do."""
    choices = random.Random(5)

    async def fill(settings: Settings, *, purges: bool) -> None:
        async with KafkaLog(settings) as log:
            for number in range(4_000):
                session_id = f"s{number}"
                opened = SessionOpened(session_id=session_id)
                ended = SessionEnded(session_id=session_id, end_status="error")
                for event in (opened, *[opened] * 3, ended):
                    sent = await log.send(outgoing(settings, event))
                    if purges and choices.random() < 0.01:
                        floor = choices.randrange(number + 1)
                        where = choices.randrange(settings.partitions)
                        await log.send(outgoing(settings, Purge(floor=floor), where))
            await sent

    async def wait(settings: Settings) -> None:
        async with KafkaLog(settings) as log:
            await caught_up(log, settings)

    def seconds(*, purges: bool) -> float:
        with topics_of_its_own(folder / str(purges)) as settings:
            asyncio.run(fill(settings, purges=purges))
            began_s = time.monotonic()
            with one_worker(settings, folder):
                asyncio.run(wait(settings))
            return time.monotonic() - began_s

    without_s, with_s = seconds(purges=False), seconds(purges=True)
    yield Bound("20,000 events without purges", without_s, at_most=50, unit="s")
    yield Bound("the same with purges", with_s, at_most=2 * without_s + 5, unit="s")


SCENARIOS = scenarios_in(globals())
