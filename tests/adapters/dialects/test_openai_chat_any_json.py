"""What a right chat request may hold, how deep a call nests, and half a character."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streams.adapters.dialects.openai_chat import error_body, read_call
from tests.adapters.dialects.any_json import ANYTHING, TEXTS, Reader, any_body, object_of
from tests.adapters.dialects.chat_requests import BASH, request

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


READER = Reader(
    read_call=read_call,
    error_body=error_body,
    requests=REQUEST,
    whole=request(tools=[BASH], stop=["a"], temperature=0.5),
)


@any_body
@given(st.integers(0, 120))
def test_a_call_nests_no_deeper_than_a_record(levels: int) -> None:
    nested: Any = {}
    for _ in range(levels):
        nested = {"x": [nested]}
    function = {"name": "a", "arguments": json.dumps(nested), "parameters": nested}
    message = {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}
    READER.check(request(messages=[message]))
    READER.check(request(tools=[{"function": function}]))


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
