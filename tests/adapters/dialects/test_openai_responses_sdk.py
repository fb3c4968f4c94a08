"""The vendor's own client reads what the dialect writes, over HTTP on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import openai
import pydantic
import pytest
from aiohttp import web
from openai.types.responses import Response

from streams.adapters.dialects import openai_responses
from streams.adapters.dialects.calls import (
    Call,
    CallRefused,
    FinishReason,
    Piece,
    Reasoning,
    Text,
    ToolCall,
)
from streams.adapters.dialects.common import ContextOverflow
from tests.adapters.dialects.responses_answers import (
    ANSWER_ID,
    CARRIER,
    LETTERS,
    LS,
    NAMES,
    PATCH,
    PWD,
    SEARCH,
    SPAWN,
    answer,
)
from tests.adapters.dialects.responses_requests import TOOLS

T = TypeVar("T")
ASKED: dict[str, Any] = {"model": "qwen", "input": "How big is the repo?", "tools": TOOLS}
WAIT_S = 20.0


class Server:
    """Answers every call with the same pieces, or refuses it; keeps the calls."""

    def __init__(
        self,
        pieces: Sequence[Piece] = (),
        refusal: CallRefused | None = None,
        finish: FinishReason = "stop",
    ) -> None:
        self.pieces = pieces
        self.refusal = refusal
        self.finish: FinishReason = finish
        self.calls: list[Call] = []

    async def respond(self, request: web.Request) -> web.StreamResponse:
        try:
            call = openai_responses.read_call(await request.read())
            self.calls.append(call)
            if self.refusal and not call.stream:
                raise self.refusal
        except CallRefused as refusal:
            error = openai_responses.error_body(refusal)
            return web.Response(
                status=refusal.status, body=error, content_type=openai_responses.BODY_TYPE
            )
        if call.stream:
            return await self.stream(request, call)
        reply = openai_responses.answer_body(call, answer(*self.pieces, finish=self.finish))
        return web.Response(body=reply, content_type=openai_responses.BODY_TYPE)

    async def stream(self, request: web.Request, call: Call) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": openai_responses.STREAM_TYPE})
        await response.prepare(request)
        given = answer(*self.pieces, finish=self.finish)
        events = openai_responses.stream(call, NAMES)
        await response.write(events.start())
        await response.write(events.keep_alive())
        for piece in self.pieces:
            await response.write(events.piece(piece) or events.keep_alive())
            await response.write(events.keep_alive())
        await response.write(events.error(self.refusal) if self.refusal else events.end(given))
        return response

    async def count(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(openai_responses.read_call(await request.read()))
        return web.Response(
            body=openai_responses.count_body(165), content_type=openai_responses.BODY_TYPE
        )


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    app = web.Application()
    for method, path in openai_responses.ROUTES:
        app.router.add_route(method, path, server.respond)
    for method, path in openai_responses.COUNT_ROUTES:
        app.router.add_route(method, path, server.count)
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


async def whole(client: openai.AsyncOpenAI) -> Response:
    response: Response = await client.responses.create(**ASKED)
    return response


async def streamed(client: openai.AsyncOpenAI) -> Any:
    """The response that the client library gathers from the events."""
    async with client.responses.stream(**ASKED) as stream:
        return await stream.get_final_response()


async def events(client: openai.AsyncOpenAI) -> list[Any]:
    stream: Any = await client.responses.create(**ASKED, stream=True)
    return [event async for event in stream]


def told(response: Any) -> dict[str, Any]:
    """What a response says: the library adds its own parsing."""
    found: dict[str, Any] = response.to_dict()
    for item in found["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return found


ANSWERS: dict[str, list[Piece]] = {
    "text": [Text("It has "), Text(""), Text("4 MB.\n")],
    "text that needs escapes": [Text('"\\\n\r\u2028\x00'), Text("😀"), Text("\n\ndata: x\n\n")],
    "reasoning and text": [Reasoning("Let me "), Reasoning("see."), Text("4 MB")],
    "calls alone": [LS, PWD],
    "calls of every kind": [PATCH, SPAWN, SEARCH],
    "all of it": [Reasoning("hm"), Text("Wait."), LS, PWD],
    "arguments that are no JSON": [ToolCall(index=0, id="c", name="bash", arguments='{"a')],
    "reasoning alone": [Reasoning("hm")],
    "nothing": [],
}


@pytest.mark.parametrize("pieces", ANSWERS.values(), ids=ANSWERS)
def test_a_stream_ends_with_the_response_of_the_body(pieces: list[Piece]) -> None:
    server = Server(pieces)
    assert told(talk(server, streamed)) == told(talk(server, whole))
    assert [call.stream for call in server.calls] == [True, False]


@pytest.mark.parametrize("pieces", ANSWERS.values(), ids=ANSWERS)
def test_what_is_told_fits_the_types_of_the_client(pieces: list[Piece]) -> None:
    response = talk(Server(pieces), whole)
    Response.model_validate(response.to_dict())
    for event in talk(Server(pieces), events):
        type(event).model_validate(event.to_dict())


@pytest.mark.parametrize("pieces", ANSWERS.values(), ids=ANSWERS)
def test_the_deltas_of_an_item_add_up_to_it_and_come_before_it_is_done(
    pieces: list[Piece],
) -> None:
    texts: dict[str, str] = {}
    done: list[Any] = []
    for number, event in enumerate(talk(Server(pieces), events)):
        assert event.sequence_number == number
        match event.type:
            case "response.output_item.added":
                assert event.output_index == len(done)
                texts[event.item.id] = ""
            case "response.output_item.done":
                assert list(texts) == [*(item.id for item in done), event.item.id]
                done.append(event.item)
            case name if name.endswith(".delta"):
                texts[event.item_id] += event.delta
            case "response.completed":
                assert [item.to_dict() for item in event.response.output] == [
                    item.to_dict() for item in done
                ]
    for item in done:
        match item.type:
            case "reasoning" | "message":
                assert item.content[0].text == texts[item.id]
            case "function_call":
                assert item.arguments == texts[item.id]
            case "custom_tool_call":
                assert item.input == texts[item.id]


def test_the_client_gets_what_was_said() -> None:
    response = talk(Server(ANSWERS["all of it"]), streamed)
    reasoning, message, *calls = response.output
    assert (response.id, response.output_text, response.status) == (ANSWER_ID, "Wait.", "completed")
    assert (reasoning.id, reasoning.encrypted_content) == (f"rs_{LETTERS}_0", CARRIER)
    assert [part.text for part in reasoning.content] == ["hm"]
    assert (message.id, message.role) == (f"msg_{LETTERS}_1", "assistant")
    assert [(it.id, it.call_id, it.name, it.arguments) for it in calls] == [
        (f"fc_{LETTERS}_2", LS.id, LS.name, LS.arguments),
        (f"fc_{LETTERS}_3", PWD.id, PWD.name, PWD.arguments),
    ]
    assert response.usage.to_dict() == {
        "input_tokens": 165,
        "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 0},
        "output_tokens": 31,
        "output_tokens_details": {"reasoning_tokens": 12},
        "total_tokens": 196,
    }


def test_an_answer_that_is_sent_back_is_the_answer_that_was_given() -> None:
    server = Server([Reasoning("hm"), Text("Wait."), PATCH, SPAWN, SEARCH])

    async def twice(client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(**ASKED)
        echo: list[Any] = [item.to_dict() for item in first.output]
        output: Any = {"type": "custom_tool_call_output", "call_id": PATCH.id, "output": "done"}
        question: Any = {"role": "user", "content": "How big is the repo?"}
        await client.responses.create(**ASKED | {"input": [question, *echo, output]})

    talk(server, twice)
    calls = [
        {"id": it.id, "type": "function", "function": {"name": it.name, "arguments": arguments}}
        for it, arguments in (
            (PATCH, {"input": "*** Begin\n"}),
            (SPAWN, {"message": "go"}),
            (SEARCH, {"query": "mail"}),
        )
    ]
    assert server.calls[1].messages[1:] == (
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "hm",
            "tool_calls": calls,
        },
        {"role": "tool", "content": "done", "tool_call_id": PATCH.id, "name": "apply_patch"},
    )
    assert server.calls[1].carriers == {1: (CARRIER, ANSWER_ID)}


def test_only_what_is_new_is_sent_behind_an_answer_that_is_named() -> None:
    server = Server([Text("4 MB")])

    async def twice(client: openai.AsyncOpenAI) -> str | None:
        first = await client.responses.create(**ASKED)
        second = await client.responses.create(
            model="qwen", input="And now?", previous_response_id=first.id
        )
        return second.previous_response_id

    assert talk(server, twice) == ANSWER_ID
    assert server.calls[1].previous_id == ANSWER_ID
    assert server.calls[1].messages == ({"role": "user", "content": "And now?"},)


class Size(pydantic.BaseModel):
    megabytes: int


def test_an_answer_with_a_schema_is_parsed_by_the_client() -> None:
    server = Server([Text('{"megabytes": 4}')])

    async def parsed(client: openai.AsyncOpenAI) -> Size | None:
        found = await client.responses.parse(model="qwen", input="How big?", text_format=Size)
        return found.output_parsed

    assert talk(server, parsed) == Size(megabytes=4)
    assert server.calls[0].response_schema["properties"]["megabytes"]["type"] == "integer"


def test_an_answer_that_is_cut_is_incomplete() -> None:
    server = Server([Reasoning("hm"), Text("It ha")], finish="length")
    *_, last = talk(server, events)
    responses: list[Any] = [last.response, talk(server, whole)]
    for response in responses:
        assert response.status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
        assert [item.status for item in response.output] == ["completed", "incomplete"]
    assert last.type == "response.incomplete"


def test_an_error_event_raises_in_the_client() -> None:
    server = Server([Text("It has")], CallRefused(503, "The engine is gone."))
    with pytest.raises(openai.APIError) as caught:
        talk(server, streamed)
    assert (caught.value.message, caught.value.code) == ("The engine is gone.", "server_error")


def test_an_overflow_has_its_code_in_a_stream_and_without() -> None:
    server = Server(refusal=ContextOverflow(40_000, 32_768))
    with pytest.raises(openai.BadRequestError) as refused:
        talk(server, whole)
    with pytest.raises(openai.APIError) as raised:
        talk(server, streamed)
    assert refused.value.code == raised.value.code == "context_length_exceeded"


def test_a_refused_request_names_its_field_to_the_client() -> None:
    async def ask(client: openai.AsyncOpenAI) -> None:
        await client.responses.create(**ASKED, background=True)

    with pytest.raises(openai.BadRequestError) as caught:
        talk(Server(), ask)
    assert caught.value.param == "background"


def test_the_client_counts_tokens() -> None:
    async def count(client: openai.AsyncOpenAI) -> int:
        asked: Any = {"input": "How big is the repo?", "tools": TOOLS}
        return (await client.responses.input_tokens.count(**asked)).input_tokens

    server = Server()
    assert talk(server, count) == 165
    assert server.calls[0].messages == ({"role": "user", "content": "How big is the repo?"},)
