"""One suite for both logs and both processors: neither differs from the core, nor from the other.

The same sessions go in the same order into one partition of Kafka and into a file; a worker
process each works on them. Positions are then the same in both, so everything that comes out,
dead letters included, has to be the same bytes under the same keys.
"""

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from contextlib import ExitStack

import msgspec
import pytest

from schemas import codec
from schemas.dead_letters import DeadLetter
from streams.log.interface import Outgoing
from streams.log.kafka_topics import create_topics
from streams.log.opening import open_log
from streams.settings import KAFKA, Settings
from tests.chaos.comparison import Found, compare, found
from tests.chaos.load import Load
from tests.chaos.oracle import Keyed, Oracle
from tests.kafka.broker import Broker
from tests.kafka.test_processor import worker

SEED = 5
SESSIONS = 60
SIDE_BY_SIDE = 20
SECONDS_MAX = 120.0
STORES = (KAFKA, "file")


@pytest.fixture(scope="module")
def one_prefix(broker: Broker) -> Settings:
    """The same topic names in both, one partition, nothing that a clock decides."""
    return Settings(
        bootstrap_servers=broker.bootstrap_servers,
        topic_prefix="both",
        partitions=1,
        trace_share=0.5,
        metrics_port=0,
        processor_session_timeout_s=6.0,
    )


@pytest.fixture(scope="module")
def outputs(
    one_prefix: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Oracle, Found]]]:
    """What each pipeline made of the same load, with what the core makes of its log."""
    folder = tmp_path_factory.mktemp("both")
    stores = {
        KAFKA: one_prefix,
        "file": dataclasses.replace(one_prefix, log=str(folder / "log.db")),
    }
    asyncio.run(create_topics(one_prefix))
    with ExitStack() as stack:
        results = {}
        for name, settings in stores.items():
            stack.enter_context(worker(settings, folder / f"{name}.log"))
            results[name] = asyncio.run(worked_on(settings))
        yield results


async def worked_on(settings: Settings) -> tuple[Oracle, Found]:
    """Publish the load, wait until it is worked on, read everything."""
    async with open_log(settings, create=True) as log:
        load = Load(log, settings, SEED, SIDE_BY_SIDE)
        while (step := load.next_step(SESSIONS)) is not None:
            outgoing = Outgoing(topic=settings.turns_topic, key=step.key, value=step.value)
            sent = await log.send(outgoing)
        await sent
        until_s = time.monotonic() + SECONDS_MAX
        oracle = Oracle(settings)
        await oracle.read_on(log)
        await oracle.close()
        while sum((await log.lag(settings.processor_id, settings.turns_topic)).values()):
            assert time.monotonic() < until_s, await log.lag(
                settings.processor_id, settings.turns_topic
            )
            await asyncio.sleep(0.2)
        return oracle, await found(log, settings)


@pytest.mark.parametrize("store", STORES)
def test_a_processor_gives_what_the_core_gives(
    outputs: dict[str, tuple[Oracle, Found]], store: str
) -> None:
    oracle, out = outputs[store]
    # The table is compared where it is a changelog; a file has none.
    out.tables = out.tables or oracle.expected.tables
    assert compare(oracle.expected, out).differences == {}
    assert len(out.outcomes) > SESSIONS / 2
    assert out.revisions
    assert out.letters


def test_both_processors_write_the_same(outputs: dict[str, tuple[Oracle, Found]]) -> None:
    kafka, file = (outputs[store][1] for store in STORES)
    assert file.samples == kafka.samples
    assert file.outcomes == kafka.outcomes
    assert file.revisions == kafka.revisions
    assert file.traces == kafka.traces
    assert dict(map(told, file.letters)) == dict(map(told, kafka.letters))


def told(letter: Keyed) -> tuple[bytes, DeadLetter]:
    """A letter without its detail, which for a turn that is too old names the log's own time."""
    record = codec.from_msgpack(letter[1])
    assert isinstance(record, DeadLetter)
    return letter[0], msgspec.structs.replace(record, detail="")
