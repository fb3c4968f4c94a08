"""A record that the broker itself finds too large: it fails alone, and its session with it."""

import asyncio
import os
import time
from pathlib import Path

import openai
import pytest

from schemas import codec
from schemas.events import Event
from streams.adapters.environments.publisher import Publisher
from streams.errors import LogError, TooLarge
from streams.log.interface import Outgoing, Position
from streams.log.kafka import KafkaLog
from streams.settings import Settings
from tests.adapters.gateway.agents import says, user
from tests.cli.command import turn, turnstream
from tests.cli.places import Place, name_in_environment
from tests.kafka.entries import everything
from tests.kafka.test_gateway import outcome_of, world
from tests.kafka.topic_limit import limit_topic

LIMIT = 100_000
PROBE = b"probe"


async def limited(settings: Settings, topic: str, bytes_max: int) -> None:
    """Lower the limit, and wait until the broker knows it."""
    await limit_topic(settings, topic, bytes_max)
    probe = Outgoing(topic=topic, key=PROBE, value=os.urandom(2 * bytes_max))
    deadline_s = time.monotonic() + 60
    async with KafkaLog(settings) as log:
        while True:
            try:
                await log.publish(probe)
            except TooLarge:
                return
            assert time.monotonic() < deadline_s, "the broker never takes the limit over"
            await asyncio.sleep(0.05)


def test_only_the_record_that_is_too_large_fails_and_the_others_keep_their_order(
    settings: Settings,
) -> None:
    """Large ones between small ones that share their batches and come behind them."""

    async def scenario() -> None:
        await limited(settings, settings.turns_topic, LIMIT)
        async with KafkaLog(settings) as log:
            outgoing = []
            for n in range(600):
                size = 3 * LIMIT if n % 150 == 70 else 500
                value = b"%d:" % n + os.urandom(size)
                outgoing.append(Outgoing(topic=settings.turns_topic, key=b"%d" % n, value=value))
            sent = [await log.send(one) for one in outgoing]
            answers: list[Position | Exception] = []
            for one in sent:
                try:
                    answers.append(await one)
                except (TooLarge, LogError) as error:
                    answers.append(error)
            refused = {n: error for n, error in enumerate(answers) if isinstance(error, Exception)}
            assert set(refused) == {70, 220, 370, 520}
            assert all(isinstance(error, TooLarge) for error in refused.values())
            assert "max.message.bytes" in str(refused[70])
            later = await log.publish(
                Outgoing(topic=settings.turns_topic, key=b"later", value=b"9999:")
            )
            found = await everything(log, settings.turns_topic)
        found = [entry for entry in found if entry.key != PROBE]
        places = {entry.position: entry.value for entry in found}
        for given, answer in zip(outgoing, answers, strict=True):
            if isinstance(answer, Position):
                assert places[answer] == given.value
        assert later in places
        for partition in range(settings.partitions):
            mine = [e for e in found if e.position.partition == partition]
            numbers = [int((entry.value or b"").partition(b":")[0]) for entry in mine]
            assert numbers == sorted(set(numbers)), "in the order they were sent, each once"

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [LIMIT // 2, 2 * LIMIT])
def test_one_publish_says_whether_it_fits(settings: Settings, size: int) -> None:
    async def scenario() -> None:
        await limited(settings, settings.turns_topic, LIMIT)
        async with KafkaLog(settings) as log:
            one = Outgoing(topic=settings.turns_topic, key=b"s", value=os.urandom(size))
            if size < LIMIT:
                assert (await log.publish(one)).topic == settings.turns_topic
            else:
                with pytest.raises(TooLarge, match="more than the broker takes"):
                    await log.publish(one)

    asyncio.run(scenario())


def test_a_replay_goes_on_behind_what_the_broker_refuses(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(limited(settings, settings.turns_topic, LIMIT))
    name_in_environment(settings, monkeypatch)
    events = [turn(f"s{n % 3}", f"t{n}") for n in range(7)]
    events[1]["raw_prompt"] = os.urandom(LIMIT).hex()
    ran = turnstream("replay", Place(settings, tmp_path).file(*events))
    assert ran.code == 1
    assert ran.out == f"published 6 events of 3 sessions to {settings.turns_topic}, refused 1\n"
    (line,) = ran.err.splitlines()
    assert line.startswith("line 2: oversize: session s1, turn t1: ")
    assert line.endswith("raise `max.message.bytes` of the topic")


def test_an_environments_publisher_loses_only_the_event_that_is_too_large(
    settings: Settings,
) -> None:
    asyncio.run(limited(settings, settings.turns_topic, LIMIT))
    publisher = Publisher(settings)
    try:
        handed = []
        for n in range(60):
            value = os.urandom(3 * LIMIT if n == 30 else 500)
            outgoing = Outgoing(topic=settings.turns_topic, key=b"s%d" % (n % 7), value=value)
            handed.append(publisher.put(outgoing, 60.0))
        errors = {n: one.exception(timeout=120) for n, one in enumerate(handed)}
    finally:
        publisher.close(30.0)
    assert {n for n, error in errors.items() if error is not None} == {30}
    assert isinstance(errors[30], TooLarge)


def test_a_gateways_turn_that_the_broker_refuses_is_that_calls_413(settings: Settings) -> None:
    async def story() -> None:
        await limited(settings, settings.turns_topic, LIMIT)
        answers = [says(f"Number {n}.") for n in range(9)]
        async with world(settings, *answers) as made, KafkaLog(settings) as log:
            agent, other = await made.open(), await made.open()
            await agent.ask(user("Hi"))
            with pytest.raises(openai.APIStatusError) as refused:
                await agent.send([*agent.messages, user(os.urandom(55_000).hex())])
            assert refused.value.status_code == 413
            assert "too large" in str(refused.value)
            await other.ask(user("Hi"))
            await agent.ask(user("Go on"))
            for one in (agent, other):
                status, told = await made.control(f"sessions/{one.session_id}/end", {"reward": 1.0})
                assert status == 200, told
            assert made.gateway.publisher.repairing == 0
            for one, turns in ((agent, 2), (other, 1)):
                entries = await everything(log, settings.turns_topic)
                mine = [e.value or b"" for e in entries if e.key == one.session_id.encode()]
                events = [codec.from_msgpack(value) for value in mine]
                closed, samples = outcome_of([e for e in events if isinstance(e, Event)])
                assert (closed.gaps, closed.withheld, closed.turns) == (0, None, turns)
                assert samples

    asyncio.run(story())
