"""What comes from outside is bounded before it costs anything, and refused in the API's shape."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from streams.adapters.dialects.calls import Call
from streams.adapters.dialects.common import STOPS_MAX, ContextOverflow
from streams.adapters.engines.interface import EngineError, Tokens
from streams.adapters.engines.scripted import Rule
from streams.adapters.gateway.rendering.counting import COUNTED_FROM, ESTIMATED_FROM, PIECE
from streams.adapters.gateway.rendering.encoding import (
    OFTEN_CHARACTERS_MAX,
    BeyondLimit,
    Encoder,
    RenderFailed,
    encoding_at_most,
)
from streams.adapters.gateway.rendering.fitting import Fitting
from streams.adapters.gateway.sampling.sampled import Sampled
from tests.adapters.gateway.agents import Agent, user
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.adapters.gateway.world import World, played

ANY = Rule(text="Yes.", times=None)
WINDOW = 50_000


async def posted(
    world: World, path: str, data: bytes, key: str, **headers: str
) -> tuple[int, dict[str, Any]]:
    given = {"authorization": f"Bearer {key}", **headers}
    async with world.http.post(world.gateway.base_url + path, data=data, headers=given) as reply:
        return reply.status, await reply.json()


class Counting:
    """A tokenizer that notes how much it is given."""

    def __init__(self) -> None:
        self.characters = 0
        self._tokenizer = renderer().backend

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.characters += sum(map(len, texts))
        return self._tokenizer.encode_batch_fast(texts, **options)


def checked(call: Call, window: int = WINDOW) -> tuple[int | None, int]:
    """The count with which a call is refused, and how many characters were encoded for it."""
    counting = Counting()
    try:
        Fitting(counting).check(call, window)  # type: ignore[arg-type]
    except ContextOverflow as refusal:
        return refusal.prompt_tokens, counting.characters
    return None, counting.characters


def least(text: str) -> tuple[int | None, int]:
    """The same for a message."""
    return checked(Call(model="m", messages=(user(text),)))


def tool(**parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


LONG_NAME = "word " * 200_000
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {LONG_NAME: 1}}}
UNSEEN = {
    "the name of a field in a tool": Call(
        model="m", messages=(user("x"),), tools=(tool(properties={LONG_NAME: {}}),)
    ),
    "the name of an argument": Call(
        model="m", messages=({"role": "assistant", "content": None, "tool_calls": [CALLED]},)
    ),
    "numbers": Call(
        model="m", messages=(user("x"),), tools=(tool(enum=list(range(10**17, 10**17 + 60_000))),)
    ),
}


@pytest.mark.parametrize("call", UNSEEN.values(), ids=UNSEEN)
def test_whatever_is_printed_of_a_call_is_counted(call: Call) -> None:
    count, encoded = checked(call)
    assert count is not None
    assert count > WINDOW
    assert encoded < len(LONG_NAME) / 2


def test_a_text_that_no_window_holds_is_encoded_only_until_that_is_sure() -> None:
    count, encoded = least("word " * 400_000)
    assert count is not None
    assert 380_000 < count <= 400_001
    assert encoded <= WINDOW * len("word ") + 2 * PIECE


def test_what_is_not_printed_does_not_count() -> None:
    function = {"name": "f", "arguments": {}}
    calls = [{"id": f"{n:064x}", "type": "function", "function": function} for n in range(1_000)]
    results = [{"role": "tool", "content": "", "tool_call_id": call["id"]} for call in calls]
    said = {"role": "assistant", "content": " implementation" * 25_000, "tool_calls": calls}
    count, encoded = checked(Call(model="m", messages=(user("x"), said, *results)))
    assert count is None
    assert encoded > WINDOW * COUNTED_FROM


def test_a_long_text_is_counted_to_its_end_because_clients_cut_by_the_number() -> None:
    count, _ = least("word " * 120_000)
    assert count is not None
    assert 119_000 < count <= 120_001


@pytest.mark.parametrize("characters", [COUNTED_FROM * 2, ESTIMATED_FROM * 2])
def test_a_long_text_of_few_tokens_is_not_refused(characters: int) -> None:
    text = " " * (WINDOW * characters)
    assert len(renderer().encode(text)) < WINDOW
    count, encoded = least(text)
    assert count is None
    assert encoded >= len(text)


def test_a_short_text_is_not_counted_twice() -> None:
    assert least("word " * (WINDOW - 10)) == (None, 0)


@played(otherwise=ANY, gateway_context_tokens=40_000)
async def test_a_prompt_far_beyond_the_window_is_refused_and_uses_no_turn(world: World) -> None:
    agent = await world.open(budgets={"turns": 1})
    with pytest.raises(openai.BadRequestError) as caught:
        await agent.send([user("word " * 100_000)])
    assert caught.value.code == "context_length_exceeded"
    body = json.dumps({"model": "m", "messages": [user("word " * 100_000)]}).encode()
    status, told = await posted(world, "/v1/messages/count_tokens", body, agent.key)
    assert (status, 40_000 < told["input_tokens"] <= 100_010) == (200, True)
    await agent.ask(user("Hi"))


def sent(api: str, name: str) -> bytes:
    """A request with a tool that has a field of this name."""
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    tools: Any = [{"type": "function", "name": "f", "parameters": schema}]
    asked: dict[str, Any] = {"input": "x"}
    if "messages" in api:
        asked = {"messages": [user("x")], "max_tokens": 9}
        tools = [{"name": "f", "input_schema": schema}]
    elif "chat" in api:
        asked = {"messages": [user("x")]}
        tools = [tool(**schema)]
    return json.dumps({"model": "m", **asked, "tools": tools}).encode()


@played(otherwise=ANY, gateway_context_tokens=40_000)
async def test_a_name_beyond_the_window_is_refused_by_every_api(world: World) -> None:
    agent = await world.open(budgets={"turns": 1})
    printed_longer = "\n" * 300_000  # tokens of many, but each printed as an escape
    for name in ("word " * 100_000, printed_longer):
        for api in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            status, told = await posted(world, api, sent(api, name), agent.key)
            assert (status, "40000" in told["error"]["message"]) == (400, True), told
        for api in ("/v1/messages/count_tokens", "/v1/responses/input_tokens"):
            status, told = await posted(world, api, sent(api, name), agent.key)
            assert (status, told["input_tokens"] > 90_000) == (200, True), told
    await agent.ask(user("Hi"))


def test_rendered_text_far_beyond_the_limit_is_not_encoded() -> None:
    encoder, counting = Encoder(renderer().backend), Counting()
    encoder.tokenizer = encoder._ordinary = counting  # type: ignore[assignment]
    with encoding_at_most(WINDOW), pytest.raises(BeyondLimit) as caught:
        encoder.encode("w\u00f6rd " * 1_000_000)
    assert caught.value.tokens > WINDOW
    assert counting.characters <= WINDOW * len("w\u00f6rd ") + 2 * PIECE


def test_rendered_text_within_the_limit_is_encoded_however_long() -> None:
    text = "<|im_start|>user\n" + " " * (WINDOW * ESTIMATED_FROM * 2) + "<|im_end|>"
    with encoding_at_most(WINDOW):
        ids = Encoder(renderer().backend).encode(text)
    assert ids == renderer().backend.encode(text, add_special_tokens=False).ids
    assert len(ids) < WINDOW


def test_threads_that_encode_at_the_same_time_do_not_disturb_each_other() -> None:
    encoder = Encoder(renderer().backend)
    texts = [f"{number:04} caf\u00e9 " * 500 for number in range(40)]
    expected = [encoder.encode(text) for text in texts]

    def encoded(_: int) -> bool:
        return [encoder.encode(text) for text in texts] == expected

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(encoded, range(40)))


class PanicException(BaseException):
    """What the tokenizer raises when its regular expressions give up, by name and base."""


class Panicking:
    def encode_batch_fast(self, _: list[str], **_options: Any) -> Any:
        raise PanicException("retry-limit-in-match over")


def test_a_text_at_which_the_tokenizer_gives_up_is_refused_like_any_other() -> None:
    encoder = Encoder(renderer().backend)
    encoder.tokenizer = encoder._ordinary = Panicking()  # type: ignore[assignment]
    with pytest.raises(RenderFailed, match="retry-limit"):
        encoder.encode("caf\u00e9 " * 10)


def test_texts_that_come_often_are_kept_up_to_a_bound() -> None:
    encoder = Encoder(renderer().backend)
    size = OFTEN_CHARACTERS_MAX // 40
    texts = [f"{number:04} " * (size // 5) for number in range(50)]
    for text in texts:
        first = encoder.encode(text)
        assert encoder.encode(text) == encoder.encode(text) == first
    kept = encoder._often
    assert 0 < sum(map(len, kept)) <= OFTEN_CHARACTERS_MAX
    assert texts[-1] in kept
    assert texts[0] not in kept
    assert all(ids.nbytes == 4 * len(ids) for ids in kept.values())


@played(otherwise=ANY)
async def test_a_budget_of_nothing_allows_nothing(world: World) -> None:
    none = await world.open(budgets={"turns": 0})
    with pytest.raises(openai.PermissionDeniedError) as caught:
        await none.ask(user("Hi"))
    assert caught.value.code == "turn_limit"
    empty = await world.open(budgets={"context_tokens": 0})
    assert (await empty.ask(user("Hi"))).get("content") in (None, "")
    assert len(world.engine.journal) == 0


@played(otherwise=ANY, gateway_context_tokens=40)
async def test_a_budget_beyond_the_window_does_not_widen_it(world: World) -> None:
    agent = await world.open(budgets={"context_tokens": 10**15})
    with pytest.raises(openai.BadRequestError) as caught:
        await agent.ask(user("word " * 50))
    assert caught.value.code == "context_length_exceeded"


@played(otherwise=ANY)
async def test_a_body_that_is_not_encoded_as_it_says_is_400(world: World) -> None:
    agent = await world.open()
    control = world.gateway.keys.control_key
    end = f"/control/sessions/{agent.session_id}/end"
    for path, key in (("/v1/chat/completions", agent.key), (end, control)):
        status, told = await posted(world, path, b"{}", key, **{"content-encoding": "gzip"})
        assert status == 400
        assert "encoded" in json.dumps(told["error"])
    packed = gzip.compress(b'{"reward": 1}')
    status, _ = await posted(world, end, packed, control, **{"content-encoding": "gzip"})
    assert status == 200


@played(otherwise=ANY)
async def test_a_turn_named_by_bytes_that_are_no_text_is_400(world: World) -> None:
    agent = await world.open()
    path = f"/control/sessions/{agent.session_id}/rewards"
    body = b'{"reward": 1, "turn_id": "\xff"}'
    status, told = await posted(world, path, body, world.gateway.keys.control_key)
    assert status == 400
    assert told["error"]


@played(otherwise=ANY)
async def test_a_reward_that_is_no_finite_number_of_32_bits_is_400(world: World) -> None:
    agent = await world.open()
    control = world.gateway.keys.control_key
    for reward in ("1e999", "1e308", '{"score": 1e308}', "-1e39"):
        for what in ("end", "rewards"):
            path = f"/control/sessions/{agent.session_id}/{what}"
            body = f'{{"reward": {reward}}}'.encode()
            status, told = await posted(world, path, body, control)
            assert (status, "reward" in told["error"]) == (400, True)
    assert len(await world.events(agent.session_id)) == 1
    await world.end(agent, reward=3e38)


def stops_of(api: str, count: int) -> dict[str, Any]:
    texts = [f"x{number}" for number in range(count)]
    if api == "/v1/messages":
        return {"messages": [user("Hi")], "max_tokens": 9, "stop_sequences": texts}
    asked = {"input": "Hi"} if api == "/v1/responses" else {"messages": [user("Hi")]}
    return {**asked, "stop": texts}


@pytest.mark.parametrize("api", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_more_stop_strings_than_are_looked_for_are_refused(tmp_path: Any, api: str) -> None:
    @played(otherwise=ANY)
    async def story(world: World) -> None:
        agent: Agent = await world.open()
        for count, expected in ((STOPS_MAX, 200), (STOPS_MAX + 1, 400)):
            body = json.dumps({"model": "m", **stops_of(api, count)}).encode()
            status, told = await posted(world, api, body, agent.key)
            assert status == expected, told
        assert "stop" in told["error"]["message"]

    story(tmp_path)


@played(otherwise=ANY)
async def test_a_model_name_is_bounded(world: World) -> None:
    agent = await world.open()
    for length, status in ((256, 200), (257, 400)):
        body = json.dumps({"model": "m" * length, "messages": [user("Hi")]}).encode()
        assert (await posted(world, "/v1/chat/completions", body, agent.key))[0] == status


def test_an_id_that_no_model_of_the_tokenizer_has_is_the_engines_fault() -> None:
    sampled = Sampled(ids_max=renderer().ids_max)
    padding = max(renderer().backend.get_vocab().values()) + 200
    sampled.add(Tokens(ids=(0, padding), logprobs=(-1.0, -1.0)))
    with pytest.raises(EngineError, match="an id that no token has"):
        sampled.add(Tokens(ids=(2_000_000,), logprobs=(-1.0,)))
    assert sampled.ids == [0, padding]
