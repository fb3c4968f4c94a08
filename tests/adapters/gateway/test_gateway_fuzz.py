"""Whatever is sent, the gateway answers in the API's own shape and goes on.

`FUZZ_REQUESTS` in the environment asks for more than the suite's number.
"""

import asyncio
import json
import os
import threading
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
GOOD: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "r",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "t"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": "auto",
    "stream": False,
    "max_tokens": 4,
    "stop": ["x"],
    "temperature": 1,
    "response_format": {"type": "text"},
}
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


PLACES = list(places(GOOD))[1:]
CHANGE = st.tuples(st.sampled_from(PLACES), st.sampled_from(["put", "drop", "repeat"]), JSON)


def changed(changes: list[tuple[tuple[Any, ...], str, Any]]) -> Any:
    body = json.loads(json.dumps(GOOD))
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


BODIES = st.one_of(
    st.lists(CHANGE, min_size=1, max_size=4).map(lambda c: json.dumps(changed(c)).encode()),
    st.lists(CHANGE, max_size=2).map(
        lambda c: json.dumps(changed(c), ensure_ascii=False).encode("utf-8", "surrogatepass")
    ),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=40),
    st.integers(0, 3000).map(lambda n: b'{"messages":' + b"[" * n + b"]" * n + b"}"),
)
HEADERS = st.dictionaries(
    st.sampled_from(
        ["x-turnstream-request-class", "x-claude-code-agent-id", "content-type", "accept"]
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


async def ask(made: World, agent: Agent, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    async with made.http.post(
        f"{made.gateway.base_url}/v1/chat/completions",
        data=body,
        headers={**headers, "authorization": f"Bearer {agent.key}"},
    ) as reply:
        return reply.status, await reply.read()


def test_no_body_breaks_the_gateway(running: Running) -> None:
    made, agent = running.ready.result(SECONDS_MAX)
    statuses: dict[int, int] = {}

    @settings(
        max_examples=REQUESTS,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(BODIES, HEADERS)
    def send(body: bytes, headers: dict[str, str]) -> None:
        asking = asyncio.run_coroutine_threadsafe(ask(made, agent, body, headers), running.loop)
        status, answer = asking.result(SECONDS_MAX)
        statuses[status] = statuses.get(status, 0) + 1
        assert status in (200, 400), answer
        if status == 400:
            assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}

    send()
    print(statuses)
    assert statuses.keys() == {200, 400}
    assert min(statuses.values()) > REQUESTS // 20
    ended = asyncio.run_coroutine_threadsafe(made.ends(agent), running.loop)
    assert ended.result(2 * SECONDS_MAX).closed.refused == 0
