"""Many sessions at once: every one whole, and nothing of them kept when they are over.

`LOAD_SESSIONS` in the environment asks for more than the suite's number.
"""

import asyncio
import gc
import os
from collections import Counter

import openai

from schemas.samples import SessionClosed
from streams.adapters.engines.scripted import Rule
from streams.adapters.gateway.api.app import HttpProtocol
from streams.adapters.gateway.api.connections import Connection
from streams.adapters.gateway.api.framing import Sized
from streams.adapters.gateway.sessions.events import Over
from tests.adapters.gateway.agents import BASH, Agent, user
from tests.adapters.gateway.world import World, played, until

SESSIONS = int(os.environ.get("LOAD_SESSIONS", "60"))
TURNS = 5
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


def held(world: World) -> Counter[str]:
    """Objects of ours that are alive, by class, but for connections that are open."""
    gc.collect()
    names = (f"{type(thing).__module__}.{type(thing).__name__}" for thing in gc.get_objects())
    # The engine's journal keeps all it ever sampled, for the tests.
    ours = ("streams.adapters.gateway", "streams.adapters.dialects")
    found = Counter(name for name in names if name.startswith(ours))
    # How the newest sessions ended is remembered, a bounded number of them.
    del found[f"{Over.__module__}.{Over.__name__}"]
    for each in (Connection, HttpProtocol, Sized):
        found[f"{each.__module__}.{each.__name__}"] -= len(world.gateway.connections)
    return found


async def run(world: World, client: openai.AsyncOpenAI, name: str, *, stream: bool) -> None:
    status, opened = await world.control("sessions", {"session_id": name})
    assert status == 200
    agent = Agent.__new__(Agent)
    agent.session_id, agent.key = name, opened["key"]
    agent.client = client.with_options(api_key=agent.key)
    agent.messages, agent.tools, agent.answers, agent.stream = [], [BASH], [], stream
    answer = await agent.ask(user(f"I am {name}."))
    for _ in range(TURNS - 1):
        answer = await agent.run_tools(answer)
    status, _ = await world.control(f"sessions/{name}/end", {"reward": 1.0})
    assert status == 200


async def wave(world: World, name: str, count: int) -> None:
    limits = openai.DefaultAsyncHttpxClient(timeout=120.0)
    async with openai.AsyncOpenAI(
        base_url=f"{world.gateway.base_url}/v1", api_key="x", max_retries=0, http_client=limits
    ) as client:
        runs = (run(world, client, f"{name}-{n}", stream=bool(n % 2)) for n in range(count))
        await asyncio.gather(*runs)
    outcomes: list[SessionClosed] = []

    async def all_closed() -> bool:
        records = await world.records(world.settings.samples_topic)
        closed = [record for record in records if isinstance(record, SessionClosed)]
        outcomes[:] = [record for record in closed if record.session_id.startswith(name)]
        return len(outcomes) >= count

    await until(all_closed, every_s=1.0)
    assert {(o.turns, len(o.sample_ids), o.gaps) for o in outcomes} == {(TURNS, 1, 0)}
    assert all(outcome.trained == outcome.generated for outcome in outcomes)


@played(Rule(text=CALL, times=None, chunks=(8,)), seconds_max=600.0)
async def test_many_sessions_at_once_are_whole_and_leave_nothing_behind(world: World) -> None:
    await wave(world, "warm", 4)
    before = held(world)
    await wave(world, "load", SESSIONS)
    after = held(world)
    assert after - before == Counter()
    counts = world.gateway.metrics.counts
    assert counts["turns"] == (SESSIONS + 4) * TURNS
    assert len(world.gateway.sessions) == 0
