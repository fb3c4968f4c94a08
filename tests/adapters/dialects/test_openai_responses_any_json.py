"""What a right request to Responses may hold, how deep a call nests, and half a character."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streams.adapters.dialects.calls import Call, Text
from streams.adapters.dialects.openai_responses import answer_body, error_body, read_call
from tests.adapters.dialects.any_json import ANYTHING, TEXTS, Reader, any_body, object_of
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


def can_be_answered(call: Call) -> None:
    assert json.loads(answer_body(call, answer(Text("a"), LS)))["status"] == "completed"


READER = Reader(
    read_call=read_call,
    error_body=error_body,
    requests=REQUEST,
    whole=request(tools=TOOLS, temperature=0.5),
    check_call=can_be_answered,
)


@any_body
@given(st.integers(0, 120))
def test_a_call_nests_no_deeper_than_a_record(levels: int) -> None:
    nested: Any = {}
    for _ in range(levels):
        nested = {"x": [nested]}
    call = {"type": "function_call", "call_id": "c", "name": "a"}
    for arguments in (nested, json.dumps(nested)):
        READER.check(request(input=[call | {"arguments": arguments}]))
    READER.check(
        request(input=[{"type": "function_call_output", "call_id": "c", "output": nested}])
    )
    READER.check(request(input=[{"type": "shell_call", "call_id": "c", "action": nested}]))
    READER.check(request(tools=[{"type": "function", "name": "a", "parameters": nested}]))
    READER.check(request(metadata=nested))


def test_half_a_character_is_replaced_so_that_a_session_goes_on() -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "cut \ud83d"}
    searched = {"type": "web_search_call", "action": "cut \ud83d"}
    found = read_call(request(input=[output, searched], instructions="cut \ud83d"))
    assert [message["content"] for message in found.messages] == [
        "cut \ufffd",
        "cut \ufffd",
        '[web_search_call {"action":"cut \ufffd"}]',
    ]
