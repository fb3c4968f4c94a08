"""Who may call: one session's key opens that session, and nothing says anything of another."""

import time
from typing import Any

from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.agents import Agent, says, user
from tests.adapters.gateway.world import World, played

ANY = Rule(text="Yes.", times=None)
CALL = {"model": "m", "messages": [user("Hi")]}


async def ask(
    world: World, *, path: str = "/v1/chat/completions", **headers: str
) -> tuple[int, dict[str, Any], str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with world.http.post(world.gateway.base_url + path, json=CALL, headers=named) as reply:
        return reply.status, await reply.json(), reply.headers.get("x-should-retry", "")


@played(otherwise=ANY)
async def test_a_key_is_taken_from_every_place_that_clients_put_it(world: World) -> None:
    agent = await world.open()
    for headers in (
        {"authorization": f"Bearer {agent.key}"},
        {"authorization": f"bearer  {agent.key} "},
        {"x_api_key": agent.key},
        {"authorization": "Bearer dummy", "x_api_key": agent.key},
    ):
        assert (await ask(world, **headers))[0] == 200, headers
    path = f"/s/{agent.key}/v1/chat/completions"
    assert (await ask(world, path=path))[0] == 200
    assert (await ask(world, path=path, authorization="Bearer dummy"))[0] == 200
    base = f"{world.gateway.base_url}/s/{agent.key}/v1"
    other = Agent({"session_id": agent.session_id, "key": "dummy", "base_url": base})
    world.agents.append(other)
    await other.ask(user("Hi"))
    assert len(await world.turns(agent.session_id)) == 7


@played(otherwise=ANY)
async def test_a_key_that_opens_nothing_is_refused_in_the_same_words(world: World) -> None:
    agent, other = await world.open(), await world.open()
    keys = world.gateway.keys
    now_ms = int(time.time() * 1000)
    tampered = agent.key[:-1] + ("A" if agent.key[-1] != "A" else "B")
    for key in (
        "",
        "nonsense",
        tampered,
        agent.key[: len(agent.key) // 2] + other.key[len(agent.key) // 2 :],
        keys.mint(agent.session_id, now_ms - 1),
        keys.control_key,
        "ts-",
        "\u00fc" * 20,
    ):
        status, body, again = await ask(world, authorization=f"Bearer {key}")
        assert status == 401, key
        assert again == "false"
        assert body["error"]["code"] == "invalid_api_key"
        assert body["error"]["type"] == "authentication_error"
        assert agent.session_id not in str(body)
    assert (await ask(world))[0] == 401
    path = f"/s/{tampered}/v1/chat/completions"
    assert (await ask(world, path=path, authorization=f"Bearer {agent.key}"))[0] == 401
    assert len(world.engine.journal) == 0


@played(says("Yes."))
async def test_a_key_opens_its_own_session_and_no_other(world: World) -> None:
    mine, other = await world.open(), await world.open()
    await mine.ask(user("Hi"))
    assert len(await world.turns(mine.session_id)) == 1
    assert await world.turns(other.session_id) == []


@played()
async def test_a_session_key_does_not_open_the_control_api(world: World) -> None:
    agent = await world.open()
    for path in ("sessions", f"sessions/{agent.session_id}/end", "drain"):
        for key in (agent.key, "", "tc-guess"):
            status, told = await world.control(path, {}, key=key)
            assert status == 401
            assert set(told) == {"error"}
    status, _ = await world.control(f"sessions/{agent.session_id}", method="GET")
    assert status == 200


@played()
async def test_a_key_of_a_session_that_the_log_does_not_have_is_gone(world: World) -> None:
    later_ms = int(time.time() * 1000) + 60_000
    never = world.gateway.keys.mint("never-opened", later_ms)
    status, body, _ = await ask(world, authorization=f"Bearer {never}")
    assert (status, body["error"]["code"]) == (410, "session_gone")
