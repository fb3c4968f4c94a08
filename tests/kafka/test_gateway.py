"""The gateway on a real broker: a restart in the middle, and a broker that is away for a while."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from schemas.events import Event, TurnUndelivered
from schemas.samples import Sample, SessionClosed
from streams.adapters.engines.scripted import Rule, Script, ScriptedEngine
from streams.core.partition import Partition
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.adapters.gateway.agents import BASH, calls, says, user
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.adapters.gateway.world import World, served
from tests.kafka.broker import Broker
from tests.kafka.test_processor import worker

SECONDS_MAX = 150.0


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker") as running:
        yield running


@asynccontextmanager
async def world(settings: Settings, *answers: Rule) -> AsyncIterator[World]:
    engine = ScriptedEngine(Script(answers=answers), renderer().backend)
    given = dataclasses.replace(settings, gateway_port=0, gateway_drain_timeout_s=10.0)
    async with asyncio.timeout(SECONDS_MAX), KafkaLog(given) as log:
        made = World(given, Faulty(log), engine)
        async with served(made):
            yield made


def test_a_tool_loop_over_a_restart_is_one_sample(settings: Settings, tmp_path: Path) -> None:
    quick = dataclasses.replace(settings, metrics_port=0)

    async def story() -> None:
        async with world(quick, calls("ls"), calls("pwd"), says("Done.")) as made:
            agent = await made.open(group_id="g")
            agent.tools, agent.stream = [BASH], True
            answer = await agent.ask(user("Hi"))
            await made.restart()
            answer = await agent.run_tools(answer)
            await agent.run_tools(answer)
            outcome = await made.ends_whole(agent)
            assert outcome.attached == ["root", "extend", "extend"]
            assert [bool(turn.base_turn_id) for turn in outcome.turns.values()] == [0, 1, 1]
            assert len(outcome.samples) == 1

    with worker(quick, tmp_path / "worker.log"):
        asyncio.run(story())


def test_a_broker_that_is_away_is_said_and_made_good(own_broker: Broker) -> None:
    settings = Settings(
        bootstrap_servers=own_broker.bootstrap_servers,
        partitions=2,
        publish_timeout_s=4.0,
        request_timeout_s=4.0,
    )

    async def story() -> None:
        await create_topics(settings)
        async with world(settings, *(says(f"Number {n}.") for n in range(30))) as made:
            agent = await made.open()
            await agent.ask(user("Hi"))
            await asyncio.to_thread(own_broker.kill)
            for stream in (False, True):
                with pytest.raises(openai.APIError, match="durable"):
                    await agent.send([*agent.messages, user("More")], stream=stream)
            assert made.gateway.publisher.repairing == 2
            await asyncio.to_thread(own_broker.start)
            agent.client = agent.client.with_options(max_retries=20)
            await agent.ask(user("More"))
            await agent.ask(user("And more"))
            status, told = await made.control(f"sessions/{agent.session_id}/end", {"reward": 1.0})
            assert status == 200, told
            events = await made.events(agent.session_id)
            said = {e.seq for e in events if isinstance(e, TurnUndelivered)}
            assert said >= {2, 3}
            closed, samples = outcome_of([e for e in events if isinstance(e, Event)])
            assert (closed.gaps, closed.refused, closed.withheld) == (0, 0, None)
            assert len(samples) == 1
            delivered = [row for row in closed.ledger if not row.untrained]
            assert len(delivered) == 3

    asyncio.run(story())


def outcome_of(events: list[Event]) -> tuple[SessionClosed, list[Sample]]:
    partition = Partition()
    effects = [partition.feed(event, position) for position, event in enumerate(events)]
    records = [record for effect in effects for record in effect.records()]
    (closed,) = [record for record in records if isinstance(record, SessionClosed)]
    return closed, [record for record in records if isinstance(record, Sample)]
