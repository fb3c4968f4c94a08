"""What a client meets that is refused: the status it acts on, in the shape that it reads.

Clients try again what says so (`retry-after`), and give up what says so (`x-should-retry: false`);
each API words its errors in its own way, and a client of one reads no other.
"""

from typing import Any

import anthropic
import openai
import pytest

from streams.adapters.engines.scripted import Failure, Rule
from tests.adapters.gateway.agents import BASH, says, user
from tests.adapters.gateway.agents_kinds import Talker
from tests.adapters.gateway.faults_apis import WIRES, Wire, answered, asking, for_each_api
from tests.adapters.gateway.world import World, played, until

ANY = Rule(text="Yes.", times=None)


def with_retries(talker: Talker) -> Talker:
    """The SDK as it comes, with its own two tries more."""
    talker.agent.client = talker.agent.client.with_options(max_retries=2)
    return talker


async def assert_tried_once(world: World, talker: Talker, status: int) -> None:
    """The SDK takes the answer for the last word, though it would try again by itself."""
    counts, name = world.gateway.metrics.counts, f"answers:{status}"
    before = counts[name]
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)):
        await with_retries(talker).ask(user("More?"))
    assert counts[name] == before + 1


def paths(wire: Wire) -> list[str]:
    """Where an API is asked, and where it counts."""
    return [path for path in (wire.path, wire.count_path) if path is not None]


# --------------------------------------------------------------------------- keys


@for_each_api(otherwise=ANY)
async def test_a_key_is_taken_as_bearer_in_its_own_header_and_in_the_path(
    world: World, wire: Wire, talker: Talker
) -> None:
    body, key = wire.asked(talker, "Hi"), talker.agent.key
    for path in paths(wire):
        assert (await answered(world, wire, body, key, path=path))[0] == 200
        assert (await answered(world, wire, body, None, path=path, x_api_key=key))[0] == 200
        in_path = f"/s/{key}{path}"
        assert (await answered(world, wire, body, None, path=in_path))[0] == 200
        assert (await answered(world, wire, body, "dummy", path=in_path))[0] == 200
        both = await answered(world, wire, body, "dummy", path=path, x_api_key=key)
        assert both[0] == 200
    assert len(await world.turns(talker.session_id)) == 5


@for_each_api(otherwise=ANY)
async def test_a_key_that_opens_nothing_is_401_and_not_tried_again(
    world: World, wire: Wire, talker: Talker
) -> None:
    body, key = wire.asked(talker, "Hi"), talker.agent.key
    for path in paths(wire):
        for path_, given in (
            (path, None),
            (path, key[:-2]),
            (path, world.gateway.keys.control_key),
            (f"/s/{key[:-2]}{path}", None),
        ):
            status, told, headers = await answered(world, wire, body, given, path=path_)
            refused = wire.refusal(told)
            assert (status, refused.kind) == (401, "authentication_error")
            assert headers["x-should-retry"] == "false"
            assert "unknown or expired key" in refused.message
    talker.agent.client.api_key = "dummy"
    await assert_tried_once(world, talker, 401)


# --------------------------------------------------------------------------- routes


@for_each_api()
async def test_what_the_server_refuses_has_the_shape_of_the_path_it_was_sent_to(
    world: World, wire: Wire, talker: Talker
) -> None:
    """Also from clients that do not say what they speak."""
    for prefix in ("", f"/s/{talker.agent.key}"):
        for method, path, status in (
            ("GET", wire.path, 405),
            ("DELETE", wire.path, 405),
            ("POST", f"{wire.path}/nothing", 404),
            ("GET", f"{wire.path}/some_id/input_items", 404),
        ):
            url = world.gateway.base_url + prefix + path
            async with world.http.request(method, url) as reply:
                assert reply.status == status
                refused = wire.refusal(await reply.json())
                missing = status == 404 and wire.name == "messages"
                assert refused.kind == ("not_found_error" if missing else "invalid_request_error")
                assert talker.agent.key not in refused.message


@played()
async def test_an_unknown_path_has_the_shape_that_the_headers_tell(world: World) -> None:
    for wire in WIRES.values():
        url = f"{world.gateway.base_url}/v1/nothing"
        async with world.http.post(url, headers=wire.headers) as reply:
            assert reply.status == 404
            wire.refusal(await reply.json())


@played(otherwise=ANY)
async def test_what_claude_code_asks_beside_its_calls_is_answered(world: World) -> None:
    wire = WIRES["messages"]
    agent = await world.open()
    for path in ("/", "/api/hello"):
        async with asking(world, wire, b"", agent.key, path=f"HEAD {path}") as reply:
            assert reply.status == 404
    body = {"model": "m", "max_tokens": 9, "messages": [user("Hi")]}
    path = f"{wire.path}?beta=true"
    assert (await answered(world, wire, body, agent.key, path=path))[0] == 200
    path = "GET /v1/models?limit=1000"
    status, told, _ = await answered(world, wire, b"", agent.key, path=path)
    assert (status, told["data"][0]["type"]) == (200, "model")


@for_each_api(otherwise=ANY, gateway_body_bytes_max=2_000)
async def test_a_body_over_the_limit_is_413_and_not_tried_again(
    world: World, wire: Wire, talker: Talker
) -> None:
    body = wire.asked(talker, "x" * 3_000)
    for path in paths(wire):
        status, told, headers = await answered(world, wire, body, talker.agent.key, path=path)
        own = {"messages": "request_too_large"}.get(wire.name, "invalid_request_error")
        assert (status, wire.refusal(told).kind) == (413, own)
        assert headers["x-should-retry"] == "false"


@for_each_api(otherwise=ANY)
async def test_a_body_that_is_no_request_is_400(world: World, wire: Wire, talker: Talker) -> None:
    for path in paths(wire):
        for body in (b"{", b"\xff\xfe", b"[]", b""):
            status, told, _ = await answered(world, wire, body, talker.agent.key, path=path)
            assert (status, wire.refusal(told).kind) == (400, "invalid_request_error")
        packed = {"path": path, "content_encoding": "gzip"}
        status, told, _ = await answered(world, wire, b"not packed", talker.agent.key, **packed)
        assert "not encoded as its headers say" in wire.refusal(told).message
        assert status == 400


# --------------------------------------------------------------------------- sessions


@for_each_api(otherwise=ANY)
async def test_a_session_that_is_over_is_refused_once_and_for_all(
    world: World, wire: Wire, talker: Talker
) -> None:
    await talker.ask(user("Hi"))
    await world.ends_whole(talker.agent)
    body, key = wire.asked(talker, "More?"), talker.agent.key
    for path in paths(wire):
        status, told, headers = await answered(world, wire, body, key, path=path)
        assert "ended" in wire.refusal(told).message
        assert (status, headers["x-should-retry"]) == (410, "false")
    await assert_tried_once(world, talker, 410)


@for_each_api(otherwise=ANY, gateway_turns_max=1)
async def test_a_session_that_used_its_turns_is_refused_once_and_for_all(
    world: World, wire: Wire, talker: Talker
) -> None:
    """Not 429: that asks clients to try again, and a session's turns do not come back."""
    await talker.ask(user("Hi"))
    status, told, headers = await answered(
        world, wire, wire.asked(talker, "More?"), talker.agent.key
    )
    assert "1 turns" in wire.refusal(told).message
    assert (status, headers["x-should-retry"]) == (403, "false")
    await assert_tried_once(world, talker, 403)


# --------------------------------------------------------------------------- to be tried again


@for_each_api(
    says("No.", fail=Failure()),
    says("No.", fail=Failure(retryable=False)),
    says("Yes."),
    says("Sure."),
)
async def test_an_engine_that_fails_is_tried_again_by_the_sdks(
    world: World, wire: Wire, talker: Talker
) -> None:
    """Three requests in all, the body is the same, and so is the prompt."""
    talker.stream = True
    said = await with_retries(talker).ask(user("Hi"))
    assert said.text == "Yes."
    entries = list(world.engine.journal.of(talker.session_id))
    assert [entry.outcome for entry in entries] == ["failed", "failed", "finished"]
    assert len({tuple(entry.input_ids.tolist()) for entry in entries}) == 1
    await talker.ask(user("Sure?"))
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend"]


@for_each_api(*2 * [says("No.", fail=Failure()), says("No.", fail=Failure(retryable=False))])
async def test_an_engine_that_fails_is_said_with_when_to_try_again(
    world: World, wire: Wire, talker: Talker
) -> None:
    """Also to a client that streams, while nothing was sent: it reads the status."""
    body = wire.asked(talker, "Hi")
    for status_wanted, stream in ((503, False), (502, False), (503, True), (502, True)):
        asked = {**body, "stream": stream}
        status, told, headers = await answered(world, wire, asked, talker.agent.key)
        refused = wire.refusal(told)
        own = {"messages": "api_error"}.get(wire.name, "engine_error")
        assert (status, refused.kind) == (status_wanted, own)
        assert (headers["retry-after"], headers.get("x-should-retry")) == ("1", None)


@for_each_api(says("One."), says("Two."), says("Three."), gateway_sessions_held=1)
async def test_a_log_that_is_away_is_said_with_when_to_try_again(
    world: World, wire: Wire, talker: Talker
) -> None:
    """At the end of a turn, and where a session has to be read back before it."""
    body, key = wire.asked(talker, "Hi"), talker.agent.key

    async def assert_away(path: str) -> None:
        world.log.away = "lost"
        status, told, headers = await answered(world, wire, body, key, path=path)
        world.log.away = None
        own = {"messages": "api_error"}.get(wire.name, "log_unavailable")
        assert (status, wire.refusal(told).kind) == (503, own)
        assert headers["retry-after"] == "1"

    async def made_good() -> bool:
        return world.gateway.publisher.repairing == 0

    await assert_away(wire.path)
    await until(made_good)
    for path in paths(wire):
        await world.open()
        assert world.gateway.sessions.find(talker.session_id) is None
        await assert_away(path)
    assert (await talker.ask()).text == "Two."


@played(otherwise=ANY)
async def test_a_gateway_that_goes_down_says_so_to_everybody(world: World) -> None:
    agent = await world.open()
    world.gateway.api.draining = True
    for wire in WIRES.values():
        for path in paths(wire):
            status, told, headers = await answered(world, wire, {}, agent.key, path=path)
            assert "going down" in wire.refusal(told).message
            assert (status, headers["retry-after"]) == (503, "1")


# --------------------------------------------------------------------------- overflow


@for_each_api(otherwise=ANY, gateway_context_tokens=40)
async def test_a_prompt_beyond_the_window_is_said_in_the_words_that_clients_compact_by(
    world: World, wire: Wire, talker: Talker
) -> None:
    body = wire.asked(talker, "a " * 60)
    status, told, headers = await answered(world, wire, body, talker.agent.key)
    refused = wire.refusal(told)
    assert (status, refused.kind) == (400, "invalid_request_error")
    assert "retry-after" not in headers
    if wire.name == "messages":
        sizes = refused.message.removeprefix("prompt is too long: ").removesuffix(" maximum")
        prompt, limit = sizes.split(" tokens > ")
        counted = await answered(world, wire, body, talker.agent.key, path=wire.count_path)
        assert (int(prompt), int(limit)) == (counted[1]["input_tokens"], 40)
    else:
        assert refused.code == "context_length_exceeded"
        assert "maximum context length is 40 tokens" in refused.message
    assert len(world.engine.journal) == 0


# --------------------------------------------------------------------------- never 400

SPARE: dict[str, dict[str, Any]] = {
    "chat": {
        "some_field_of_next_year": {"a": [1]},
        "store": False,
        "metadata": {"a": "b"},
        "user": "u",
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "reasoning_effort": "high",
        "verbosity": "low",
        "stream_options": None,
        "logit_bias": {},
        "parallel_tool_calls": True,
        "seed": 1,
    },
    "messages": {
        "some_field_of_next_year": {"a": [1]},
        "metadata": {"user_id": "{}"},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "service_tier": "auto",
        "mcp_servers": [],
        "container": None,
        "speed": "fast",
    },
    "responses": {
        "some_field_of_next_year": {"a": [1]},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"a": "b"},
        "reasoning": {"effort": "high", "summary": "auto"},
        "store": True,
        "service_tier": "auto",
        "text": {"verbosity": "low"},
        "truncation": "auto",
        "safety_identifier": "s",
        "parallel_tool_calls": False,
    },
}


@for_each_api(otherwise=ANY)
async def test_what_can_be_ignored_is_never_400(world: World, wire: Wire, talker: Talker) -> None:
    """Claude Code sends a poorer request after a 400, and stays with it."""
    talker.tools = [BASH]
    spare, key = SPARE[wire.name], talker.agent.key
    body = wire.asked(talker, "Hi")
    for more in (*({name: value} for name, value in spare.items()), spare):
        status, told, _ = await answered(world, wire, {**body, **more}, key)
        assert status == 200, (more, told)
    turns = await world.turns(talker.session_id)
    assert len({bytes(turn.prompt_digest or b"") for turn in turns}) == 1
    headers = {"anthropic_beta": "flag-1,flag-2", "openai_beta": "x", "x_stainless_lang": "js"}
    assert (await answered(world, wire, body, key, **headers))[0] == 200
