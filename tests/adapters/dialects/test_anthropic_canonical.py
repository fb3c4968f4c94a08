"""One conversation in two spellings is one conversation."""

from typing import Any

import pytest

from tests.adapters.dialects.anthropic_requests import (
    BASH,
    USER,
    assistant,
    call,
    called,
    messages,
    result,
    text,
    thought,
    user,
)

MARK = {"cache_control": {"type": "ephemeral"}}
NOW = {"role": "system", "content": "Now."}

SPELLINGS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "a string or one text block": ([{"role": "user", "content": "hi"}], [user("hi")]),
    "an answer as a string or one text block": (
        [{"role": "assistant", "content": "hi"}],
        [assistant("hi")],
    ),
    "a system message as a string or one text block": ([NOW], [NOW | {"content": [text("Now.")]}]),
    "a result as a string or one text block": ([user(result("hi"))], [user(result([text("hi")]))]),
    "a cache mark on a block": ([user("hi")], [user(text("hi", **MARK))]),
    "a cache mark on a result and in it": (
        [user(result("hi"))],
        [user(result([text("hi", **MARK)], **MARK))],
    ),
    "a cache mark on a call": ([assistant(called({}))], [assistant(called({}, **MARK))]),
    "citations and null": (
        [assistant("hi")],
        [assistant(text("hi", citations=[{"type": "char_location"}], parsed_output=None))],
    ),
    "messages of the user's, side by side or merged": (
        [{"role": "user", "content": "a"}, user("b", "c")],
        [user("a", "b", "c")],
    ),
    "what the user says after a result, in one message or two": (
        [user(result("x")), user("a")],
        [user(result("x"), "a")],
    ),
    "blank blocks of an answer, kept or dropped": (
        [assistant(thought("hm"), " ", "hi", "\n", called({}))],
        [assistant(thought("hm"), "hi", called({}))],
    ),
    "no result, an empty one, or an empty list": ([user(result())], [user(result(""))]),
    "no result or an empty list": ([user(result())], [user(result([]))]),
    "a tool that did not fail": ([user(result("x"))], [user(result("x", is_error=False))]),
    "who called": ([assistant(called({}))], [assistant(called({}, caller={"type": "direct"}))]),
    "no input or an empty one": ([assistant(called({}))], [assistant(called(None))]),
    "input that was no JSON, wrapped or plain": (
        [assistant(called('{"a'))],
        [assistant(called({"__unparsedToolInput": {"raw": '{"a', "len": 3}}))],
    ),
    "one thought in one block or two": (
        [assistant(thought("hm, so"))],
        [assistant(thought("hm, "), thought("so"))],
    ),
}


@pytest.mark.parametrize(("one", "other"), SPELLINGS.values(), ids=SPELLINGS)
def test_two_spellings_give_the_same_messages(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    assert messages(USER, assistant("ok"), *one) == messages(USER, assistant("ok"), *other)


def test_instructions_are_the_same_as_a_string_or_as_blocks() -> None:
    assert messages(USER, system="Be brief.") == messages(USER, system=[text("Be brief.", **MARK)])


def test_a_tool_is_the_same_in_any_order_of_its_fields_but_its_schema_keeps_its_own() -> None:
    one = call(tools=[BASH])
    other = call(tools=[dict(reversed((BASH | {"type": "custom", "strict": True} | MARK).items()))])
    assert repr(one.tools) == repr(other.tools)


def test_different_conversations_stay_different() -> None:
    texts = ["hi", "hi ", "hi\n", "\nhi", "Hi"]
    assert len({str(messages({"role": "user", "content": said})) for said in texts}) == len(texts)
