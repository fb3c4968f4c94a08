"""What is refused, and that the refusal names the field in plain words."""

import json
from typing import Any

import pytest

from streams.adapters.dialects.calls import CallRefused
from streams.adapters.dialects.openai_responses import read_call
from tests.adapters.dialects.responses_requests import (
    BASH,
    USER,
    called,
    request,
    result,
)


def item(**fields: Any) -> bytes:
    return request(input=[USER, fields])


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"x": value}
    return value


def tool(**fields: Any) -> bytes:
    return request(tools=[BASH, fields])


def choice(**fields: Any) -> bytes:
    return request(tools=[BASH], tool_choice=fields)


REFUSED: dict[str, tuple[bytes, str | None, str]] = {
    # the body
    "no body": (b"", None, "not JSON"),
    "JSON that is cut": (request()[:-1], None, "not JSON"),
    "a list": (b"[]", None, "expected `object`, got `array`"),
    "brackets without end in a field": (b'{"x":' + b"[" * 100_000, None, "nested too deep"),
    # what is needed
    "no input": (b'{"model": "m"}', "input", "is empty"),
    "empty input": (request(input=[]), "input", "is empty"),
    "instructions alone": (request(input=[], instructions="x"), "input", "is empty"),
    "input of another type": (request(input=5), "input", "expected `str | array | null`"),
    "a model of another type": (request(model=1), "model", "expected `str`, got `int`"),
    # what is kept or run elsewhere
    "a run in the background": (request(background=True), "background", "not supported"),
    "a conversation": (request(conversation={"id": "c"}), "conversation", "not kept here"),
    "a stored prompt": (request(prompt={"id": "p"}), "prompt", "not kept here"),
    # items
    "an item of another type": (request(input=["hi"]), "input[0]", "expected `object`"),
    "an item without type and role": (item(content="x"), "input[1].type", "is missing"),
    "a reference": (item(type="item_reference", id="msg_1"), "input[1].id", "names no item"),
    "a reference that does not say so": (item(id="msg_1"), "input[1].id", "names no item"),
    "an unknown role": (item(role="robot", content="x"), "input[1].role", "'robot'"),
    "a message without a role": (item(type="message", content="x"), "input[1].role", "None"),
    "a question without content": (item(role="user"), "input[1].content", "is missing"),
    "a known item with a field of another type beside an unknown one": (
        request(input=[{"type": "teleport", "summary": 1}, called() | {"name": 5}]),
        "input[1].name",
        "expected `str | null`, got `int`",
    ),
    "a call without a name": (item(**called() | {"name": None}), "input[1].name", "is missing"),
    "arguments of another type": (item(**called(5)), "input[1].arguments", "neither"),
    "arguments nested too deep": (item(**called(deep(100))), "input[1].arguments", "nested"),
    "an output of no call": (item(**result() | {"call_id": None}), "input[1].call_id", "missing"),
    "an output nested too deep": (item(**result(deep(100))), "input[1].output", "nested"),
    "an item nested too deep": (
        item(type="web_search_call", action=deep(100)),
        "input[1]",
        "nested",
    ),
    # tools
    "a tool without a type": (tool(name="x"), "tools[1].type", "is missing"),
    "a function without a name": (tool(type="function"), "tools[1].name", "is missing"),
    "a custom tool with an empty name": (tool(type="custom", name=""), "tools[1].name", "missing"),
    "a namespace without a name": (tool(type="namespace"), "tools[1].name", "is missing"),
    "a function without a name in a namespace": (
        tool(type="namespace", name="n", tools=[{"type": "function"}]),
        "tools[1].tools[0].name",
        "is missing",
    ),
    "parameters nested too deep": (
        tool(type="function", name="x", parameters=deep(100)),
        "tools[1].parameters",
        "nested",
    ),
    # the choice of a tool
    "an unknown word": (request(tools=[BASH], tool_choice="any"), "tool_choice", "has to be"),
    "required, without tools": (request(tool_choice="required"), "tool_choice", "no `tools`"),
    "no name": (choice(type="function"), "tool_choice.name", "is missing"),
    "an unknown tool": (choice(type="function", name="x"), "tool_choice.name", "not in `tools`"),
    "an unknown mode": (choice(type="allowed_tools", mode="x"), "tool_choice.mode", "has to be"),
    "a tool that is called as a choice is": (
        request(
            tools=[{"type": "function", "name": "none"}],
            tool_choice={"type": "function", "name": "none"},
        ),
        "tool_choice.name",
        "another meaning",
    ),
    # the rest
    "an unknown format": (request(text={"format": {"type": "x"}}), "text.format.type", "has to"),
    "a schema nested too deep": (
        request(text={"format": {"type": "json_schema", "schema": deep(100)}}),
        "text.format.schema",
        "nested",
    ),
    "no tokens": (request(max_output_tokens=0), "max_output_tokens", ">= 1"),
    "a temperature below zero": (request(temperature=-1), "temperature", ">= 0"),
    "what bends the sampling": (request(logit_bias={"1": 2}), "logit_bias", "not supported"),
    "metadata nested too deep": (request(metadata=deep(100)), "metadata", "nested"),
}


@pytest.mark.parametrize(("body", "param", "words"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_names_its_field(body: bytes, param: str | None, words: str) -> None:
    with pytest.raises(CallRefused) as caught:
        read_call(body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert words in caught.value.message


def test_a_refusal_repeats_no_more_than_a_little_of_what_was_sent() -> None:
    with pytest.raises(CallRefused) as caught:
        read_call(item(role="x" * 10_000))
    assert len(caught.value.message) < 250


def test_unknown_fields_are_not_looked_at() -> None:
    assert read_call(request(brand_new=json.loads("[" * 50 + "]" * 50))).messages
