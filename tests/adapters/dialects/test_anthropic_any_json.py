"""What a right request to Messages may hold, how deep a call nests, and half a character."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streams.adapters.dialects.anthropic import error_body, read_call
from tests.adapters.dialects.anthropic_requests import BASH, FETCH, called, request
from tests.adapters.dialects.any_json import ANYTHING, TEXTS, Reader, any_body, object_of

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


READER = Reader(
    read_call=read_call,
    error_body=error_body,
    requests=REQUEST,
    whole=request(tools=[BASH, FETCH], stop_sequences=["a"], temperature=0.5),
)


@any_body
@given(st.integers(0, 120))
def test_a_call_nests_no_deeper_than_a_record(levels: int) -> None:
    nested: Any = {}
    block: Any = {"type": "text", "text": "x"}
    for _ in range(levels):
        nested = {"x": [nested]}
        block = {"type": "box", "content": [block]}
    message = {"role": "assistant", "content": [called(nested), called(json.dumps(nested))]}
    READER.check(request(messages=[message]))
    READER.check(request(messages=[{"role": "user", "content": [block]}]))
    READER.check(request(tools=[BASH | {"input_schema": nested}]))


def test_half_a_character_is_replaced_so_that_a_session_goes_on() -> None:
    body = request(messages=[{"role": "user", "content": "cut \ud83d"}])
    assert rb"\ud83d" in body
    assert read_call(body).messages[0]["content"] == "cut \ufffd"
