"""What a client gets: the bodies byte for byte where it matters, and the events of a stream."""

import dataclasses
import json
from typing import Any

import pytest

from streams.adapters.dialects import anthropic
from streams.adapters.dialects.calls import (
    CallRefused,
    FinishReason,
    Piece,
    Reasoning,
    Text,
    ToolCall,
)
from streams.adapters.dialects.common import ContextOverflow
from streams.adapters.dialects.dialect import CountingDialect
from tests.adapters.dialects.anthropic_answers import LS, NAMES, PWD, answer
from tests.adapters.dialects.anthropic_requests import call

DIALECT: CountingDialect = anthropic
CALL = call()
USAGE = {
    "input_tokens": 65,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 100,
    "output_tokens": 31,
    "output_tokens_details": {"thinking_tokens": 12},
}


def body(*pieces: Piece, finish: FinishReason = "stop") -> dict[str, Any]:
    read: dict[str, Any] = json.loads(DIALECT.answer_body(CALL, answer(*pieces, finish=finish)))
    return read


def events(data: bytes) -> list[dict[str, Any]]:
    """What each event holds; its name is the type of what it holds."""
    frames = data.decode().split("\n\n")
    assert frames.pop() == "", "the last event is not ended"
    found: list[dict[str, Any]] = []
    for frame in frames:
        name, held = frame.split("\n")
        found.append(json.loads(held.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_an_answer_is_a_message() -> None:
    assert body(Reasoning("Look first."), Text("Wait."), LS, PWD) == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "qwen",
        "content": [
            {"type": "thinking", "thinking": "Look first.", "signature": "rs_1"},
            {"type": "text", "text": "Wait."},
            {
                "type": "tool_use",
                "id": "toolu_a",
                "name": "bash",
                "input": {"command": "ls", "timeout": 5.0},
            },
            {"type": "tool_use", "id": "toolu_b", "name": "bash", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": USAGE,
    }


def test_the_counts_add_up_to_the_context_as_clients_add_them() -> None:
    usage = body()["usage"]
    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert sum(usage[name] for name in parts) == answer().usage.prompt
    assert usage["output_tokens"] == answer().usage.output


TYPES: dict[str, tuple[tuple[Piece, ...], list[str]]] = {
    "text": ((Text("hi"),), ["text"]),
    "calls alone": ((LS, PWD), ["tool_use", "tool_use"]),
    "reasoning alone": ((Reasoning("hm"),), ["thinking"]),
    "nothing": ((), []),
}


@pytest.mark.parametrize(("pieces", "types"), TYPES.values(), ids=TYPES)
def test_there_are_no_blocks_but_those_that_hold_something(
    pieces: tuple[Piece, ...], types: list[str]
) -> None:
    assert [block["type"] for block in body(*pieces)["content"]] == types


@pytest.mark.parametrize(
    ("given", "calls", "told"),
    [
        ("stop", (), "end_turn"),
        ("stop", (LS,), "tool_use"),
        ("tool_calls", (LS,), "tool_use"),
        ("length", (), "max_tokens"),
        ("length", (LS,), "max_tokens"),
        ("abort", (), "max_tokens"),
        ("error", (), "max_tokens"),
    ],
)
def test_a_stop_reason_is_one_that_the_api_knows(
    given: FinishReason, calls: tuple[ToolCall, ...], told: str
) -> None:
    assert body(*calls, finish=given)["stop_reason"] == told
    [ended, _] = events(DIALECT.stream(CALL, NAMES).end(answer(*calls, finish=given)))
    assert ended["delta"] == {"stop_reason": told, "stop_sequence": None}


def test_a_stop_sequence_that_was_met_is_named() -> None:
    met = dataclasses.replace(answer(Text("a")), stop_string="END")
    told = {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    assert json.loads(DIALECT.answer_body(CALL, met)).items() >= told.items()
    assert events(DIALECT.stream(CALL, NAMES).end(met))[0]["delta"] == told
    called = dataclasses.replace(answer(LS), stop_string="END")
    assert json.loads(DIALECT.answer_body(CALL, called))["stop_reason"] == "tool_use"


def started(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **news: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": news}


def stopped(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


PING = {"type": "ping"}


def test_a_stream_is_blocks_one_after_the_other() -> None:
    stream = DIALECT.stream(call(stream=True), NAMES)
    pieces = (Reasoning("h"), Reasoning("m"), Text("a"), Text(""), Text("b\n"), LS, PWD)
    sent = [stream.start(), stream.keep_alive(), *(stream.piece(piece) for piece in pieces)]
    first, ping, *blocks = events(b"".join(sent))
    no_counts = dict.fromkeys(USAGE, 0) | {"output_tokens_details": {"thinking_tokens": 0}}
    whole = body() | {"content": [], "stop_reason": None, "usage": no_counts}
    assert (first, ping) == ({"type": "message_start", "message": whole}, PING)
    assert blocks == [
        started(0, type="thinking", thinking="", signature=""),
        delta(0, type="thinking_delta", thinking="h"),
        delta(0, type="thinking_delta", thinking="m"),
        delta(0, type="signature_delta", signature="rs_1"),
        stopped(0),
        started(1, type="text", text=""),
        delta(1, type="text_delta", text="a"),
        delta(1, type="text_delta", text="b\n"),
        PING,
        PING,
    ]
    ended = {"stop_reason": "tool_use", "stop_sequence": None}
    assert events(stream.end(answer(*pieces))) == [
        stopped(1),
        started(2, type="tool_use", id="toolu_a", name="bash", input={}),
        delta(2, type="input_json_delta", partial_json='{"command":"ls","timeout":5.0}'),
        stopped(2),
        started(3, type="tool_use", id="toolu_b", name="bash", input={}),
        delta(3, type="input_json_delta", partial_json="{}"),
        stopped(3),
        {"type": "message_delta", "delta": ended, "usage": USAGE},
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize(
    "pieces",
    [
        [Reasoning("hm")],
        [Text("a"), Text("b")],
        [Text("a"), LS],
        [LS, PWD],
        [Text("a"), LS, Text("b"), PWD, Text("c")],
    ],
)
def test_no_block_that_a_client_would_keep_ends_before_the_answer(pieces: list[Piece]) -> None:
    stream = DIALECT.stream(CALL, NAMES)
    frames = [stream.piece(piece) for piece in pieces]
    assert all(frames), "a piece that waits leaves a sign of life"
    sent = {found["type"] for found in events(stream.start() + b"".join(frames))}
    assert "content_block_stop" not in sent
    assert events(stream.error(CallRefused(503, "The log is away.")))[0]["type"] == "error"
    told = [found["type"] for found in events(b"".join(frames) + stream.end(answer(*pieces)))]
    assert told.count("content_block_start") == told.count("content_block_stop") > 0


def test_text_after_a_call_is_a_block_of_its_own() -> None:
    stream = DIALECT.stream(CALL, NAMES)
    pieces = (Text("a"), LS, Text("\n\n"), Text("b"))
    sent = b"".join(stream.piece(piece) for piece in pieces) + stream.end(answer(*pieces))
    begun = [found for found in events(sent) if found["type"] == "content_block_start"]
    assert [found["content_block"]["type"] for found in begun] == ["text", "tool_use", "text"]
    assert [found["index"] for found in begun] == [0, 1, 2]


def test_an_error_in_a_stream_is_an_event() -> None:
    refusal = CallRefused(503, "The engine is gone.", code="engine_gone")
    stream = DIALECT.stream(CALL, NAMES)
    assert events(stream.error(refusal)) == [json.loads(DIALECT.error_body(refusal))]
    assert not DIALECT.refuses_in_stream(refusal)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "invalid_request_error"),
        (410, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_an_error_has_the_type_of_its_status(status: int, kind: str) -> None:
    refusal = CallRefused(status, "No.", kind="of ours", code="ours", param="n")
    assert json.loads(DIALECT.error_body(refusal)) == {
        "type": "error",
        "error": {"type": kind, "message": "No."},
    }


def test_an_overflow_has_the_words_that_clients_compact_on() -> None:
    refusal = ContextOverflow(40_000, 32_768)
    error = json.loads(DIALECT.error_body(refusal))["error"]
    assert (refusal.status, error["type"]) == (400, "invalid_request_error")
    assert error["message"] == "prompt is too long: 40000 tokens > 32768 maximum"


def test_a_count_is_the_number_alone() -> None:
    assert json.loads(DIALECT.count_body(165)) == {"input_tokens": 165}


@pytest.mark.parametrize("names", [["qwen", "other"], []])
def test_the_models_are_a_page_that_is_the_last(names: list[str]) -> None:
    listed = json.loads(DIALECT.models_body(names))
    assert [model["id"] for model in listed["data"]] == names
    assert all(model["type"] == "model" for model in listed["data"])
    ends = (names[0], names[-1]) if names else (None, None)
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, *ends)


@pytest.mark.parametrize("arguments", ['{"a', "[1]", "{" + '"x":{' * 200 + "}" * 201])
def test_arguments_that_are_no_object_come_back_as_they_were(arguments: str) -> None:
    broken = ToolCall(index=0, id="toolu_a", name="bash", arguments=arguments)
    message = body(broken)
    echo = call(messages=[{"role": "assistant", "content": message["content"]}])
    assert echo.messages[0]["tool_calls"][0]["function"]["arguments"] == arguments
    stream = DIALECT.stream(CALL, NAMES)
    [_, _, given, *_] = events(stream.piece(broken) + stream.end(answer(broken)))
    assert json.loads(given["delta"]["partial_json"]) == message["content"][0]["input"]


def test_half_a_character_that_a_model_spelled_does_not_break_an_answer() -> None:
    broken = ToolCall(index=0, id="c", name="\ud83dx", arguments='{"a": "\\ud83d"}')
    said, found = body(broken, Text("\ud83d\ude00"))["content"]
    assert (said["text"], found["name"], found["input"]) == ("😀", "\ufffdx", {"a": "\ufffd"})
