"""Whatever a client sends, it gets a call or a refusal, and a call can be recorded."""

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.json_lines import too_deep
from streams.adapters.dialects.calls import Call, CallRefused
from streams.adapters.dialects.openai_chat import error_body, read_call
from tests.adapters.dialects.chat_requests import BASH, request

any_body = settings(max_examples=300, deadline=None, derandomize=True, database=None)

# Texts with lone surrogates and numbers of any size: Python writes both, JSON has only some.
TEXTS = st.text(st.characters(), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def object_of(
    needed: dict[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]
) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(needed, optional=optional)


ARGUMENTS = ANYTHING.map(json.dumps) | st.dictionaries(TEXTS, ANYTHING, max_size=2) | TEXTS
PART = object_of({"type": st.just("text"), "text": TEXTS}) | object_of(
    {"type": st.sampled_from(["image_url", "file", "input_audio"])}, cache_control=ANYTHING
)
CONTENT = TEXTS | st.lists(PART, max_size=3)
FUNCTION_CALL = object_of({"name": TEXTS, "arguments": ARGUMENTS})
TOOL_CALL = object_of({"id": TEXTS, "function": FUNCTION_CALL}, type=st.just("function"))
MESSAGE = (
    object_of({"role": st.sampled_from(["system", "developer", "user"]), "content": CONTENT})
    | object_of(
        {"role": st.just("assistant")},
        content=st.none() | CONTENT,
        tool_calls=st.lists(TOOL_CALL, max_size=2),
        reasoning_content=TEXTS,
        reasoning=ANYTHING,
        refusal=TEXTS,
    )
    | object_of(
        {"role": st.just("tool"), "tool_call_id": st.text("ab", min_size=1), "content": CONTENT}
    )
)
TOOL_FUNCTION = object_of(
    {"name": st.text("abc", min_size=1)},
    description=TEXTS,
    parameters=st.dictionaries(TEXTS, ANYTHING, max_size=2),
)
REQUEST = object_of(
    {"model": TEXTS, "messages": st.lists(MESSAGE, min_size=1, max_size=4)},
    tools=st.lists(object_of({"type": st.just("function"), "function": TOOL_FUNCTION}), max_size=2),
    tool_choice=st.sampled_from(["auto", "none"]),
    response_format=object_of({"type": st.sampled_from(["text", "json_object"])}),
    stop=TEXTS | st.lists(TEXTS, max_size=3),
    temperature=st.floats(0, 2),
    seed=st.integers(0, 100),
    logprobs=ANYTHING,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a request: what holds it, and the key or index there."""
    found: list[tuple[Any, Any]] = []
    unread = [value]
    while unread:
        holder = unread.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, inner in items:
            found.append((holder, key))
            if isinstance(inner, dict | list):
                unread.append(inner)
    return found


def outcome(body: bytes) -> Call | CallRefused:
    try:
        return read_call(body)
    except CallRefused as refusal:
        return refusal


def check(body: bytes) -> None:
    found = outcome(body)
    if isinstance(found, CallRefused):
        assert found.status == 400
        assert json.loads(error_body(found))["error"]["message"] == found.message
        return
    record = msgspec.json.encode({"prompt_messages": found.messages, "tools": found.tools})
    assert not too_deep(record)
    for message in found.messages:
        assert message["role"] in {"system", "user", "assistant", "tool"}
        assert isinstance(message["content"], str)


@any_body
@given(ANYTHING)
def test_any_json_gives_a_call_or_a_refusal(value: Any) -> None:
    check(json.dumps(value).encode())


@any_body
@given(REQUEST)
def test_a_request_that_is_right_is_a_call_unless_a_number_has_no_value(value: Any) -> None:
    body = json.dumps(value).encode()
    check(body)
    if b"NaN" not in body and b"Infinity" not in body:
        assert isinstance(outcome(body), Call)


@any_body
@given(st.data())
def test_anything_in_any_place_gives_a_call_or_a_refusal(data: st.DataObject) -> None:
    value = data.draw(REQUEST)
    holder, key = data.draw(st.sampled_from(places(value)))
    holder[key] = data.draw(ANYTHING)
    check(json.dumps(value).encode())


@any_body
@given(st.binary(max_size=200))
def test_any_bytes_give_a_call_or_a_refusal(body: bytes) -> None:
    check(body)


@any_body
@given(st.data())
def test_a_damaged_request_gives_a_call_or_a_refusal(data: st.DataObject) -> None:
    body = bytearray(request(tools=[BASH], stop=["a"], temperature=0.5))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(body))


@any_body
@given(st.integers(0, 120))
def test_a_call_nests_no_deeper_than_a_record(levels: int) -> None:
    nested: Any = {}
    for _ in range(levels):
        nested = {"x": [nested]}
    function = {"name": "a", "arguments": json.dumps(nested), "parameters": nested}
    message = {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}
    check(request(messages=[message]))
    check(request(tools=[{"function": function}]))


def test_half_a_character_is_replaced_so_that_a_session_goes_on() -> None:
    body = request(messages=[{"role": "tool", "tool_call_id": "c", "content": "cut \ud83d"}])
    assert rb"\ud83d" in body
    assert read_call(body).messages[0]["content"] == "cut \ufffd"


def test_an_escaped_backslash_before_a_surrogate_s_digits_is_text() -> None:
    text = r"\ud83d and \\ud83d" + "\ud83d" + "😀"
    [message] = read_call(request(messages=[{"role": "user", "content": text}])).messages
    assert message["content"] == r"\ud83d and \\ud83d" + "\ufffd" + "😀"


def test_of_a_key_given_twice_the_last_counts() -> None:
    assert read_call(request().replace(b'{"model"', b'{"model": "first", "model"')).model == "qwen"
