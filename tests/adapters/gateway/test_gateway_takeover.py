"""A gateway that never saw a session: what it takes over, what it refuses, what comes meanwhile."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from streams.adapters.gateway import following
from streams.log.interface import Reader
from tests.adapters.gateway.agents import BASH, Agent, calls, says, user
from tests.adapters.gateway.agents_kinds import opened
from tests.adapters.gateway.test_gateway_mends_ends import another, ended_at, late, refused
from tests.adapters.gateway.test_gateway_two import Pair
from tests.adapters.gateway.world import World, play, played, until

DRIFTED = says("The first answer, of some length", drift=2)


class Slow:
    """A reader that waits before it reads."""

    def __init__(self, reader: Reader, go: asyncio.Event) -> None:
        self._reader = reader
        self._go = go

    async def next_batch(self, wait_s: float, entries_max: int = 1000) -> Any:
        await self._go.wait()
        return await self._reader.next_batch(wait_s, entries_max)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


def held_back(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold back every reading from now on: when one has begun, and to let them go."""
    begun, go, read = asyncio.Event(), asyncio.Event(), world.log.read

    async def slow(topic: str, positions: Mapping[int, int]) -> Any:
        begun.set()
        return Slow(await read(topic, positions), go)

    monkeypatch.setattr(world.log, "read", slow)
    return begun, go


def test_what_another_writes_while_a_session_is_read_back_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_REST_S", 0.0)

    async def story(world: World) -> None:
        talker = await opened(world, "chat")
        async with another(world) as second:
            both = Pair(talker, world.gateway, second)
            await both.at(0).ask(user("Hi"))
            sessions = second.sessions
            await sessions._follower.looked_back(10.0)
            begun, go = held_back(world, monkeypatch)
            asking = asyncio.create_task(both.at(1).send([*talker.history, [user("Side?")]]))
            await begun.wait()
            await both.at(0).ask(user("More?"))  # behind what is being read

            async def met() -> bool:
                return talker.session_id in sessions._stirred

            await until(met)
            go.set()
            await asking
            await both.at(1).ask(user("And?"))
            outcome = await world.ends_whole(talker.agent)
        turns = list(outcome.turns.values())
        assert turns[-1].base_turn_id == turns[1].turn_id
        assert outcome.attached == ["root", *["extend"] * 3]

    play(tmp_path, story, [says(f"Answer {n}.", drift=2) for n in range(4)])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_a_client_kept_of_another_gateways_answer_trains(tmp_path: Path, stream: bool) -> None:
    """The log has all of the turn; the client has its beginning, and goes on elsewhere."""

    async def story(world: World) -> None:
        talker = await opened(world, "chat")
        async with another(world) as second:
            both = Pair(talker, world.gateway, second)
            agent = both.at(0).agent
            agent.tools, agent.stream = [BASH], stream
            answer = await agent.ask(user("Hi"))
            assert len(answer["tool_calls"]) == 2
            answer["tool_calls"] = answer["tool_calls"][:1]
            await both.at(1).agent.run_tools(answer)
            outcome = await world.ends(agent)
        whole, part, last = outcome.turns.values()
        assert (part.part_of, part.source) == (whole.turn_id, last.source)
        assert last.base_turn_id == part.turn_id
        assert whole.source != part.source
        rows = {row.turn_id: row for row in outcome.closed.ledger}
        assert rows[part.turn_id].trained == len(part.output_ids)
        assert rows[last.turn_id].trained == len(last.output_ids)
        assert outcome.closed.gaps == 0

    play(tmp_path, story, [calls("ls", "du"), says("Done.")])


@played(DRIFTED, says("Two."))
async def test_an_end_at_one_is_a_410_at_the_other(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    async with another(world) as second:
        there = agent.client.copy(base_url=f"{second.base_url}/v1")
        assert await ended_at(world, world.gateway, agent.session_id) == 200
        here, agent.client = agent.client, there
        assert await refused(agent) == "session_ended"
        agent.client = here
        assert await refused(agent) == "session_ended"
    await world.outcome(agent.session_id)
    assert await late(world) == []


@played(DRIFTED, idle_limit_s=1.0, processor_sweep_interval_s=600.0)
async def test_a_session_silent_for_too_long_is_gone_at_a_gateway_that_never_saw_it(
    world: World,
) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    await asyncio.sleep(1.2)
    async with another(world) as second:
        agent.client = agent.client.copy(base_url=f"{second.base_url}/v1")
        with pytest.raises(openai.APIStatusError, match="longer than its limit"):
            await agent.send([*agent.messages, user("More")])
        assert await refused(agent) == "session_gone"


def test_many_sessions_that_come_back_at_once_are_read_in_few_passes(tmp_path: Path) -> None:
    count = 24

    async def story(world: World) -> None:
        agents: list[Agent] = [await world.open() for _ in range(count)]
        await asyncio.gather(*(agent.ask(user("Hi")) for agent in agents))
        await world.restart()
        await asyncio.gather(*(agent.ask(user("More?")) for agent in agents))
        assert world.gateway.sessions._passes.passes <= 3
        for agent in agents:
            outcome = await world.ends_whole(agent)
            assert outcome.attached == ["root", "extend"]

    answers = [says(f"Answer {n}.", drift=2) for n in range(2 * count)]
    play(tmp_path, story, answers)
