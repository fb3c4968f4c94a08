"""Whatever a client sends, it gets a call or a refusal, and a call can be recorded."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from schemas.json_lines import too_deep
from streams.adapters.dialects.anthropic import error_body, read_call
from streams.adapters.dialects.calls import Call, CallRefused
from tests.adapters.dialects.anthropic_requests import BASH, FETCH, called, request
from tests.adapters.dialects.any_json import ANYTHING, TEXTS, any_body, object_of, places

IDS = st.text("ab", min_size=1, max_size=3)
MARK = {"cache_control": ANYTHING}
TEXT = object_of({"type": st.just("text"), "text": TEXTS}, **MARK, citations=ANYTHING)
MEDIA = object_of({"type": st.sampled_from(["image", "container_upload", "hologram"])}, **MARK)
SOURCE = object_of({"type": st.just("text"), "data": TEXTS}, media_type=st.just("text/plain"))
DOCUMENT = object_of({"type": st.just("document"), "source": SOURCE}, title=TEXTS, context=TEXTS)
FOUND = object_of(
    {"type": st.just("search_result"), "source": TEXTS, "title": TEXTS},
    content=st.lists(TEXT, max_size=2),
)
REFERENCE = object_of({"type": st.just("tool_reference"), "tool_name": IDS})
BLOCK = TEXT | MEDIA | DOCUMENT | FOUND
INPUT = st.dictionaries(TEXTS, ANYTHING, max_size=2) | st.fixed_dictionaries(
    {"__unparsedToolInput": st.fixed_dictionaries({"raw": TEXTS, "len": st.integers()})}
)
RESULT = object_of(
    {"type": st.just("tool_result"), "tool_use_id": IDS},
    content=TEXTS | st.lists(BLOCK | REFERENCE, max_size=3),
    is_error=st.booleans(),
    **MARK,
)
SAID = object_of({"type": st.just("tool_use"), "name": IDS}, id=IDS, input=INPUT, caller=ANYTHING)
THOUGHT = object_of({"type": st.just("thinking"), "thinking": TEXTS}, signature=TEXTS)
SEALED = object_of({"type": st.just("redacted_thinking"), "data": TEXTS})
MESSAGE = (
    object_of({"role": st.just("user"), "content": TEXTS | st.lists(BLOCK | RESULT, max_size=3)})
    | object_of(
        {"role": st.just("assistant")},
        content=TEXTS | st.lists(BLOCK | SAID | THOUGHT | SEALED, max_size=4),
    )
    | object_of(
        {"role": st.just("system"), "content": TEXTS | st.lists(TEXT, max_size=2)},
        output_config=ANYTHING,
    )
)
TOOL = object_of(
    {"name": IDS},
    description=TEXTS,
    input_schema=st.dictionaries(TEXTS, ANYTHING, max_size=2),
    defer_loading=st.booleans(),
    type=st.sampled_from(["custom", "web_search_20250305", None]),
    **MARK,
)
USER = st.fixed_dictionaries({"role": st.just("user"), "content": TEXTS})
REQUEST = object_of(
    {
        "model": TEXTS,
        "messages": st.tuples(USER, st.lists(MESSAGE, max_size=4)).map(lambda it: [it[0], *it[1]]),
    },
    max_tokens=st.integers(1, 100),
    system=TEXTS | st.lists(TEXT, max_size=2),
    tools=st.lists(TOOL, max_size=3),
    tool_choice=object_of({"type": st.sampled_from(["auto", "none"])}),
    stop_sequences=st.lists(TEXTS, max_size=3),
    temperature=st.floats(0, 2),
    top_k=st.integers(-1, 100),
    thinking=ANYTHING,
    context_management=ANYTHING,
    metadata=ANYTHING,
    container=ANYTHING,
)


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
    tools = (*found.tools, *found.deferred_tools)
    assert not too_deep(msgspec.json.encode({"prompt_messages": found.messages, "tools": tools}))
    for message in found.messages:
        assert message["role"] in {"system", "user", "assistant", "tool"}
        assert isinstance(message["content"], str)
    for place, carriers in found.carriers.items():
        assert found.messages[place]["role"] == "assistant"
        assert carriers
        assert all(carriers)


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
    body = bytearray(request(tools=[BASH, FETCH], stop_sequences=["a"], temperature=0.5))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(body))


@any_body
@given(st.integers(0, 120))
def test_a_call_nests_no_deeper_than_a_record(levels: int) -> None:
    nested: Any = {}
    block: Any = {"type": "text", "text": "x"}
    for _ in range(levels):
        nested = {"x": [nested]}
        block = {"type": "box", "content": [block]}
    message = {"role": "assistant", "content": [called(nested), called(json.dumps(nested))]}
    check(request(messages=[message]))
    check(request(messages=[{"role": "user", "content": [block]}]))
    check(request(tools=[BASH | {"input_schema": nested}]))


def test_half_a_character_is_replaced_so_that_a_session_goes_on() -> None:
    body = request(messages=[{"role": "user", "content": "cut \ud83d"}])
    assert rb"\ud83d" in body
    assert read_call(body).messages[0]["content"] == "cut \ufffd"
