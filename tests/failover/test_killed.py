"""`kill -9` of a gateway in the middle of sessions; another process goes on from the log."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from schemas import codec
from schemas.events import Event
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.adapters.gateway.agents_kinds import KINDS
from tests.adapters.gateway.outcomes import Outcome
from tests.failover.judging import judged, number_of, outcome_from
from tests.failover.processes import Engine, GatewayProcess, control, engine, gateways
from tests.failover.talking import Walker, numbered, walker
from tests.kafka.broker import Broker
from tests.kafka.entries import everything
from tests.kafka.test_gateway import outcome_of

SECONDS_MAX = 150.0
EACH = 2
"""Answers that a session gets of each gateway."""
Story = Callable[[Settings, Engine, GatewayProcess, GatewayProcess], Awaitable[None]]


def test_another_process_goes_on_from_the_whole_of_the_last_turn(tmp_path: Path) -> None:
    async def story(
        settings: Settings, given: Engine, a: GatewayProcess, b: GatewayProcess
    ) -> None:
        walkers = await asyncio.gather(
            *(begun(a.url, kind, stream=stream) for kind in KINDS for stream in (False, True))
        )
        # One more call of each is under way when the first is killed.
        cut = [asyncio.create_task(one.answer(one.next_words())) for one in walkers]
        await asyncio.sleep(0.5)
        a.kill()
        for task in cut:
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)
        before = [len(one.asked) for one in walkers]
        assert EACH in before, "none of the calls was cut"
        await asyncio.gather(*(goes_on(one, b.url) for one in walkers))
        events = await events_of(settings)
        for one, count in zip(walkers, before, strict=True):
            check(one, count, events, given)

    with Broker(tmp_path / "broker") as broker:
        settings = Settings(bootstrap_servers=broker.bootstrap_servers, partitions=2)
        played_on(settings, tmp_path, story)


def played_on(settings: Settings, folder: Path, story: Story) -> None:
    async def whole() -> None:
        assert (await create_topics(settings)).problems == []
        with (
            engine(folder / "engine", numbered(200)) as given,
            gateways(folder / "gateways", "ab", settings, given.url) as (a, b),
        ):
            a.start()
            b.start()
            await asyncio.gather(a.listening(), b.listening())
            async with asyncio.timeout(SECONDS_MAX):
                await story(settings, given, a, b)

    asyncio.run(whole())


async def begun(url: str, kind: str, *, stream: bool) -> Walker:
    """A session with its first answers."""
    one = walker(url, await control(url, "sessions"), kind, stream=stream)
    await one.run(EACH)
    return one


async def goes_on(one: Walker, url: str) -> None:
    """The rest of a session, elsewhere."""
    one.move(url)
    await one.run(len(one.asked) + EACH)
    await control(url, f"sessions/{one.session_id}/end", reward=1.0)
    await one.close()


async def events_of(settings: Settings) -> list[Event]:
    async with KafkaLog(settings) as log:
        entries = await everything(log, settings.turns_topic)
    records = [codec.from_msgpack(entry.value or b"") for entry in entries]
    return [record for record in records if isinstance(record, Event)]


def check(one: Walker, before: int, events: list[Event], given: Engine) -> None:
    own = [event for event in events if getattr(event, "session_id", "") == one.session_id]
    closed, samples = outcome_of(own)
    outcome: Outcome = outcome_from(own, [*samples, closed], one.session_id)
    seen = [asked.number for asked in one.asked]
    fate = judged(outcome, given.sampled(one.session_id), seen)
    assert fate.wrong == []
    assert fate.seen == before + EACH
    turns = [turn for turn in outcome.turns.values() if number_of(turn) in seen]
    last, next_one = turns[before - 1], turns[before]
    assert last.source != next_one.source
    assert [turn.source for turn in turns] == [last.source] * before + [next_one.source] * EACH
    assert next_one.base_turn_id == last.turn_id
    assert next_one.kept_ids == len(outcome.prompts[last.turn_id]) + len(last.output_ids)
    assert set(outcome.attached) == {"root", "extend"}
