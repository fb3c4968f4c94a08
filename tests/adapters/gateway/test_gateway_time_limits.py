"""A session that takes too long: it ends as timeout whatever its agent does, and it alone."""

import openai
import pytest

from schemas.events import SessionEnded
from streams.adapters.client import ControlRefused, Turnstream
from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.agents import Agent, user
from tests.adapters.gateway.world import World, played, until

ANY = Rule(text="Yes.", times=None)
LIMIT_S = 3.0
WORDS = "the session was not ended within its limit of 3 s"


def client(world: World) -> Turnstream:
    return Turnstream(world.gateway.base_url, world.gateway.keys.control_key)


async def over(world: World, session_id: str) -> SessionEnded:
    """The one end that the log has of a session, waiting for it."""
    ends: list[SessionEnded] = []

    async def ended() -> bool:
        events = await world.events(session_id)
        ends[:] = [event for event in events if isinstance(event, SessionEnded)]
        return bool(ends)

    await until(ended)
    (end,) = ends
    return end


@played(otherwise=ANY)
async def test_an_agent_that_sleeps_is_ended_and_its_neighbour_goes_on(world: World) -> None:
    neighbour = await world.open()
    limited = client(world).session(timeout_s=LIMIT_S, reward_pending=True)
    async with limited as session:
        sdk = openai.AsyncOpenAI(base_url=session.base_url, api_key=session.key, max_retries=0)
        async with sdk:
            await sdk.chat.completions.create(model="m", messages=[user("Hi")])  # type: ignore[list-item]
            end = await over(world, session.session_id)  # the agent sleeps
            with pytest.raises(openai.APIStatusError) as caught:
                await sdk.chat.completions.create(model="m", messages=[user("Hi")])  # type: ignore[list-item]
        assert caught.value.status_code == 410

        async def known_here() -> bool:
            return session.timed_out

        await until(known_here)  # its own clock began when the gateway's answer came
        await neighbour.ask(user("Hi"))
        await session.reward(0.25)  # what it came to may still be judged
    assert end.end_status == "timeout"
    assert end.reason is not None
    assert (end.reason.category, end.reason.message) == ("timeout", WORDS)
    closed = (await world.outcome(session.session_id)).closed
    assert (closed.end_status, closed.turns, closed.reward) == ("timeout", 1, 0.25)
    assert world.gateway.metrics.counts["sessions_timed_out"] == 1
    await world.ends_whole(neighbour)


@played(otherwise=ANY)
async def test_a_timeout_without_a_reward_is_closed_at_once(world: World) -> None:
    async with client(world).session(timeout_s=0.2) as session:
        closed = (await world.outcome(session.session_id)).closed
    assert (closed.end_status, closed.withheld, closed.reward) == ("timeout", "no_reward", None)
    async with client(world).session(timeout_s=LIMIT_S) as rewarded:
        await rewarded.reward(0.5)
        closed = (await world.outcome(rewarded.session_id)).closed
    assert (closed.end_status, closed.withheld, closed.reward) == ("timeout", None, 0.5)


@played(otherwise=ANY)
async def test_who_ends_in_time_is_not_timed_out(world: World) -> None:
    async with client(world).session(timeout_s=LIMIT_S) as quick:
        await quick.reward(1)
    async with client(world).session(timeout_s=0.2) as slow:
        await over(world, slow.session_id)
        with pytest.raises(ControlRefused, match="ended before"):
            await slow.end("completed", 1)
    assert (await over(world, quick.session_id)).end_status == "completed"
    assert world.gateway.metrics.counts["sessions_timed_out"] == 1


@played(otherwise=ANY)
async def test_a_session_that_is_read_back_has_what_is_left_of_its_time(world: World) -> None:
    agent: Agent = await world.open(budgets={"wall_ms": 3_000})
    await agent.ask(user("Hi"))
    await world.restart()
    await agent.ask(user("More"))
    end = await over(world, agent.session_id)
    assert (end.end_status, end.turns and sum(end.turns.values())) == ("timeout", 2)


@pytest.mark.parametrize("timeout_s", [0, -1.0, 0.0001])
def test_a_limit_that_is_none_is_refused_before_anything_is_asked(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="give a time above 0"):
        Turnstream("http://127.0.0.1:9", "tc-any").session(timeout_s=timeout_s)
