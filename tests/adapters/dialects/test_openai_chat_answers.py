"""What a client gets: the bodies byte for byte where it matters, and the frames of a stream."""

import json
from typing import Any

import pytest

from streams.adapters.dialects import openai_chat
from streams.adapters.dialects.calls import (
    CallRefused,
    FinishReason,
    Piece,
    Reasoning,
    Text,
    ToolCall,
)
from streams.adapters.dialects.common import ContextOverflow
from streams.adapters.dialects.dialect import Dialect
from tests.adapters.dialects.chat_answers import LS, PWD, answer, names
from tests.adapters.dialects.chat_requests import call

DIALECT: Dialect = openai_chat

NEVER_STREAMED = call()


def body(*pieces: Piece, finish: FinishReason = "stop") -> dict[str, Any]:
    read: dict[str, Any] = json.loads(
        DIALECT.answer_body(NEVER_STREAMED, answer(*pieces, finish=finish))
    )
    return read


def frames(data: bytes) -> list[Any]:
    """The data of each event; the end mark as it is."""
    events = data.decode().split("\n\n")
    assert events.pop() == "", "the last event is not ended"
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    texts = [event.removeprefix("data: ") for event in events]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def test_an_answer_is_a_completion() -> None:
    assert body(Reasoning("Look first."), Text("Wait."), LS) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "qwen",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Wait.",
                    "refusal": None,
                    "reasoning_content": "Look first.",
                    "tool_calls": [
                        {
                            "id": "call_a",
                            "type": "function",
                            "function": {"name": "bash", "arguments": '{"command":  "ls"}'},
                        }
                    ],
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {
            "prompt_tokens": 165,
            "completion_tokens": 31,
            "total_tokens": 196,
            "prompt_tokens_details": {"cached_tokens": 100},
            "completion_tokens_details": {"reasoning_tokens": 12},
        },
    }


CONTENTS: dict[str, tuple[tuple[Piece, ...], str | None]] = {
    "text": ((Text("hi"),), "hi"),
    "blanks before a call": ((Text("\n\n"), LS), "\n\n"),
    "calls alone": ((LS, PWD), None),
    "reasoning alone": ((Reasoning("hm"),), ""),
    "nothing": ((), ""),
}


@pytest.mark.parametrize(("pieces", "content"), CONTENTS.values(), ids=CONTENTS)
def test_content_is_null_beside_calls_only(pieces: tuple[Piece, ...], content: str | None) -> None:
    assert body(*pieces)["choices"][0]["message"]["content"] == content


@pytest.mark.parametrize(
    ("given", "calls", "told"),
    [
        ("stop", (), "stop"),
        ("stop", (LS,), "tool_calls"),
        ("tool_calls", (LS,), "tool_calls"),
        ("length", (), "length"),
        ("length", (LS,), "length"),
        ("abort", (), "length"),
        ("error", (), "length"),
    ],
)
def test_a_finish_reason_is_one_that_the_api_knows(
    given: FinishReason, calls: tuple[ToolCall, ...], told: str
) -> None:
    assert body(*calls, finish=given)["choices"][0]["finish_reason"] == told
    stream = DIALECT.stream(NEVER_STREAMED, names("i", 0, "m"))
    assert (
        frames(stream.end(answer(*calls, finish=given)))[0]["choices"][0]["finish_reason"] == told
    )


def test_a_stream_is_chunks_of_one_completion_and_an_end_mark() -> None:
    stream = DIALECT.stream(call(stream=True), names("chatcmpl-1", 1_700_000_000, "qwen"))
    pieces = (Reasoning("hm"), Text("a"), Text(""), Text("b\n\n"), LS, PWD)
    sent = [stream.start(), *(stream.piece(piece) for piece in pieces), stream.keep_alive()]
    *chunks, mark = frames(b"".join(sent) + stream.end(answer(*pieces)))
    assert mark == "[DONE]"
    common = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "qwen",
    }
    assert all({**chunk, "choices": None} == common | {"choices": None} for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert all(choice["index"] == 0 and choice["logprobs"] is None for choice in choices)
    assert [choice["finish_reason"] for choice in choices] == [None] * 7 + ["tool_calls"]

    def called(tool_call: ToolCall) -> dict[str, Any]:
        function = {"name": tool_call.name, "arguments": tool_call.arguments}
        named = {"id": tool_call.id, "type": "function", "function": function}
        return {"tool_calls": [{"index": tool_call.index, **named}]}

    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": None, "refusal": None},
        {"reasoning_content": "hm"},
        {"content": "a"},
        {"content": "b\n\n"},
        called(LS),
        called(PWD),
        {},
        {},
    ]


def test_the_counts_come_last_and_only_if_they_were_asked_for() -> None:
    asked = call(stream=True, stream_options={"include_usage": True})
    stream = DIALECT.stream(asked, names("chatcmpl-1", 1_700_000_000, "qwen"))
    *chunks, counts, mark = frames(stream.start() + stream.end(answer(Text("a"))))
    assert mark == "[DONE]"
    assert [chunk["usage"] for chunk in chunks] == [None, None]
    assert (counts["choices"], counts["id"]) == ([], "chatcmpl-1")
    assert counts["usage"] == body(Text("a"))["usage"]

    plain = DIALECT.stream(call(stream=True), names("chatcmpl-1", 1_700_000_000, "qwen"))
    assert all("usage" not in chunk for chunk in frames(plain.end(answer()))[:-1])


def test_an_error_in_a_stream_is_not_followed_by_the_end_mark() -> None:
    stream = DIALECT.stream(call(stream=True), names("i", 0, "m"))
    refusal = CallRefused(503, "The engine is gone.", code="engine_gone")
    assert frames(stream.error(refusal)) == [json.loads(DIALECT.error_body(refusal))]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (
            CallRefused(400, "No.", param="n"),
            {"message": "No.", "type": "invalid_request_error", "param": "n", "code": None},
        ),
        (
            CallRefused(401, "No.", code="invalid_api_key"),
            {
                "message": "No.",
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_api_key",
            },
        ),
        (
            CallRefused(429, "No."),
            {"message": "No.", "type": "rate_limit_error", "param": None, "code": None},
        ),
        (
            CallRefused(503, "No."),
            {"message": "No.", "type": "server_error", "param": None, "code": None},
        ),
        (
            CallRefused(503, "No.", kind="overloaded"),
            {"message": "No.", "type": "overloaded", "param": None, "code": None},
        ),
    ],
)
def test_an_error_says_whose_fault_it_is(refusal: CallRefused, error: dict[str, Any]) -> None:
    assert json.loads(DIALECT.error_body(refusal)) == {"error": error}


def test_an_overflow_has_the_code_and_the_words_that_clients_compact_on() -> None:
    refusal = ContextOverflow(40_000, 32_768)
    error = json.loads(DIALECT.error_body(refusal))["error"]
    assert (refusal.status, error["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 32768 tokens" in error["message"]
    assert "40000 tokens" in error["message"]
    assert "educe the length of the messages" in error["message"]


def test_the_models_are_a_list() -> None:
    listed = json.loads(DIALECT.models_body(["qwen", "other"]))
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["qwen", "other"]
    assert all(model["object"] == "model" for model in listed["data"])


def test_half_a_character_that_a_model_spelled_does_not_break_an_answer() -> None:
    broken = ToolCall(index=0, id="c", name="\ud83dx", arguments="{}")
    [found] = body(broken, Text("\ud83d\ude00"))["choices"][0]["message"]["tool_calls"]
    assert found["function"]["name"] == "\ufffdx"
