"""Whatever a client sends, it gets a call or a refusal, and a call can be recorded and answered."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from schemas.json_lines import too_deep
from streams.adapters.dialects.calls import Call, CallRefused, Text
from streams.adapters.dialects.openai_responses import answer_body, error_body, read_call
from tests.adapters.dialects.any_json import ANYTHING, TEXTS, any_body, object_of, places
from tests.adapters.dialects.responses_answers import LETTERS, LS, OTHER_LETTERS, answer
from tests.adapters.dialects.responses_requests import TOOLS, request

ARGUMENTS = ANYTHING.map(json.dumps) | st.dictionaries(TEXTS, ANYTHING, max_size=2) | TEXTS
IDS = st.sampled_from([f"fc_{letters}_0" for letters in (LETTERS, OTHER_LETTERS)]) | TEXTS
CALL_ID = st.text("ab", min_size=1, max_size=2)
NAME = st.text("abc", min_size=1, max_size=3)


def typed(kind: str, **needed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return object_of({"type": st.just(kind), **needed}, id=IDS, status=ANYTHING)


PART = (
    typed("input_text", text=st.none() | TEXTS)
    | typed("output_text", text=TEXTS)
    | typed("input_image")
    | typed("brand_new", text=ANYTHING)
)
CONTENT = TEXTS | st.lists(PART, max_size=3)
TOOL = (
    object_of(
        {"type": st.just("function"), "name": NAME},
        description=TEXTS,
        parameters=st.dictionaries(TEXTS, ANYTHING, max_size=2),
    )
    | object_of({"type": st.just("custom"), "name": NAME}, description=TEXTS)
    | object_of({"type": st.sampled_from(["web_search", "mcp"])}, anything=ANYTHING)
)
ITEM = (
    object_of({"role": st.sampled_from(["system", "developer", "user"]), "content": CONTENT})
    | typed("message", role=st.just("assistant"), content=st.none() | CONTENT)
    | typed(
        "reasoning",
        summary=st.lists(typed("summary_text", text=TEXTS), max_size=2),
        content=st.none() | st.lists(typed("reasoning_text", text=TEXTS), max_size=2),
        encrypted_content=st.none() | TEXTS,
    )
    | typed("function_call", name=NAME, call_id=CALL_ID, arguments=ARGUMENTS)
    | typed("custom_tool_call", name=NAME, call_id=CALL_ID, input=TEXTS)
    | typed("function_call_output", call_id=CALL_ID, output=CONTENT | ANYTHING)
    | typed("custom_tool_call_output", call_id=CALL_ID, output=CONTENT)
    | typed("web_search_call", action=ANYTHING)
    | typed("local_shell_call", call_id=CALL_ID, action=ANYTHING)
    | typed("mcp_list_tools", tools=ANYTHING)
    | typed("brand_new", content=ANYTHING, summary=ANYTHING, tools=ANYTHING, name=ANYTHING)
    | typed("tool_search_output", call_id=CALL_ID, tools=st.lists(TOOL, max_size=2))
)
REQUEST = object_of(
    {"model": TEXTS, "input": TEXTS | st.lists(ITEM, min_size=1, max_size=5)},
    instructions=TEXTS,
    tools=st.lists(TOOL, max_size=3),
    tool_choice=st.sampled_from(["auto", "none"]),
    text=object_of({}, format=object_of({"type": st.sampled_from(["text", "json_object"])})),
    temperature=st.floats(0, 2),
    metadata=ANYTHING,
    reasoning=st.none() | object_of({}, effort=TEXTS),
    top_logprobs=ANYTHING,
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
    record = msgspec.json.encode(
        {"prompt_messages": found.messages, "tools": [*found.tools, *found.deferred_tools]}
    )
    assert not too_deep(record)
    for message in found.messages:
        assert message["role"] in {"system", "user", "assistant", "tool"}
        assert isinstance(message["content"], str)
    for at, texts in found.carriers.items():
        assert found.messages[at]["role"] == "assistant"
        assert all(texts)
    assert json.loads(answer_body(found, answer(Text("a"), LS)))["status"] == "completed"


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
@given(st.data())
def test_a_damaged_request_gives_a_call_or_a_refusal(data: st.DataObject) -> None:
    body = bytearray(request(tools=TOOLS, temperature=0.5))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(body))


@any_body
@given(st.integers(0, 120))
def test_a_call_nests_no_deeper_than_a_record(levels: int) -> None:
    nested: Any = {}
    for _ in range(levels):
        nested = {"x": [nested]}
    call = {"type": "function_call", "call_id": "c", "name": "a"}
    for arguments in (nested, json.dumps(nested)):
        check(request(input=[call | {"arguments": arguments}]))
    check(request(input=[{"type": "function_call_output", "call_id": "c", "output": nested}]))
    check(request(input=[{"type": "shell_call", "call_id": "c", "action": nested}]))
    check(request(tools=[{"type": "function", "name": "a", "parameters": nested}]))
    check(request(metadata=nested))


def test_half_a_character_is_replaced_so_that_a_session_goes_on() -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "cut \ud83d"}
    searched = {"type": "web_search_call", "action": "cut \ud83d"}
    found = read_call(request(input=[output, searched], instructions="cut \ud83d"))
    assert [message["content"] for message in found.messages] == [
        "cut \ufffd",
        "cut \ufffd",
        '[web_search_call {"action":"cut \ufffd"}]',
    ]
