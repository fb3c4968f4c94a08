"""What is refused, and that the refusal names the field in plain words."""

import json
from typing import Any

import pytest

from streams.adapters.dialects.calls import CallRefused
from streams.adapters.dialects.openai_chat import read_call
from tests.adapters.dialects.chat_requests import BASH, USER, called, request


def with_message(**fields: Any) -> bytes:
    return request(messages=[USER, fields])


def with_call(**fields: Any) -> bytes:
    return request(messages=[USER, called("{}", **fields)])


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"x": value}
    return value


def tool(**fields: Any) -> bytes:
    return request(tools=[BASH, fields])


REFUSED: dict[str, tuple[bytes, str | None, str]] = {
    # the body
    "no body": (b"", None, "not JSON"),
    "no JSON": (b"{model: 1}", None, "not JSON"),
    "JSON that is cut": (request()[:-1], None, "not JSON"),
    "two values": (request() + b"{}", None, "not JSON"),
    "no UTF-8": (request().replace(b"How", b"\xff"), None, "UTF-8"),
    "NaN": (request(temperature=float("nan")), None, "not JSON"),
    "a list": (b"[]", None, "expected `object`, got `array`"),
    "a number": (b"1", None, "expected `object`, got `int`"),
    "brackets without end": (b"[" * 100_000, None, "expected `object`"),
    "brackets without end in a field": (b'{"x":' + b"[" * 100_000, None, "nested too deep"),
    # the fields that are needed
    "no model": (json.dumps({"messages": [USER]}).encode(), "model", "is missing"),
    "no messages": (b'{"model": "m"}', "messages", "is missing"),
    "empty messages": (request(messages=[]), "messages", "is empty"),
    "a model of another type": (request(model=1), "model", "expected `str`, got `int`"),
    "messages of another type": (request(messages={}), "messages", "expected `array`"),
    "a message of another type": (request(messages=["hi"]), "messages[0]", "expected `object`"),
    # messages
    "no role": (with_message(content="x"), "messages[1].role", "is missing"),
    "an unknown role": (with_message(role="robot", content="x"), "messages[1].role", "'robot'"),
    "the old role": (with_message(role="function", content="x"), "messages[1].role", "'tool'"),
    "a question without content": (with_message(role="user"), "messages[1].content", "is missing"),
    "content of another type": (
        with_message(role="user", content=5),
        "messages[1].content",
        "expected `str | array | null`, got `int`",
    ),
    "a part of another type": (
        with_message(role="user", content=[None]),
        "messages[1].content[0]",
        "expected `str | object`",
    ),
    "an unknown part": (
        with_message(role="user", content=[{"type": "hologram"}]),
        "messages[1].content[0].type",
        "'hologram'",
    ),
    "a text part without text": (
        with_message(role="user", content=["a", {"type": "text"}]),
        "messages[1].content[1].text",
        "is missing",
    ),
    "a result for no call": (
        with_message(role="tool", content="x"),
        "messages[1].tool_call_id",
        "is missing",
    ),
    "the old form of a call": (
        with_message(role="assistant", function_call={"name": "a", "arguments": "{}"}),
        "messages[1].function_call",
        "`tool_calls`",
    ),
    "a call of no function": (
        with_call(function=None),
        "messages[1].tool_calls[0].function",
        "is missing",
    ),
    "a call without a name": (
        with_call(function={"arguments": "{}"}),
        "messages[1].tool_calls[0].function.name",
        "is missing",
    ),
    "a custom call": (
        with_call(type="custom", custom={"name": "a", "input": "b"}),
        "messages[1].tool_calls[0].type",
        "'custom'",
    ),
    "arguments that are a list": (
        with_call(function={"name": "a", "arguments": []}),
        "messages[1].tool_calls[0].function.arguments",
        "got `array`",
    ),
    "arguments nested too deep": (
        with_call(function={"name": "a", "arguments": deep(91)}),
        "messages[1].tool_calls[0].function.arguments",
        "nested deeper than 90",
    ),
    # tools
    "a custom tool": (tool(type="custom", custom={"name": "a"}), "tools[1].type", "'custom'"),
    "a tool in the flat form": (
        tool(type="function", name="a", parameters={}),
        "tools[1].function",
        "is missing",
    ),
    "a tool without a name": (tool(function={"name": ""}), "tools[1].function.name", "is empty"),
    "a schema nested too deep": (
        tool(function={"name": "a", "parameters": deep(91)}),
        "tools[1].function.parameters",
        "nested deeper than 90",
    ),
    "an unknown tool choice": (request(tool_choice="any"), "tool_choice", "auto, none, required"),
    "a choice among no tools": (request(tool_choice="required"), "tool_choice", "no `tools`"),
    "a choice of a tool that is not there": (
        request(tools=[BASH], tool_choice={"type": "function", "function": {"name": "zsh"}}),
        "tool_choice.function.name",
        "'zsh'",
    ),
    "a choice of a tool that cannot be told from a word": (
        request(
            tools=[{"function": {"name": "none"}}],
            tool_choice={"type": "function", "function": {"name": "none"}},
        ),
        "tool_choice.function.name",
        "another meaning",
    ),
    "a choice of some tools": (
        request(
            tools=[BASH],
            tool_choice={
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [BASH]},
            },
        ),
        "tool_choice.type",
        "'allowed_tools'",
    ),
    "the old form of tools": (request(functions=[BASH["function"]]), "functions", "`tools`"),
    "the old form of a choice": (
        request(function_call={"name": "a"}),
        "function_call",
        "`tool_choice`",
    ),
    # the rest
    "an unknown format": (
        request(response_format={"type": "grammar"}),
        "response_format.type",
        "json_schema",
    ),
    "a schema that is not given": (
        request(response_format={"type": "json_schema"}),
        "response_format.json_schema",
        "is missing",
    ),
    "two answers": (request(n=2), "n", "is not 1"),
    "no answer": (request(n=0), "n", "is not 1"),
    "bent probabilities": (request(logit_bias={"50256": -100}), "logit_bias", "are sampled"),
    "a grammar": (request(guided_regex="a+"), "guided_regex", "are sampled"),
    "a negative temperature": (request(temperature=-1), "temperature", ">= 0.0"),
    "a temperature in words": (request(temperature="hot"), "temperature", "got `str`"),
    "a truth for a number": (request(top_k=True), "top_k", "got `bool`"),
    "a share over 1": (request(top_p=1.5), "top_p", "<= 1.0"),
    "no token at all": (request(max_tokens=0), "max_tokens", ">= 1"),
    "a limit beyond 64 bits": (request(max_tokens=10**30), "max_tokens", "9223372036854775807"),
    "a seed beyond 64 bits": (request(seed=-(2**64)), "seed", "-9223372036854775808"),
    "a number without a value": (
        request(temperature=0).replace(b": 0}", b": 1e999}"),
        "temperature",
        "out of range",
    ),
    "a stop text that is none": (request(stop=[1]), "stop[0]", "expected `str`"),
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


def test_a_refusal_quotes_no_more_than_a_word_of_the_request() -> None:
    with pytest.raises(CallRefused) as caught:
        read_call(request(messages=[{"role": "x" * 10_000, "content": "secret"}]))
    assert len(caught.value.message) < 200
    assert "secret" not in caught.value.message
