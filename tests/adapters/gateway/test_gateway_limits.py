"""Limits, and a gateway that goes away and comes back: nothing is lost, nothing is stuck."""

import asyncio
import dataclasses
import socket
from typing import Any

import openai
import pytest

from streams.adapters.client import Turnstream
from streams.adapters.engines.scripted import Rule
from streams.adapters.gateway.server import Gateway, PortTaken
from tests.adapters.gateway.agents import BASH, calls, says, user
from tests.adapters.gateway.world import SECRETS, World, played, until

ANY = Rule(text="Yes.", times=None)


@played(otherwise=ANY, gateway_body_bytes_max=2_000)
async def test_a_body_over_the_limit_is_413(world: World) -> None:
    agent = await world.open()
    with pytest.raises(openai.APIStatusError) as caught:
        await agent.ask(user("x" * 3_000))
    assert caught.value.status_code == 413
    assert caught.value.type == "invalid_request_error"
    status, _ = await world.control("sessions", {"metadata": "x" * 3_000})
    assert status == 413


@played(otherwise=ANY)
async def test_a_session_that_used_its_turns_takes_no_call(world: World) -> None:
    agent = await world.open(budgets={"turns": 2})
    await agent.ask(user("Hi"))
    await agent.ask(user("Hi"))
    with pytest.raises(openai.PermissionDeniedError) as caught:
        await agent.ask(user("Hi"))
    assert caught.value.code == "turn_limit"
    await world.ends_whole(agent)


@played(Rule(text="No.", times=None))
async def test_a_call_that_was_refused_uses_no_turn(world: World) -> None:
    agent = await world.open(budgets={"turns": 1})
    for _ in range(3):
        with pytest.raises(openai.BadRequestError):
            await agent.send([user("Hi")], n=2)
    await agent.ask(user("Hi"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_whose_context_is_used_up_gets_answers_cut_by_length(
    tmp_path: Any, stream: bool
) -> None:
    @played(otherwise=ANY)
    async def story(world: World) -> None:
        agent = await world.open(budgets={"context_tokens": 40})
        await agent.ask(user("Hi"))
        asked = len(world.engine.journal)
        agent.stream = stream
        answer = await agent.ask(user("word " * 50))
        assert answer.get("content") in (None, "")
        assert len(world.engine.journal) == asked
        assert world.gateway.metrics.counts["context_full"] == 1
        await world.ends_whole(agent)

    story(tmp_path)


@played(otherwise=ANY, gateway_context_tokens=40)
async def test_a_prompt_beyond_the_window_is_refused_so_that_clients_compact(world: World) -> None:
    agent = await world.open()
    with pytest.raises(openai.BadRequestError) as caught:
        await agent.ask(user("word " * 50))
    assert caught.value.code == "context_length_exceeded"


@played(Rule(text="Yes.", times=None, gap_ms=20), gateway_concurrency=1)
async def test_sessions_that_wait_take_turns(world: World) -> None:
    busy, other = await world.open(), await world.open()
    first = [asyncio.create_task(busy.send([user(f"{n}")])) for n in range(5)]

    async def waiting() -> bool:
        return world.gateway.gate.waiting == 4

    await until(waiting)
    await other.send([user("Hi")])
    keys = [entry.routing_key for entry in world.engine.journal]
    assert keys.index(other.session_id) <= 2
    await asyncio.gather(*first)
    await world.ends_whole(busy)


@played(Rule(text="Yes.", times=None, gap_ms=50), gateway_concurrency=2)
async def test_never_more_calls_are_sampled_at_once_than_allowed(world: World) -> None:
    agents = [await world.open() for _ in range(10)]
    calls = asyncio.gather(*(agent.ask(user("Hi")) for agent in agents))
    most = 0
    while not calls.done():
        most = max(most, sum(entry.outcome == "running" for entry in world.engine.journal))
        await asyncio.sleep(0.01)
    await calls
    assert (most, len(world.engine.journal)) == (2, 10)


@played(otherwise=ANY, gateway_sessions_open_max=2)
async def test_never_more_sessions_are_open_at_once_than_allowed(world: World) -> None:
    client = Turnstream(world.gateway.base_url, world.gateway.keys.control_key)
    active: set[str] = set()
    most = 0

    async def run() -> None:
        nonlocal most
        async with client.session() as session:
            active.add(session.session_id)
            most = max(most, len(active))
            await asyncio.sleep(0.05)
            active.discard(session.session_id)
            await session.end("completed", 1)

    await asyncio.gather(*(run() for _ in range(10)))
    assert (most, len(world.gateway.sessions.places.taken)) == (2, 0)


@played(
    otherwise=ANY, gateway_sessions_open_max=1, idle_limit_s=1.0, processor_sweep_interval_s=0.1
)
async def test_who_is_one_too_many_is_told_and_a_session_that_expired_makes_room(
    world: World,
) -> None:
    agent = await world.open()
    status, told = await world.control("sessions", {})
    assert (status, told["code"]) == (429, "no_place")
    assert "1 sessions are open" in told["error"]
    status, again = await world.control("sessions", {"session_id": agent.session_id})
    assert status == 200, again  # it is open: that needs no other place

    async def opened() -> bool:
        status, _ = await world.control("sessions", {})
        return status == 200

    await until(opened)
    assert (await world.outcome(agent.session_id)).closed.end_status == "expired"


@played(Rule(text="Yes.", times=None, gap_ms=300), gateway_concurrency=1)
async def test_a_client_that_stops_waiting_is_not_sampled_for(world: World) -> None:
    agent = await world.open()
    first = asyncio.create_task(agent.send([user("1")]))
    await world.asked()
    second = asyncio.create_task(agent.send([user("2")]))

    async def waiting() -> bool:
        return world.gateway.gate.waiting == 1

    async def left() -> bool:
        return world.gateway.gate.waiting == 0

    await until(waiting)
    second.cancel()
    await until(left)
    await first
    await world.ends_whole(agent)
    assert len(world.engine.journal) == 1


@played(says("Slow one.", gap_ms=100), otherwise=ANY)
async def test_a_drain_lets_calls_end_and_takes_no_new_one(world: World) -> None:
    agent = await world.open()
    asking = asyncio.create_task(agent.ask(user("Hi")))
    await world.asked()
    draining = asyncio.create_task(world.control("drain"))

    async def begun() -> bool:
        return world.gateway.api.draining

    await until(begun)
    with pytest.raises(openai.APIStatusError) as caught:
        await agent.send([user("More")])
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "1"
    assert (await asking)["content"] == "Slow one."
    assert await draining == (200, {"draining": True, "in_flight": 0})
    assert (await world.gateway.pages.readyz())["trouble"] == "draining"
    await world.ends_whole(agent)


@played(says("One two three four", gap_ms=500), gateway_drain_timeout_s=0.3)
async def test_a_gateway_that_stops_records_what_was_sampled(world: World) -> None:
    agent = await world.open()
    asking = asyncio.create_task(agent.ask(user("Hi")))
    await world.asked()
    await world.restart()
    with pytest.raises(openai.APIError):
        await asking
    (turn,) = await world.turns(agent.session_id)
    assert not turn.delivered
    (entry,) = world.engine.journal
    assert turn.output_ids.tolist() == entry.ids


@played()
async def test_a_port_in_use_is_said(world: World) -> None:
    port = int(world.gateway.base_url.rpartition(":")[2])
    settings = dataclasses.replace(world.settings, gateway_port=port)
    second = Gateway(settings, world.log, world.engine, world.renderer, SECRETS)
    with pytest.raises(PortTaken, match=f"{port} is in use"):
        await second.__aenter__()
    settings = dataclasses.replace(settings, gateway_host="192.0.2.1")  # nobody's: not tried again
    third = Gateway(settings, world.log, world.engine, world.renderer, SECRETS)
    with pytest.raises(PortTaken, match=rf"192\.0\.2\.1:{port}: "):
        await third.__aenter__()


@played()
async def test_a_port_that_is_freed_soon_is_waited_for(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = dataclasses.replace(world.settings, gateway_port=port)
        second = Gateway(settings, world.log, world.engine, world.renderer, SECRETS)
        starting = asyncio.create_task(second.__aenter__())
        await asyncio.wait({starting}, timeout=1.0)
        assert not starting.done()
    await starting
    assert second.base_url == f"http://127.0.0.1:{port}"
    await second.__aexit__(None, None, None)


@played(calls("ls"), calls("pwd"), says("Done."))
async def test_a_session_goes_on_from_the_log_after_a_restart(world: World) -> None:
    agent = await world.open()
    agent.tools = [BASH]
    answer = await agent.ask(user("Hi"))
    await world.restart()
    answer = await agent.run_tools(answer)
    await world.restart()
    await agent.run_tools(answer)
    outcome = await world.ends_whole(agent)
    assert outcome.attached == ["root", "extend", "extend"]
    turns = list(outcome.turns.values())
    assert len({turn.source for turn in turns}) == 3
    assert [turn.seq for turn in turns] == [1, 1, 1]
    assert [bool(turn.base_turn_id) for turn in turns] == [False, True, True]


@played(calls("ls"), says("One."), calls("pwd"), says("Done."), gateway_sessions_held=1)
async def test_a_session_that_was_let_go_is_read_back_and_numbers_on(world: World) -> None:
    first = await world.open()
    first.tools = [BASH]
    answer = await first.ask(user("Hi"))
    second = await world.open()
    await second.ask(user("Hello"))
    assert world.gateway.sessions.find(first.session_id) is None
    answer = await first.run_tools(answer)
    assert world.gateway.sessions.find(second.session_id) is None
    await first.run_tools(answer)
    outcome = await world.ends_whole(first)
    assert [turn.seq for turn in outcome.turns.values()] == [1, 2, 3]
    assert outcome.attached == ["root", "extend", "extend"]
    await world.ends_whole(second)


@played(otherwise=ANY)
async def test_a_session_that_ended_before_a_restart_stays_ended(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    await world.ends_whole(agent)
    await world.restart()
    for _ in range(2):
        with pytest.raises(openai.APIStatusError) as caught:
            await agent.ask(user("Hi"))
        assert caught.value.code == "session_ended"
    assert len(world.gateway.sessions) == 0


@played(otherwise=ANY, idle_limit_s=3.0, processor_sweep_interval_s=600.0)
async def test_a_session_that_was_silent_for_too_long_is_refused(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    await asyncio.sleep(3.2)
    with pytest.raises(openai.APIStatusError) as caught:
        await agent.ask(user("Hi"))
    assert caught.value.status_code == 410
    await world.restart()
    with pytest.raises(openai.APIStatusError) as caught:
        await agent.ask(user("Hi"))
    assert caught.value.status_code == 410


@played(calls("ls"), calls("pwd"), says("Done."))
async def test_two_gateways_serve_one_session(world: World) -> None:
    agent = await world.open()
    agent.tools = [BASH]
    answer = await agent.ask(user("Hi"))
    settings = dataclasses.replace(world.settings, gateway_port=0)
    other = Gateway(settings, world.log, world.engine, world.renderer, SECRETS)
    async with other:
        here, agent.client.base_url = agent.client.base_url, f"{other.base_url}/v1/"
        answer = await agent.run_tools(answer)
        agent.client.base_url = here
        await agent.run_tools(answer)
    outcome = await world.ends_whole(agent)
    assert outcome.attached == ["root", "extend", "extend"]


@played()
async def test_what_the_server_itself_refuses_has_the_shape_of_the_api(world: World) -> None:
    for method, path, status in (
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/nothing", 404),
        ("GET", "/", 404),
    ):
        async with world.http.request(method, world.gateway.base_url + path) as reply:
            assert reply.status == status
            assert (await reply.json())["error"]["type"] == "invalid_request_error"
