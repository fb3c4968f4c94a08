"""What a client gets: the bodies, and the events of a stream."""

import json
from typing import Any

import pytest

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
from streams.adapters.dialects.dialect import AnswerStream, CountingDialect
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
from tests.adapters.dialects.responses_requests import BASH, TOOLS, USER, call, messages

DIALECT: CountingDialect = openai_responses

ASKED = call(tools=TOOLS, instructions="Be brief.", store=False, metadata={"a": "b"})


def body(*pieces: Piece, finish: FinishReason = "stop", asked: Call = ASKED) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(DIALECT.answer_body(asked, answer(*pieces, finish=finish)))
    return read


def events(data: bytes) -> list[dict[str, Any]]:
    """The data of each event, which says what the event's name says."""
    texts = data.decode().split("\n\n")
    assert texts.pop() == "", "the last event is not ended"
    found = []
    for text in texts:
        name, _, rest = text.partition("\n")
        assert rest.startswith("data: ")
        assert "\n" not in rest
        found.append(json.loads(rest.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def begun(*pieces: Piece) -> tuple[AnswerStream, bytes]:
    """A stream, and what it has sent."""
    stream = DIALECT.stream(ASKED, NAMES)
    return stream, stream.start() + b"".join(stream.piece(piece) for piece in pieces)


def streamed(*pieces: Piece, finish: FinishReason = "stop") -> list[dict[str, Any]]:
    stream, sent = begun(*pieces)
    return events(sent + stream.end(answer(*pieces, finish=finish)))


def test_an_answer_is_a_response() -> None:
    found = body(Reasoning("Look first."), Text("Wait."), LS)
    assert found.pop("usage") == {
        "input_tokens": 165,
        "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 0},
        "output_tokens": 31,
        "output_tokens_details": {"reasoning_tokens": 12},
        "total_tokens": 196,
    }
    assert found.pop("output") == [
        {
            "type": "reasoning",
            "id": f"rs_{LETTERS}_0",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Look first."}],
            "encrypted_content": CARRIER,
            "status": "completed",
        },
        {
            "type": "message",
            "id": f"msg_{LETTERS}_1",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "Wait.", "annotations": [], "logprobs": []}
            ],
            "status": "completed",
        },
        {
            "type": "function_call",
            "id": f"fc_{LETTERS}_2",
            "call_id": LS.id,
            "name": "bash",
            "arguments": LS.arguments,
            "status": "completed",
        },
    ]
    assert found == {
        "id": ANSWER_ID,
        "object": "response",
        "created_at": 1_700_000_000,
        "model": "qwen",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "background": False,
        "instructions": "Be brief.",
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": None,
        "safety_identifier": None,
        "service_tier": None,
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": TOOLS,
        "top_logprobs": None,
        "top_p": None,
        "truncation": "disabled",
        "user": None,
    }


def test_a_call_is_told_as_the_client_spells_the_tool() -> None:
    patched, spawned, searched = body(PATCH, SPAWN, SEARCH)["output"]
    assert patched == {
        "type": "custom_tool_call",
        "id": f"ctc_{LETTERS}_0",
        "call_id": PATCH.id,
        "name": "apply_patch",
        "input": "*** Begin\n",
        "status": "completed",
    }
    assert (spawned["name"], spawned["namespace"]) == ("spawn", "agents")
    assert spawned["arguments"] == SPAWN.arguments
    assert searched == {
        "type": "tool_search_call",
        "id": f"tsc_{LETTERS}_2",
        "call_id": SEARCH.id,
        "execution": "client",
        "arguments": {"query": "mail"},
        "status": "completed",
    }


@pytest.mark.parametrize(
    "arguments", ['{"patch": "x"}', '{"input": 5}', '{"input": "x", "y": 1}', '{"in', "[]", ""]
)
def test_a_custom_tool_that_is_called_in_another_way_gets_what_was_sampled(arguments: str) -> None:
    [item] = body(ToolCall(index=0, id="c", name="apply_patch", arguments=arguments))["output"]
    assert item["input"] == arguments


def test_a_name_that_the_client_never_gave_stays_as_it_is() -> None:
    [item] = body(ToolCall(index=0, id="c", name="nobody__knows", arguments="{}"))["output"]
    assert (item["type"], item["name"], "namespace" in item) == (
        "function_call",
        "nobody__knows",
        False,
    )


@pytest.mark.parametrize(
    ("pieces", "types"),
    [
        ((Text("hi"),), ["message"]),
        ((), ["message"]),
        ((Reasoning("hm"),), ["reasoning", "message"]),
        ((LS, PWD), ["function_call", "function_call"]),
        ((Text("\n\n"), LS), ["message", "function_call"]),
    ],
)
def test_there_is_a_message_unless_there_are_calls(
    pieces: tuple[Piece, ...], types: list[str]
) -> None:
    assert [item["type"] for item in body(*pieces)["output"]] == types
    assert [item["type"] for item in streamed(*pieces)[-1]["response"]["output"]] == types


@pytest.mark.parametrize(
    ("finish", "status"),
    [
        ("stop", "completed"),
        ("tool_calls", "completed"),
        ("length", "incomplete"),
        ("abort", "incomplete"),
        ("error", "incomplete"),
    ],
)
def test_an_answer_that_is_not_whole_is_incomplete(finish: FinishReason, status: str) -> None:
    last = streamed(Text("a"), finish=finish)[-1]
    assert last["type"] == f"response.{status}"
    for response in (last["response"], body(Text("a"), finish=finish)):
        assert response["status"] == response["output"][-1]["status"] == status
        assert (response["incomplete_details"] is None) == (status == "completed")


def test_a_stream_tells_each_item_and_what_is_in_it() -> None:
    found = streamed(Reasoning("h"), Reasoning("m"), Text("a"), LS, PATCH)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"].removeprefix("response.") for event in found] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert found[-1]["response"] == body(Reasoning("hm"), Text("a"), LS, PATCH)
    assert done == found[-1]["response"]["output"]


def test_an_item_is_done_as_soon_as_anything_follows_it() -> None:
    _, sent = begun(Reasoning("hm"), Text("a"), LS)
    done = [event["item"] for event in events(sent) if event["type"].endswith("item.done")]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]


def test_text_behind_a_call_is_a_message_of_its_own_and_comes_back_as_one_answer() -> None:
    found = streamed(Text("a"), LS, Text("b"))[-1]["response"]["output"]
    assert [item["type"] for item in found] == ["message", "function_call", "message"]
    assert len({item["id"] for item in found}) == len(found)
    [_, message] = messages(USER, *found)
    assert (message["content"], len(message["tool_calls"])) == ("ab", 1)


def test_what_keeps_a_stream_alive_is_an_event_without_news() -> None:
    stream, sent = begun(Text("a"))
    before = len(events(sent))
    [event] = events(stream.keep_alive())
    assert (event["type"], event["sequence_number"]) == ("response.in_progress", before)
    assert (event["response"]["id"], event["response"]["output"]) == (ANSWER_ID, [])


CODES: list[tuple[CallRefused, str, str]] = [
    (CallRefused(503, "The engine is gone."), "server_error", "The engine is gone."),
    (CallRefused(500, "It failed.", code="odd"), "server_error", "It failed."),
    (CallRefused(410, "It ended.", code="session_ended"), "invalid_prompt", "It ended."),
    (CallRefused(413, "Too large."), "invalid_prompt", "Too large."),
    (CallRefused(429, "Slow."), "rate_limit_exceeded", "Slow. Please try again in 1s."),
    (CallRefused(429, "Try again in 7s."), "rate_limit_exceeded", "Try again in 7s."),
]


@pytest.mark.parametrize(("refusal", "code", "message"), CODES)
def test_an_error_fails_the_response_with_a_code_that_clients_act_on(
    refusal: CallRefused, code: str, message: str
) -> None:
    stream, sent = begun(Text("a"), LS, Text("b"))
    raised, failed = events(stream.error(refusal))
    response = failed["response"]
    assert (raised["type"], failed["type"]) == ("error", "response.failed")
    assert (response["status"], response["id"]) == ("failed", ANSWER_ID)
    for error in (raised, raised["error"], response["error"]):
        assert (error["code"], error["message"]) == (code, message)
    done = [event["item"] for event in events(sent) if event["type"].endswith("item.done")]
    assert response["output"] == done
    assert [raised["sequence_number"], failed["sequence_number"]] == [
        len(events(sent)),
        len(events(sent)) + 1,
    ]


def test_an_overflow_is_told_in_a_stream_and_nothing_else_is() -> None:
    overflow = ContextOverflow(40_000, 32_768)
    assert DIALECT.refuses_in_stream(overflow)
    assert not DIALECT.refuses_in_stream(CallRefused(400, "No."))
    stream = DIALECT.stream(ASKED, NAMES)
    found = events(stream.start() + stream.error(overflow))
    assert [event["type"] for event in found] == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]
    error = found[-1]["response"]["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 32768 tokens" in error["message"]


def test_an_error_without_a_stream_is_that_of_the_other_api() -> None:
    error = json.loads(DIALECT.error_body(CallRefused(400, "No.", param="input")))["error"]
    assert error == {
        "message": "No.",
        "type": "invalid_request_error",
        "param": "input",
        "code": None,
    }


def test_a_count() -> None:
    assert json.loads(DIALECT.count_body(165)) == {
        "object": "response.input_tokens",
        "input_tokens": 165,
    }


def test_a_call_that_was_not_read_here_can_be_answered() -> None:
    plain = Call(model="qwen", messages=ASKED.messages)
    found = body(Text("a"), SPAWN, asked=plain)
    assert (found["tools"], found["tool_choice"]) == ([], "auto")
    assert found["output"][1]["name"] == "agents__spawn"


def test_half_a_character_that_a_model_spelled_does_not_break_an_answer() -> None:
    broken = ToolCall(index=0, id="c", name="\ud83dx", arguments="{}")
    found = body(Text("\ud83d\ude00"), broken, asked=call(tools=[BASH]))["output"]
    assert (found[0]["content"][0]["text"], found[1]["name"]) == ("😀", "\ufffdx")
    assert streamed(Text("\ud83d"), broken)[-1]["response"]["output"][1]["name"] == "\ufffdx"
