"""What is refused, and that the refusal names the field in plain words."""

import json
from typing import Any

import pytest

from streams.adapters.dialects.anthropic import error_body, read_call
from streams.adapters.dialects.calls import CallRefused
from tests.adapters.dialects.anthropic_requests import (
    BASH,
    SEARCH,
    USER,
    assistant,
    called,
    request,
    result,
    thought,
    user,
)


def said(*blocks: Any) -> bytes:
    return request(messages=[USER, user(*blocks)])


def answered(*blocks: Any) -> bytes:
    return request(messages=[USER, assistant(*blocks)])


def chosen(**choice: Any) -> bytes:
    return request(tools=[BASH], tool_choice=choice)


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"x": value}
    return value


def boxed(levels: int) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": "x"}
    for _ in range(levels):
        block = {"type": "box", "content": [block]}
    return block


BLOCK = "messages[1].content[0]"

REFUSED: dict[str, tuple[bytes, str | None, str]] = {
    # the body
    "no body": (b"", None, "not JSON"),
    "JSON that is cut": (request()[:-1], None, "not JSON"),
    "no UTF-8": (request().replace(b"How", b"\xff"), None, "UTF-8"),
    "a list": (b"[]", None, "expected `object`, got `array`"),
    "brackets without end in a field": (b'{"x":' + b"[" * 100_000, None, "nested too deep"),
    "blocks without end": (
        b'{"model":"m","messages":[{"role":"user","content":['
        + b'{"type":"a","content":[' * 100_000,
        None,
        "nested too deep",
    ),
    # the fields that are needed
    "no model": (json.dumps({"messages": [USER]}).encode(), "model", "is missing"),
    "no messages": (b'{"model": "m"}', "messages", "is missing"),
    "empty messages": (request(messages=[]), "messages", "is empty"),
    "instructions alone": (request(system="Be brief.", messages=[]), "messages", "is empty"),
    "a message of another type": (request(messages=["hi"]), "messages[0]", "expected `object`"),
    # messages
    "no role": (request(messages=[{"content": "x"}]), "messages[0].role", "is missing"),
    "a role of another API": (
        request(messages=[{"role": "tool", "content": "x"}]),
        "messages[0].role",
        "user, assistant or system",
    ),
    "a question without content": (
        request(messages=[{"role": "user"}]),
        "messages[0].content",
        "is missing",
    ),
    "content of another type": (
        request(messages=[{"role": "user", "content": 5}]),
        "messages[0].content",
        "got `int`",
    ),
    "a block without a type": (said({"text": "x"}), f"{BLOCK}.type", "is missing"),
    "a text block without text": (said({"type": "text"}), f"{BLOCK}.text", "is missing"),
    "blocks in blocks": (said(boxed(10)), BLOCK + ".content[0]" * 8 + ".content", "deeper than 8"),
    "a call by the user": (said(called({})), f"{BLOCK}.type", "an assistant's message"),
    "a thought of the user": (said(thought("hm")), f"{BLOCK}.type", "an assistant's message"),
    "a result by the assistant": (answered(result("x")), f"{BLOCK}.type", "a user's message"),
    "a result for no call": (
        said(result("x", tool_use_id=None)),
        f"{BLOCK}.tool_use_id",
        "is missing",
    ),
    "a call without a name": (answered(called({}, name=None)), f"{BLOCK}.name", "is missing"),
    "input that is a list": (answered(called([])), f"{BLOCK}.input", "is no object"),
    "input nested too deep": (answered(called(deep(91))), f"{BLOCK}.input", "deeper than 90"),
    "a reference to no tool": (
        said(result([{"type": "tool_reference"}])),
        f"{BLOCK}.content[0].tool_name",
        "is missing",
    ),
    # tools
    "a tool without a name": (
        request(tools=[{"input_schema": {}}]),
        "tools[0].name",
        "is missing",
    ),
    "a tool with an empty name": (request(tools=[BASH | {"name": ""}]), "tools[0].name", "empty"),
    "a tool that only the vendor's models know": (
        request(tools=[BASH, {"type": "text_editor_20250728", "name": "edit"}]),
        "tools[1].type",
        "`input_schema`",
    ),
    "a schema nested too deep": (
        request(tools=[BASH | {"input_schema": deep(91)}]),
        "tools[0].input_schema",
        "nested deeper than 90",
    ),
    "a choice of nothing": (chosen(type="tool"), "tool_choice.name", "is missing"),
    "a choice among no tools": (
        request(tool_choice={"type": "any"}),
        "tool_choice.type",
        "no `tools`",
    ),
    "a choice of a tool that is not there": (
        chosen(type="tool", name="zsh"),
        "tool_choice.name",
        "'zsh'",
    ),
    "a choice of a tool that cannot be told from a word": (
        request(tools=[BASH | {"name": "none"}], tool_choice={"type": "tool", "name": "none"}),
        "tool_choice.name",
        "another meaning",
    ),
    "a choice of a tool beside a search": (
        request(tools=[SEARCH], tool_choice={"type": "tool", "name": "zsh"}),
        "tool_choice.name",
        "'zsh'",
    ),
    # the rest
    "an unknown format": (
        request(output_config={"format": {"type": "grammar"}}),
        "output_config.format.type",
        "json_schema",
    ),
    "a summary by the server": (request(compaction={"type": "summarize"}), "compaction", "summary"),
    "a thread": (request(thread={"type": "create"}), "thread", "whole conversation"),
    "a negative temperature": (request(temperature=-1), "temperature", ">= 0.0"),
    "a share over 1": (request(top_p=1.5), "top_p", "<= 1.0"),
    "a truth for a number": (request(top_k=True), "top_k", "got `bool`"),
    "fewer tokens than none": (request(max_tokens=-1), "max_tokens", ">= 0"),
    "a limit beyond 64 bits": (request(max_tokens=10**30), "max_tokens", "9223372036854775807"),
    "a stop text that is none": (request(stop_sequences=[1]), "stop_sequences[0]", "`str`"),
    "a stream in words": (request(stream="yes"), "stream", "expected `bool | null`"),
}


@pytest.mark.parametrize(("body", "param", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_carried_is_refused_by_name(
    body: bytes, param: str | None, words: str
) -> None:
    with pytest.raises(CallRefused) as caught:
        read_call(body)
    refusal = caught.value
    assert (refusal.status, refusal.kind, refusal.param) == (400, "invalid_request_error", param)
    assert words in refusal.message
    assert param is None or refusal.message.startswith(f"`{param}` ")
    assert len(refusal.message) < 300
    error = json.loads(error_body(refusal))["error"]
    assert (error["type"], error["message"]) == ("invalid_request_error", refusal.message)


def test_a_refusal_quotes_no_more_than_a_word_of_the_request() -> None:
    with pytest.raises(CallRefused) as caught:
        read_call(request(messages=[{"role": "x" * 10_000, "content": "secret"}]))
    assert len(caught.value.message) < 200
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("thread", [{}, {"type": "continue", "previous_message_id": "msg_1"}])
def test_a_thread_is_refused_whatever_else_is_wrong(thread: dict[str, Any]) -> None:
    """The new messages alone are no conversation; they may be none."""
    with pytest.raises(CallRefused) as caught:
        read_call(request(thread=thread, messages=[]))
    error = json.loads(error_body(caught.value))["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request"}
