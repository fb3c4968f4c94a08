"""A session's end, wherever it comes from, is known before an answer is given as if it counted."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import openai
import pytest

from schemas.dead_letters import DeadLetter
from schemas.events import SessionEnded, SessionExpired, SessionOpened
from streams.adapters.engines.scripted import Rule
from streams.adapters.gateway.server import Gateway
from streams.log.interface import Reader
from tests.adapters.gateway.agents import Agent, says, user
from tests.adapters.gateway.world import REWARD, SECRETS, World, played, until

ANY = Rule(text="Yes.", times=None)
DRIFTED = says("The first answer, of some length", drift=2)
"""Rendered anew it would have other tokens: only what is known of it goes on from it."""


async def refused(agent: Agent) -> str | None:
    """The code with which a call is refused."""
    with pytest.raises(openai.APIStatusError) as caught:
        await agent.ask(user("More?"))
    assert caught.value.status_code == 410
    return caught.value.code


async def late(world: World) -> list[str]:
    letters = await world.records(world.settings.dead_letters_topic)
    return [letter.code for letter in letters if isinstance(letter, DeadLetter)]


@contextlib.asynccontextmanager
async def another(world: World) -> AsyncIterator[Gateway]:
    """A second gateway on the same log."""
    settings = dataclasses.replace(world.settings, gateway_port=0)
    async with Gateway(settings, world.log, world.engine, world.renderer, SECRETS) as gateway:
        yield gateway


async def ended_at(world: World, gateway: Gateway, session_id: str) -> int:
    async with world.http.post(
        f"{gateway.base_url}/control/sessions/{session_id}/end",
        json={"reward": REWARD},
        headers={"authorization": f"Bearer {gateway.keys.control_key}"},
    ) as reply:
        return reply.status


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_turn_during_which_its_session_expires_is_not_answered_whole(
    tmp_path: Path, stream: bool
) -> None:
    @played(
        says("Late one.", delay_ms=6_000),
        idle_limit_s=2.0,
        processor_sweep_interval_s=0.2,
    )
    async def story(world: World) -> None:
        agent = await world.open()
        agent.stream = stream
        with pytest.raises(openai.APIError) as caught:
            await agent.ask(user("Slow?"))
        assert caught.value.code == "session_ended"
        outcome = await world.outcome(agent.session_id)
        assert outcome.closed.end_status == "expired"
        assert world.gateway.metrics.counts["late_turns"] == 1
        assert await refused(agent) == "session_ended"

    story(tmp_path)


@played(
    says("Late one.", delay_ms=3_500),
    idle_limit_s=2.0,
    processor_sweep_interval_s=600.0,
)
async def test_a_turn_longer_than_the_idle_limit_counts_if_nothing_has_expired(
    world: World,
) -> None:
    agent = await world.open()
    assert (await agent.ask(user("Slow?")))["content"] == "Late one."
    await world.ends_whole(agent)


@played(otherwise=ANY, hard_limit_s=4.0, idle_limit_s=600.0, processor_sweep_interval_s=600.0)
async def test_a_session_past_the_hard_limit_takes_no_call(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    await asyncio.sleep(4.2)
    assert await refused(agent) == "session_gone"
    await world.restart()
    assert await refused(agent) == "session_gone"


@played(says("Late one.", delay_ms=7_000), hard_limit_s=3.0, processor_sweep_interval_s=0.2)
async def test_a_turn_that_passes_the_hard_limit_is_not_answered_whole(world: World) -> None:
    agent = await world.open()
    assert await refused(agent) == "session_ended"

    async def refused_by_the_processor() -> bool:
        return await late(world) == ["late_turn"]

    await until(refused_by_the_processor)


@played(says("One."), says("Two."))
async def test_an_end_waits_for_a_session_that_is_being_read_back(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    await world.restart()
    read, going, go_on = world.log.read, asyncio.Event(), asyncio.Event()

    async def slow(topic: str, positions: Mapping[int, int]) -> Reader:
        reader = await read(topic, positions)
        going.set()
        await go_on.wait()
        return reader

    world.log.read = slow  # type: ignore[method-assign]
    asking = asyncio.create_task(agent.ask(user("More?")))
    await going.wait()
    ending = asyncio.create_task(world.end(agent))
    await asyncio.sleep(0.2)
    world.log.read = read  # type: ignore[method-assign]
    go_on.set()
    outcome = await ending
    with pytest.raises(openai.APIStatusError) as caught:
        await asking
    assert caught.value.code == "session_ended"
    assert (outcome.closed.turns, outcome.closed.gaps) == (1, 0)
    assert await late(world) == []


@played(says("One."), says("Two."))
async def test_a_session_that_was_ended_without_being_held_takes_no_call(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    await world.restart()
    await world.end(agent)
    assert len(world.gateway.sessions) == 0
    world.log.away = "lost"
    assert await refused(agent) == "session_ended"
    world.log.away = None


@played(says("One."), says("Two.", delay_ms=1_500), says("Three."))
async def test_an_end_at_another_gateway_is_known_here(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    session = world.gateway.sessions.find(agent.session_id)
    assert session is not None
    async with another(world) as other:
        asking = asyncio.create_task(agent.ask(user("And?")))
        await world.asked(2)
        assert await ended_at(world, other, agent.session_id) == 200

        async def heard() -> bool:
            return session.news

        await until(heard)
        with pytest.raises(openai.APIStatusError) as caught:
            await asking
    assert caught.value.code == "session_ended"
    assert await refused(agent) == "session_ended"
    assert len(world.engine.journal) == 2
    status, told = await world.control(f"sessions/{agent.session_id}/end", {"reward": REWARD})
    assert (status, told["already"]) == (200, True)
    status, told = await world.control(f"sessions/{agent.session_id}/end", {"reward": 7})
    assert status == 409


async def let_go(gateway: Gateway) -> None:
    """Until it holds no session any more."""

    async def holds() -> bool:
        return len(gateway.sessions) == 0

    await until(holds)


@played(says("One."), says("Two."))
async def test_a_session_that_ends_at_another_gateway_is_let_go(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    assert len(world.gateway.sessions) == 1
    async with another(world) as other:
        assert await ended_at(world, other, agent.session_id) == 200
        await let_go(world.gateway)
    assert await refused(agent) == "session_ended"


@played(otherwise=ANY, idle_limit_s=1.0, processor_sweep_interval_s=0.2)
async def test_a_session_that_expires_is_let_go(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    assert len(world.gateway.sessions) == 1
    await let_go(world.gateway)
    assert await refused(agent) == "session_ended"


@played(DRIFTED, says("Two."))
async def test_an_expiry_that_saw_less_than_was_recorded_lets_nothing_go(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    session = world.gateway.sessions.find(agent.session_id)
    assert session is not None
    saw_less = SessionExpired(
        session_id=agent.session_id, cause="idle", last_offset=session.newest[0] - 1
    )
    position = await world.gateway.publisher.event(agent.session_id, saw_less)

    async def met() -> bool:
        return world.gateway.sessions._follower.met(position.partition) > position.offset

    await until(met)
    assert world.gateway.sessions.find(agent.session_id) is session
    await agent.ask(user("More?"))
    outcome = await world.ends_whole(agent)
    assert outcome.attached == ["root", "extend"]


@played(says("Slow.", delay_ms=500))
async def test_of_two_ends_at_once_in_different_words_one_is_refused(world: World) -> None:
    agent = await world.open()
    asking = asyncio.create_task(agent.ask(user("Hi")))
    await world.asked()
    path = f"sessions/{agent.session_id}/end"
    ends = await asyncio.gather(*(world.control(path, {"reward": n}) for n in (1, 1, 2)))
    assert sorted(status for status, _ in ends) == [200, 200, 409]
    await asking
    outcome = await world.outcome(agent.session_id)
    assert outcome.closed.ignored == 0
    events = [e for e in await world.events(agent.session_id) if isinstance(e, SessionEnded)]
    assert len(events) == 1


@played(DRIFTED, says("Two."))
async def test_an_id_opened_again_after_a_restart_goes_on_from_its_first_opening(
    world: World,
) -> None:
    agent = await world.open(session_id="chosen", group_id="g")
    await agent.ask(user("Hi"))
    await world.restart()
    again = await world.open(session_id="chosen", group_id="g")
    again.messages = agent.messages
    await again.ask(user("More?"))
    status, _ = await world.control("sessions", {"session_id": "chosen", "group_id": "other"})
    assert status == 409
    kinds = [type(event) for event in await world.events("chosen")]
    assert kinds.count(SessionOpened) == 1
    outcome = await world.ends_whole(again)
    assert outcome.attached == ["root", "extend"]
    await world.restart()
    for fields in ({"group_id": "g"}, {}):
        status, _ = await world.control("sessions", {"session_id": "chosen", **fields})
        assert status == 409


@played(DRIFTED, otherwise=ANY, gateway_sessions_held=1)
async def test_an_id_opened_again_after_it_was_let_go_is_the_same_session(world: World) -> None:
    agent = await world.open(session_id="chosen")
    await agent.ask(user("Hi"))
    other = await world.open()
    await other.ask(user("Hi"))
    assert world.gateway.sessions.find("chosen") is None
    again = await world.open(session_id="chosen")
    again.messages = agent.messages
    await again.ask(user("More?"))
    outcome = await world.ends_whole(again)
    assert outcome.attached == ["root", "extend"]


@played(DRIFTED, says("Two."))
async def test_of_two_openings_the_one_that_a_key_names_first_counts(world: World) -> None:
    agent = await world.open(session_id="chosen")
    await agent.ask(user("Hi"))
    await world.restart()
    event = next(e for e in await world.events("chosen") if isinstance(e, SessionOpened))
    position = await world.gateway.publisher.event("chosen", event)
    world.gateway.sessions.add(event, position)
    await agent.ask(user("More?"))
    outcome = await world.ends_whole(agent)
    assert outcome.attached == ["root", "extend"]
