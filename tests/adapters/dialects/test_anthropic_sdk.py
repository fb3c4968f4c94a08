"""The vendor's own client reads what the dialect writes, over HTTP on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anthropic as sdk
import pytest
from aiohttp import web
from anthropic.types import Message, MessageParam, ToolParam

from streams.adapters.dialects import anthropic
from streams.adapters.dialects.calls import Call, CallRefused, Piece, Reasoning, Text, ToolCall
from streams.adapters.dialects.common import ContextOverflow
from tests.adapters.dialects.anthropic_answers import LS, NAMES, PWD, answer

T = TypeVar("T")

MESSAGES: list[MessageParam] = [{"role": "user", "content": "How big is the repo?"}]
TOOLS: list[ToolParam] = [{"name": "bash", "input_schema": {"type": "object"}}]
WAIT_S = 20.0


class Server:
    """Answers call after call with the pieces for it, or refuses it; keeps the calls."""

    def __init__(self, *answers: Sequence[Piece], refusal: CallRefused | None = None) -> None:
        self.answers = answers
        self.refusal = refusal
        self.calls: list[Call] = []
        self.refused: list[str] = []
        self.headers: list[str] = []

    async def create(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers.get(anthropic.MARK_HEADER or "", ""))
        try:
            call = anthropic.read_call(await request.read())
            self.calls.append(call)
            if self.refusal and not call.stream:
                raise self.refusal
        except CallRefused as refusal:
            self.refused.append(refusal.message)
            error = anthropic.error_body(refusal)
            return web.Response(status=refusal.status, body=error, content_type=anthropic.BODY_TYPE)
        pieces = self.answers[(len(self.calls) - 1) % len(self.answers)] if self.answers else ()
        if call.stream:
            return await self.stream(request, call, pieces)
        reply = anthropic.answer_body(call, answer(*pieces))
        return web.Response(body=reply, content_type=anthropic.BODY_TYPE)

    async def stream(
        self, request: web.Request, call: Call, pieces: Sequence[Piece]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": anthropic.STREAM_TYPE})
        await response.prepare(request)
        events = anthropic.stream(call, NAMES)
        await response.write(events.start())
        await response.write(events.keep_alive())
        for piece in pieces:
            await response.write(events.piece(piece) or events.keep_alive())
        ended = events.error(self.refusal) if self.refusal else events.end(answer(*pieces))
        await response.write(ended)
        return response

    async def count(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(anthropic.read_call(await request.read()))
        return web.Response(body=anthropic.count_body(165), content_type=anthropic.BODY_TYPE)

    async def models(self, request: web.Request) -> web.StreamResponse:
        names = anthropic.models_body(["qwen", "other"])
        return web.Response(body=names, content_type=anthropic.BODY_TYPE)


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    for method, path in anthropic.ROUTES:
        app.router.add_route(method, path, server.create)
    for method, path in anthropic.COUNT_ROUTES:
        app.router.add_route(method, path, server.count)
    app.router.add_route(*anthropic.MODELS_ROUTE, server.models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def talk(server: Server, ask: Callable[[sdk.AsyncAnthropic], Awaitable[T]]) -> T:
    async def talking() -> T:
        async with (
            serving(server) as url,
            sdk.AsyncAnthropic(
                base_url=url, api_key="key", max_retries=0, timeout=WAIT_S
            ) as client,
        ):
            return await asyncio.wait_for(ask(client), WAIT_S)

    return asyncio.run(talking())


def talk_in_a_thread(server: Server, ask: Callable[[sdk.Anthropic], T]) -> T:
    """The same with the client that blocks."""

    def asking(url: str) -> T:
        with sdk.Anthropic(base_url=url, api_key="key", max_retries=0, timeout=WAIT_S) as client:
            return ask(client)

    async def talking() -> T:
        async with serving(server) as url:
            return await asyncio.wait_for(asyncio.to_thread(asking, url), WAIT_S)

    return asyncio.run(talking())


ASKED: dict[str, Any] = {"model": "qwen", "max_tokens": 99, "messages": MESSAGES, "tools": TOOLS}


def told(message: Message) -> dict[str, Any]:
    """What a message says: text blocks joined, as the two ways to send it divide it differently."""
    blocks = [block.to_dict() for block in message.content]
    texts = [str(block["text"]) for block in blocks if block["type"] == "text"]
    return {
        "id": message.id,
        "text": "".join(texts),
        "blocks": [block for block in blocks if block["type"] != "text"],
        "stop_reason": message.stop_reason,
        "usage": message.usage.to_dict(),
    }


async def whole(client: sdk.AsyncAnthropic) -> dict[str, Any]:
    return told(await client.messages.create(**ASKED))


async def streamed(client: sdk.AsyncAnthropic) -> dict[str, Any]:
    """The events added up by the client library itself."""
    async with client.messages.stream(**ASKED) as stream:
        return told(await stream.get_final_message())


def streamed_in_a_thread(client: sdk.Anthropic) -> dict[str, Any]:
    with client.messages.stream(**ASKED) as stream:
        return told(stream.get_final_message())


ANSWERS: dict[str, list[Piece]] = {
    "text": [Text("It has "), Text(""), Text("4 MB.\n")],
    "text that needs escapes": [
        Text('"\\\n\r\u2028\x00'),
        Text("😀"),
        Text("\n\nevent: error\n\n"),
    ],
    "reasoning and text": [Reasoning("Let me "), Reasoning("see."), Text("4 MB")],
    "calls alone": [LS, PWD],
    "all of it": [Reasoning("hm"), Text("Wait."), LS, PWD],
    "text after a call": [Text("a"), LS, Text("\n\ndone")],
    "arguments that are no JSON": [ToolCall(index=0, id="c", name="bash", arguments='{"a')],
    "half a character in arguments": [
        ToolCall(index=0, id="c", name="bash", arguments='{"a": "\\ud83d"}')
    ],
    "reasoning alone": [Reasoning("hm")],
    "nothing": [],
}


@pytest.mark.parametrize("pieces", ANSWERS.values(), ids=ANSWERS)
def test_a_stream_adds_up_to_the_message_of_the_body(pieces: list[Piece]) -> None:
    server = Server(pieces)
    found = talk(server, whole)
    assert talk(server, streamed) == found
    assert talk_in_a_thread(server, streamed_in_a_thread) == found
    assert [call.stream for call in server.calls] == [False, True, True]


def test_the_client_gets_what_was_said() -> None:
    assert talk(Server(ANSWERS["all of it"]), streamed) == {
        "id": "msg_1",
        "text": "Wait.",
        "blocks": [
            {"type": "thinking", "thinking": "hm", "signature": "rs_1"},
            {
                "type": "tool_use",
                "id": "toolu_a",
                "name": "bash",
                "input": {"command": "ls", "timeout": 5.0},
            },
            {"type": "tool_use", "id": "toolu_b", "name": "bash", "input": {}},
        ],
        "stop_reason": "tool_use",
        "usage": {
            "input_tokens": 65,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 100,
            "output_tokens": 31,
            "output_tokens_details": {"thinking_tokens": 12},
        },
    }


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_sent_back_is_the_answer_that_was_given(stream: bool) -> None:
    server = Server([*ANSWERS["all of it"], Text("\n\nNow.")])

    async def twice(client: sdk.AsyncAnthropic) -> None:
        if stream:
            async with client.messages.stream(**ASKED) as events:
                first: Any = await events.get_final_message()
        else:
            first = await client.messages.create(**ASKED)
        result: Any = {"type": "tool_result", "tool_use_id": LS.id, "content": "4 MB"}
        echo: list[MessageParam] = [
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        await client.messages.create(**ASKED | {"messages": [*MESSAGES, *echo]})

    talk(server, twice)
    calls = [
        {"id": it.id, "type": "function", "function": {"name": it.name, "arguments": arguments}}
        for it, arguments in ((LS, {"command": "ls", "timeout": 5.0}), (PWD, {}))
    ]
    assert server.calls[1].messages[1:] == (
        {
            "role": "assistant",
            "content": "Wait.\n\nNow.",
            "reasoning_content": "hm",
            "tool_calls": calls,
        },
        {"role": "tool", "content": "4 MB", "tool_call_id": LS.id, "name": "bash"},
    )
    assert server.calls[1].carriers == {1: ("rs_1",)}


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_that_wants_the_server_to_hold_its_thread_goes_on_without(stream: bool) -> None:
    """The tool runner sends only what is new, until it is told that there are no threads."""
    ls = ToolCall(index=0, id="toolu_a", name="bash", arguments='{"command": "ls"}')
    server = Server([Reasoning("hm"), ls], [Text("4 MB")])

    @sdk.beta_async_tool
    async def bash(command: str) -> str:
        """Runs it."""
        return f"{command}: 4 MB"

    async def run(client: sdk.AsyncAnthropic) -> str:
        asked: Any = {"model": "qwen", "max_tokens": 99, "messages": MESSAGES, "tools": [bash]}
        runner: Any = client.beta.messages.tool_runner(**asked, stream=stream)
        last: Any = await runner.until_done()
        return str(last.content[0].text)

    assert talk(server, run) == "4 MB"
    assert len(server.refused) == 1
    assert "thread" in server.refused[0]
    first, second = server.calls
    assert second.messages[: len(first.messages)] == first.messages
    assert [message["role"] for message in second.messages] == ["user", "assistant", "tool"]
    assert (second.messages[-1]["content"], second.tools) == ("ls: 4 MB", first.tools)
    assert second.carriers == {1: ("rs_1",)}


def test_an_error_event_raises_in_the_client() -> None:
    server = Server([Text("It has")], refusal=CallRefused(503, "The engine is gone."))
    with pytest.raises(sdk.APIStatusError, match="The engine is gone") as caught:
        talk(server, streamed)
    assert caught.value.type == "api_error"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, sdk.BadRequestError),
        (401, sdk.AuthenticationError),
        (403, sdk.PermissionDeniedError),
        (404, sdk.NotFoundError),
        (409, sdk.ConflictError),
        (429, sdk.RateLimitError),
        (500, sdk.InternalServerError),
        (503, sdk.InternalServerError),
        (529, sdk.InternalServerError),
    ],
)
def test_a_refusal_is_the_client_s_own_error(status: int, error: type[sdk.APIStatusError]) -> None:
    with pytest.raises(error, match=r"No\.") as caught:
        talk(Server(refusal=CallRefused(status, "No.")), whole)
    assert caught.value.status_code == status


def test_an_overflow_is_a_bad_request_with_its_numbers() -> None:
    with pytest.raises(sdk.BadRequestError, match="40000 tokens > 32768 maximum"):
        talk(Server(refusal=ContextOverflow(40_000, 32_768)), whole)


def test_the_client_counts_tokens() -> None:
    server = Server()

    async def count(client: sdk.AsyncAnthropic) -> int:
        counted = await client.messages.count_tokens(model="qwen", messages=MESSAGES, tools=TOOLS)
        return counted.input_tokens

    assert talk(server, count) == 165
    assert server.calls[0].max_tokens is None


def test_the_client_lists_the_models() -> None:
    async def names(client: sdk.AsyncAnthropic) -> list[str]:
        return [model.id async for model in client.models.list()]

    assert talk(Server(), names) == ["qwen", "other"]


def test_the_client_says_which_api_it_speaks() -> None:
    server = Server([Text("hi")])
    talk(server, whole)
    assert all(server.headers)
