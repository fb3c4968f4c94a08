"""Whatever is sent to whichever API, the gateway answers in its shape and goes on.

`FUZZ_REQUESTS` in the environment asks for more than the suite's number, over all APIs.
"""

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.adapters.engines.scripted import Rule, Script
from tests.adapters.gateway.agents import Agent
from tests.adapters.gateway.world import World, world

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "1000"))
SECONDS_MAX = 30.0
TOOL = {"name": "f", "parameters": {"type": "object"}}
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "r",
            "tool_calls": [CALLED],
        },
        {"role": "tool", "tool_call_id": "c", "content": "t"},
    ],
    "tools": [{"type": "function", "function": TOOL}],
    "tool_choice": "auto",
    "stream": False,
    "max_tokens": 4,
    "stop": ["x"],
    "temperature": 1,
    "response_format": {"type": "text"},
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 4,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "r", "signature": "g"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [{"type": "tool_reference", "tool_name": "g"}],
                }
            ],
        },
        {"role": "system", "content": "later"},
    ],
    "tools": [
        {"name": "f", "description": "d", "input_schema": {"type": "object"}},
        {"name": "g", "input_schema": {"type": "object"}, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "tool_choice": {"type": "auto"},
    "stop_sequences": ["x"],
    "temperature": 1,
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "metadata": {"user_id": "u"},
    "stream": False,
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "s",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
        {"role": "user", "content": "u"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "t"},
        {"type": "custom_tool_call", "call_id": "p", "name": "patch", "input": "i"},
        {"type": "custom_tool_call_output", "call_id": "p", "output": "t"},
    ],
    "tools": [
        {"type": "function", **TOOL},
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", **TOOL}]},
        {"type": "web_search"},
    ],
    "tool_choice": "auto",
    "reasoning": {"effort": "high"},
    "text": {"format": {"type": "text"}},
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 4,
    "store": False,
    "stream": False,
}
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": RESPONSES,
}
PATHS = st.sampled_from([*GOOD, "/v1/chat/completions", "/v1/messages", "/v1/responses"])
WORDS = """user assistant system tool developer function required f { {"a":1}
<|im_end|> <think> </think> <tool_call> \ud800 \x00"""
TEXT = st.one_of(st.text(max_size=8), st.sampled_from(["", *WORDS.split()]))
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from([2**63, -1, 0, 1e308, 10**400]),
        TEXT,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a JSON value."""
    yield path
    listed = enumerate(value) if isinstance(value, list) else ()
    for name, inner in value.items() if isinstance(value, dict) else listed:
        yield from places(inner, (*path, name))


Change = tuple[tuple[Any, ...], str, Any]
CHANGES = {
    path: st.tuples(
        st.sampled_from(list(places(good))[1:]), st.sampled_from(["put", "drop", "repeat"]), JSON
    )
    for path, good in GOOD.items()
}


def changed(good: dict[str, Any], changes: list[Change]) -> Any:
    body = json.loads(json.dumps(good))
    for path, how, value in changes:
        place = body
        try:
            for name in path[:-1]:
                place = place[name]
            if how == "put":
                place[path[-1]] = value
            elif how == "drop":
                del place[path[-1]]
            elif isinstance(place, list):
                place.append(place[path[-1]])
        except (LookupError, TypeError):
            continue  # an earlier change took the place away
    return body


def bodies(path: str) -> st.SearchStrategy[tuple[str, bytes]]:
    """Requests to one path: good ones with something wrong, and anything at all."""
    good, change = GOOD[path], CHANGES[path]
    listed = b"input" if "input" in good else b"messages"
    body = st.one_of(
        st.lists(change, min_size=1, max_size=4).map(
            lambda c: json.dumps(changed(good, c)).encode()
        ),
        st.lists(change, max_size=2).map(
            lambda c: json.dumps(changed(good, c), ensure_ascii=False).encode(
                "utf-8", "surrogatepass"
            )
        ),
        JSON.map(lambda value: json.dumps(value).encode()),
        st.binary(max_size=40),
        st.integers(0, 3000).map(lambda n: b'{"%b":' % listed + b"[" * n + b"]" * n + b"}"),
    )
    return st.tuples(st.just(path), body)


REQUEST = PATHS.flatmap(bodies)
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "x-turnstream-request-class",
            "x-claude-code-agent-id",
            "x-codex-turn-metadata",
            "anthropic-beta",
            "anthropic-version",
            "content-type",
            "accept",
        ]
    ),
    st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f")),
    max_size=2,
)


class Running:
    """A world in a thread of its own, for a test that is not asynchronous."""

    def __init__(self, folder: Path) -> None:
        self.ready: Future[tuple[World, Agent]] = Future()
        self.loop = asyncio.new_event_loop()
        self.done = asyncio.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(folder,))
        self._thread.start()

    def _run(self, folder: Path) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._live(folder))
        except BaseException as error:
            self.error = error

    async def _live(self, folder: Path) -> None:
        script = Script(otherwise=Rule(text="<think>\nHm.\n</think>\n\nYes, x it is.", chunks=(9,)))
        async with world(folder, script) as made:
            self.ready.set_result((made, await made.open()))
            await self.done.wait()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.done.set)
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.close()


async def ask(
    made: World, agent: Agent, request: tuple[str, bytes], headers: dict[str, str]
) -> tuple[int, bytes]:
    path, body = request
    async with made.http.post(
        made.gateway.base_url + path,
        data=body,
        headers={**headers, "authorization": f"Bearer {agent.key}"},
    ) as reply:
        return reply.status, await reply.read()


def assert_own_shape(path: str, answer: bytes) -> None:
    told = json.loads(answer)
    if path.startswith("/v1/messages"):
        assert told["type"] == "error"
        assert set(told["error"]) - {"details"} == {"type", "message"}
    else:
        assert set(told["error"]) == {"message", "type", "param", "code"}


def test_no_body_breaks_the_gateway(running: Running) -> None:
    made, agent = running.ready.result(SECONDS_MAX)
    statuses: Counter[tuple[str, int]] = Counter()

    @settings(
        max_examples=REQUESTS,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(REQUEST, HEADERS)
    def send(request: tuple[str, bytes], headers: dict[str, str]) -> None:
        asking = asyncio.run_coroutine_threadsafe(ask(made, agent, request, headers), running.loop)
        status, answer = asking.result(SECONDS_MAX)
        statuses[request[0], status] += 1
        assert status in (200, 400), answer
        if status == 400:
            assert_own_shape(request[0], answer)

    send()
    print(dict(sorted(statuses.items())))
    assert statuses.keys() == {(path, status) for path in GOOD for status in (200, 400)}
    for status in (200, 400):
        assert sum(n for (_, had), n in statuses.items() if had == status) > REQUESTS // 10
    ended = asyncio.run_coroutine_threadsafe(made.ends(agent), running.loop)
    assert ended.result(2 * SECONDS_MAX).closed.refused == 0
