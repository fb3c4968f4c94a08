"""How long a prompt would be: the number the engine would get, without an engine, at any time."""

import asyncio
from typing import Any

from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.agents import BASH, calls, says, user
from tests.adapters.gateway.agents_kinds import Talker
from tests.adapters.gateway.faults_apis import WIRES, Wire, answered, asking, for_each_api
from tests.adapters.gateway.world import World, played

ANY = Rule(text="Yes.", times=None)
AT_ONCE = 23
"""As many as Claude Code asks for when a person wants to see the context."""
BROKEN: list[Any] = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"\xff",
    b"[" * 5_000,
    {"messages": "x", "input": 1},
    {"model": 1, "messages": [], "input": []},
]
COUNTING = [wire for wire in WIRES.values() if wire.count_path is not None]


async def counted(world: World, wire: Wire, body: Any, key: str) -> tuple[int, Any]:
    status, told, _ = await answered(world, wire, body, key, path=wire.count_path)
    return status, told.get("input_tokens", told)


@for_each_api(calls("ls", text="I look.", reasoning="Hm."), says("Done."))
async def test_a_count_is_the_length_of_the_prompt_that_the_call_has(
    world: World, wire: Wire, talker: Talker
) -> None:
    if wire.count_path is None:
        status, told, _ = await answered(world, wire, {}, None, path=f"{wire.path}/count_tokens")
        assert (status, wire.refusal(told).kind) == (404, "invalid_request_error")
        return
    talker.tools = [BASH]
    key = talker.agent.key
    first = await counted(world, wire, wire.asked(talker, "Look."), key)
    said = await talker.ask()
    (result,) = [{"role": "tool", "tool_call_id": c.id, "content": "a"} for c in said.calls]
    second = await counted(world, wire, wire.asked(talker, result), key)
    await talker.ask()
    outcome = await world.ends_whole(talker.agent)
    lengths = [len(prompt) for prompt in outcome.prompts.values()]
    assert [first, second] == [(200, length) for length in lengths]


@played(says("Slow.", delay_ms=60_000), otherwise=ANY, gateway_concurrency=1)
async def test_counts_do_not_wait_for_the_engine_and_are_no_turns(world: World) -> None:
    agent = await world.open(budgets={"turns": 1})
    body = {"model": "m", "max_tokens": 9, "messages": [user("Hi")]}
    busy = asyncio.create_task(answered(world, WIRES["messages"], body, agent.key))
    await world.asked()
    for wire in COUNTING:
        text = {"model": "m", "max_tokens": 9, "messages": [user("Hi")], "input": "Hi"}
        asked = [counted(world, wire, text, agent.key) for _ in range(AT_ONCE)]
        assert await asyncio.gather(*asked) == [(200, 9)] * AT_ONCE
    assert len(world.engine.journal) == 1
    assert world.gateway.gate.waiting == 0
    busy.cancel()
    await asyncio.wait({busy})
    (turn,) = await world.recorded(agent.session_id)
    assert len(turn.output_ids) == 0


@played(otherwise=ANY, gateway_context_tokens=40)
async def test_a_count_beyond_the_window_is_told(world: World) -> None:
    """So that a client can see by how much it has to compact."""
    agent = await world.open()
    for wire in COUNTING:
        text = "a " * 60
        body = {"model": "m", "max_tokens": 9, "messages": [user(text)], "input": text}
        status, number = await counted(world, wire, body, agent.key)
        assert status == 200
        assert number > 50


@played(otherwise=ANY)
async def test_a_body_that_cannot_be_counted_is_400_in_the_shape_of_the_api(world: World) -> None:
    agent = await world.open()
    for wire in COUNTING:
        for body in BROKEN:
            status, told = await counted(world, wire, body, agent.key)
            assert status == 400, body
            assert wire.refusal(told).kind == "invalid_request_error"
    assert len(world.engine.journal) == 0


@played(otherwise=ANY)
async def test_a_client_that_hangs_up_while_its_body_is_sent_is_no_failure(world: World) -> None:
    agent = await world.open()
    host, port = world.gateway.base_url.removeprefix("http://").split(":")
    for wire in WIRES.values():
        for path in filter(None, (wire.path, wire.count_path)):
            _, writer = await asyncio.open_connection(host, int(port))
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {agent.key}\r\n"
            writer.write(f'{head}content-length: 1000\r\n\r\n{{"model"'.encode())
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.close()
            await writer.wait_closed()
    async with asking(world, WIRES["chat"], b"{}", agent.key) as reply:
        assert reply.status == 400
