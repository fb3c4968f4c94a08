"""One conversation in two spellings is one conversation."""

from typing import Any

import pytest

from tests.adapters.dialects.chat_requests import BASH, USER, call, called, messages

TEXT = {"type": "text", "text": "hi"}
ANSWER = {"role": "assistant", "content": "ok"}

SPELLINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a string or one text part": (
        {"role": "user", "content": "hi"},
        {"role": "user", "content": [TEXT]},
    ),
    "a cache mark on a part": (
        {"role": "user", "content": [TEXT]},
        {"role": "user", "content": [TEXT | {"cache_control": {"type": "ephemeral"}}]},
    ),
    "a cache mark on a message": (
        {"role": "system", "content": "hi"},
        {"role": "system", "content": "hi", "cache_control": {"type": "ephemeral"}},
    ),
    "a breakpoint, an id and annotations on a part": (
        {"role": "user", "content": [TEXT]},
        {
            "role": "user",
            "content": [TEXT | {"id": "p", "annotations": [], "prompt_cache_breakpoint": {}}],
        },
    ),
    "developer or system": (
        {"role": "developer", "content": "hi"},
        {"role": "system", "content": "hi"},
    ),
    "null or not given": (
        ANSWER,
        ANSWER
        | dict.fromkeys(
            ("refusal", "audio", "function_call", "tool_calls", "reasoning", "reasoning_content")
        )
        | {"annotations": []},
    ),
    "no calls or an empty list of them": (ANSWER, ANSWER | {"tool_calls": []}),
    "no reasoning or an empty one": (ANSWER, ANSWER | {"reasoning_content": ""}),
    "null, empty or missing content beside calls": (
        called("{}"),
        called("{}") | {"content": ""},
    ),
    "content not given beside calls": (
        called("{}"),
        {name: value for name, value in called("{}").items() if name != "content"},
    ),
    "arguments with other blanks and escapes": (
        called('{"command":"caf\\u00e9","n":[1,2]}'),
        called('{ "command" : "café",\n "n": [1, 2] }'),
    ),
    "what providers and streams add to a call": (
        called("{}"),
        called("{}", index=0, provider_specific_fields={"a": 1}, type=None),
    ),
    "what providers add to a message": (ANSWER, ANSWER | {"provider_specific_fields": {"a": 1}}),
    "an assistant's name": (ANSWER, ANSWER | {"name": "agent"}),
}


@pytest.mark.parametrize(("one", "other"), SPELLINGS.values(), ids=SPELLINGS)
def test_two_spellings_give_the_same_messages(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert messages(USER, one) == messages(USER, other)


def test_a_result_is_the_same_with_and_without_its_function_named() -> None:
    result = {"role": "tool", "tool_call_id": "call_1", "content": "4 MB"}
    assert messages(called("{}"), result) == messages(called("{}"), result | {"name": "bash"})


def test_a_tool_is_the_same_in_any_order_of_its_fields_but_its_schema_keeps_its_own() -> None:
    function: dict[str, Any] = dict(reversed(BASH["function"].items()))
    one, other = call(tools=[BASH]), call(tools=[{"function": function, "type": "function"}])
    assert repr(one.tools) == repr(other.tools)


def test_different_conversations_stay_different() -> None:
    texts = ["hi", "hi ", "hi\n", "\nhi", "Hi"]
    assert len({str(messages({"role": "user", "content": text})) for text in texts}) == len(texts)
