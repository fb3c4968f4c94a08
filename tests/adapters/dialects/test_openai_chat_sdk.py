"""The vendor's own client reads what the dialect writes, over HTTP on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import openai
import pytest
from aiohttp import web
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionMessageParam,
    ChatCompletionToolParam,
    ParsedChatCompletion,
)

from streams.adapters.dialects import openai_chat
from streams.adapters.dialects.calls import Call, CallRefused, Piece, Reasoning, Text, ToolCall
from streams.adapters.dialects.common import ContextOverflow
from tests.adapters.dialects.chat_answers import LS, PWD, answer, names

T = TypeVar("T")

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How big is the repo?"}]
TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
]
WAIT_S = 20.0


class Server:
    """Answers every call with the same pieces, or refuses it; keeps the calls."""

    def __init__(self, pieces: Sequence[Piece] = (), refusal: CallRefused | None = None) -> None:
        self.pieces = pieces
        self.refusal = refusal
        self.calls: list[Call] = []

    async def complete(self, request: web.Request) -> web.StreamResponse:
        try:
            call = openai_chat.read_call(await request.read())
            self.calls.append(call)
            if self.refusal and not call.stream:
                raise self.refusal
        except CallRefused as refusal:
            error = openai_chat.error_body(refusal)
            return web.Response(
                status=refusal.status, body=error, content_type=openai_chat.BODY_TYPE
            )
        if call.stream:
            return await self.stream(request, call)
        reply = openai_chat.answer_body(call, answer(*self.pieces))
        return web.Response(body=reply, content_type=openai_chat.BODY_TYPE)

    async def stream(self, request: web.Request, call: Call) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": openai_chat.STREAM_TYPE})
        await response.prepare(request)
        given = answer(*self.pieces)
        events = openai_chat.stream(call, names(given.id, given.created_s, given.model))
        await response.write(events.start())
        await response.write(events.keep_alive())
        for piece in self.pieces:
            await response.write(events.piece(piece) or events.keep_alive())
        await response.write(events.error(self.refusal) if self.refusal else events.end(given))
        return response

    async def models(self, request: web.Request) -> web.StreamResponse:
        names = openai_chat.models_body(["qwen", "other"])
        return web.Response(body=names, content_type=openai_chat.BODY_TYPE)


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    app = web.Application()
    for method, path in openai_chat.ROUTES:
        app.router.add_route(method, path, server.complete)
    app.router.add_route(*openai_chat.MODELS_ROUTE, server.models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        async with openai.AsyncOpenAI(
            base_url=f"http://{host}:{port}/v1", api_key="key", max_retries=0, timeout=WAIT_S
        ) as client:
            yield client
    finally:
        await runner.cleanup()


def talk(server: Server, ask: Callable[[openai.AsyncOpenAI], Awaitable[T]]) -> T:
    async def talking() -> T:
        async with connected(server) as client:
            return await asyncio.wait_for(ask(client), WAIT_S)

    return asyncio.run(talking())


def told(completion: ChatCompletion | ParsedChatCompletion[None]) -> dict[str, Any]:
    """What a completion says: the library fills the rest with null and with its own parsing."""
    [choice] = completion.choices
    message: dict[str, Any] = choice.message.to_dict()
    calls = [
        (call["id"], call["type"], call["function"]["name"], call["function"]["arguments"])
        for call in message.pop("tool_calls", None) or ()
    ]
    assert completion.usage is not None
    return {
        "id": completion.id,
        "message": {name: value for name, value in message.items() if value is not None},
        "calls": calls,
        "finish_reason": choice.finish_reason,
        "usage": completion.usage.to_dict(),
    }


async def whole(client: openai.AsyncOpenAI) -> dict[str, Any]:
    return told(await client.chat.completions.create(model="qwen", messages=MESSAGES, tools=TOOLS))


async def streamed(client: openai.AsyncOpenAI) -> dict[str, Any]:
    """The deltas added up by the client library itself."""
    async with client.chat.completions.stream(
        model="qwen", messages=MESSAGES, tools=TOOLS, stream_options={"include_usage": True}
    ) as stream:
        return told(await stream.get_final_completion())


ANSWERS: dict[str, list[Piece]] = {
    "text": [Text("It has "), Text(""), Text("4 MB.\n")],
    "text that needs escapes": [
        Text('"\\\n\r\u2028\x00'),
        Text("😀"),
        Text("\n\ndata: [DONE]\n\n"),
    ],
    "reasoning and text": [Reasoning("Let me "), Reasoning("see."), Text("4 MB")],
    "calls alone": [LS, PWD],
    "all of it": [Reasoning("hm"), Text("Wait."), LS, PWD],
    "text after a call": [LS, Text("done")],
    "arguments that are no JSON": [ToolCall(index=0, id="c", name="bash", arguments='{"a')],
    "reasoning alone": [Reasoning("hm")],
    "nothing": [],
}


@pytest.mark.parametrize("pieces", ANSWERS.values(), ids=ANSWERS)
def test_a_stream_adds_up_to_the_message_of_the_body(pieces: list[Piece]) -> None:
    server = Server(pieces)
    assert talk(server, streamed) == talk(server, whole)
    assert [call.stream for call in server.calls] == [True, False]


def test_the_client_gets_what_was_said() -> None:
    found = talk(Server(ANSWERS["all of it"]), streamed)
    assert found == {
        "id": "chatcmpl-1",
        "message": {"role": "assistant", "content": "Wait.", "reasoning_content": "hm"},
        "calls": [(it.id, "function", it.name, it.arguments) for it in (LS, PWD)],
        "finish_reason": "tool_calls",
        "usage": {
            "prompt_tokens": 165,
            "completion_tokens": 31,
            "total_tokens": 196,
            "prompt_tokens_details": {"cached_tokens": 100},
            "completion_tokens_details": {"reasoning_tokens": 12},
        },
    }


def test_an_answer_that_is_sent_back_is_the_answer_that_was_given() -> None:
    server = Server(ANSWERS["all of it"])

    async def twice(client: openai.AsyncOpenAI) -> None:
        first = await client.chat.completions.create(model="qwen", messages=MESSAGES)
        echo: Any = first.choices[0].message
        result: Any = {"role": "tool", "tool_call_id": LS.id, "content": "4 MB"}
        await client.chat.completions.create(model="qwen", messages=[*MESSAGES, echo, result])

    talk(server, twice)
    calls = [
        {"id": it.id, "type": "function", "function": {"name": it.name, "arguments": arguments}}
        for it, arguments in ((LS, {"command": "ls"}), (PWD, {}))
    ]
    assert server.calls[1].messages[1:] == (
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "hm",
            "tool_calls": calls,
        },
        {"role": "tool", "content": "4 MB", "tool_call_id": LS.id, "name": "bash"},
    )


def test_an_error_event_raises_in_the_client() -> None:
    server = Server([Text("It has")], CallRefused(503, "The engine is gone.", code="engine_gone"))
    with pytest.raises(openai.APIError) as caught:
        talk(server, streamed)
    assert (caught.value.message, caught.value.code) == ("The engine is gone.", "engine_gone")
    assert caught.value.type == "server_error"


def test_an_overflow_is_a_bad_request_with_its_code() -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        talk(Server(refusal=ContextOverflow(40_000, 32_768)), whole)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_a_refused_request_names_its_field_to_the_client() -> None:
    async def two_answers(client: openai.AsyncOpenAI) -> None:
        await client.chat.completions.create(model="qwen", messages=MESSAGES, n=2)

    with pytest.raises(openai.BadRequestError) as caught:
        talk(Server(), two_answers)
    assert caught.value.param == "n"


def test_the_client_lists_the_models() -> None:
    async def names(client: openai.AsyncOpenAI) -> list[str]:
        return [model.id async for model in client.models.list()]

    assert talk(Server(), names) == ["qwen", "other"]
