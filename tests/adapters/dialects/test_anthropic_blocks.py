"""Blocks that are no text: what a model gets to read of them."""

import json
from typing import Any

import pytest

from tests.adapters.dialects.anthropic_requests import (
    BASH,
    FETCH,
    USER,
    assistant,
    call,
    called,
    function,
    result,
    text,
    user,
)

PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aQ=="}}

PLACEHOLDERS: dict[str, tuple[Any, str, int]] = {
    "an image": (IMAGE, "[image omitted]", 1),
    "a document that is no text": (
        {"type": "document", "title": "D", "source": PDF},
        "D\n[file omitted]",
        1,
    ),
    "a file in a container": (
        {"type": "container_upload", "file_id": "f"},
        "[container_upload omitted]",
        1,
    ),
    "a block of tomorrow": ({"type": "hologram", "data": "x"}, "[hologram omitted]", 1),
    "a block of tomorrow with a dash": ({"type": "x-ray", "data": "x"}, "[x-ray omitted]", 1),
    "a block whose type is no name": ({"type": "a\nb"}, "[block omitted]", 1),
    "a block whose type has no end": ({"type": "x" * 10_000}, "[block omitted]", 1),
    "a block of tomorrow with a text": ({"type": "hologram", "text": "x"}, "x", 0),
    "a block of tomorrow with blocks": (
        {"type": "hologram", "content": [text("x"), IMAGE]},
        "x\n[image omitted]",
        1,
    ),
    "what the vendor found": (
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": [{"type": "web_search_result", "title": "T", "url": "u"}],
        },
        "[web_search_result omitted]",
        1,
    ),
    "what the vendor did not find": (
        {
            "type": "web_search_tool_result",
            "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"},
        },
        "[web_search_tool_result omitted]",
        1,
    ),
}


@pytest.mark.parametrize(("block", "shown", "count"), PLACEHOLDERS.values(), ids=PLACEHOLDERS)
@pytest.mark.parametrize("where", ["a question", "a result", "an answer"])
def test_what_is_no_text_leaves_its_mark(where: str, block: Any, shown: str, count: int) -> None:
    given = {
        "a question": user(block),
        "a result": user(result([block])),
        "an answer": assistant(block),
    }[where]
    read = call(messages=[given])
    assert (read.messages[0]["content"], read.placeholders) == (shown, count)


def test_a_tool_that_is_found_is_printed_where_it_was_found() -> None:
    reference = {"type": "tool_reference", "tool_name": "fetch"}
    found = user(result([reference, reference | {"tool_name": "gone"}]))
    read = call(messages=[assistant(called({})), found], tools=[BASH, FETCH])
    first, second = read.messages[1]["content"].split("\n")
    assert json.loads(first) == function(FETCH)
    assert json.loads(second) == {"type": "function", "function": {"name": "gone"}}
    assert read.tools == (function(BASH),)
    # the same text when the list has changed around the tool
    later = call(messages=[assistant(called({})), found], tools=[FETCH | {"cache_control": {}}])
    assert later.messages == read.messages


def test_a_tool_that_joins_is_printed_and_may_be_called() -> None:
    joins = {"role": "system", "content": [{"type": "tool_addition", "tool": {"definition": BASH}}]}
    again = {"role": "system", "content": [{"type": "tool_addition", "tool": {"name": "bash"}}]}
    read = call(messages=[USER, joins, USER, again])
    assert [json.loads(read.messages[place]["content"]) for place in (1, 3)] == [function(BASH)] * 2
    assert (read.tools, read.deferred_tools) == ((), (function(BASH),))
