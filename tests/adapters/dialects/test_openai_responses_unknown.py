"""What is not known or stands twice: a session goes on, and what is left out leaves its mark."""

from typing import Any

import pytest

from tests.adapters.dialects.responses_answers import LETTERS
from tests.adapters.dialects.responses_requests import (
    AGENTS,
    BASH,
    SCHEMA,
    TOOL_SEARCH,
    USER,
    call,
    called,
    messages,
    own,
    result,
    said,
    thought,
)

DUPLICATE = ("tools.duplicate",)
SPAWN: dict[str, Any] = {"type": "function", "name": "agents__spawn", "parameters": SCHEMA}
FOUND = {"type": "function", "name": "tool_search"}


def names(tools: tuple[dict[str, Any], ...]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def line(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# ---------------------------------------------------------------------------- tools


@pytest.mark.parametrize("tool", [BASH, AGENTS, TOOL_SEARCH])
def test_the_same_tool_twice_is_one(tool: dict[str, Any]) -> None:
    once, twice = call(tools=[tool]), call(tools=[tool, dict(tool)])
    assert (twice.tools, twice.spellings, twice.ignored) == (once.tools, once.spellings, ())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (BASH, BASH | {"description": "Runs it again."}),
        (BASH, {"type": "custom", "name": "bash"}),
        ({"type": "custom", "name": "bash"}, BASH),
        (FOUND, TOOL_SEARCH),
        (TOOL_SEARCH, FOUND),
        (
            AGENTS | {"tools": AGENTS["tools"][:1]},
            AGENTS | {"name": "agents__", "tools": AGENTS["tools"][:1]},
        ),
    ],
)
def test_of_two_tools_with_one_name_the_first_stays(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    alone, both = call(tools=[first]), call(tools=[first, second])
    assert (both.tools, both.deferred_tools) == (alone.tools, ())
    assert both.spellings == alone.spellings
    assert both.ignored == DUPLICATE


def test_a_function_that_is_named_like_one_in_a_namespace_takes_only_its_place() -> None:
    found = call(tools=[SPAWN, AGENTS])
    assert names(found.tools) == ["agents__spawn", "agents__stop"]
    assert found.spellings["agents__spawn"].namespace is None
    assert found.ignored == DUPLICATE
    found = call(tools=[AGENTS, SPAWN])
    assert found.spellings["agents__spawn"].namespace == "agents"
    assert (found.tools, found.ignored) == (call(tools=[AGENTS]).tools, DUPLICATE)


@pytest.mark.parametrize(
    ("again", "ignored"), [(BASH, ()), (BASH | {"description": "Else."}, DUPLICATE)]
)
def test_a_tool_that_stands_at_the_head_already_is_not_added(
    again: dict[str, Any], ignored: tuple[str, ...]
) -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [again]}
    found = call(input=[item, USER], tools=[BASH])
    assert (found.tools, found.deferred_tools) == (call(tools=[BASH]).tools, ())
    assert (len(found.messages), found.ignored) == (1, ignored)


@pytest.mark.parametrize(
    ("again", "ignored"), [(BASH, ()), ({"type": "custom", "name": "bash"}, DUPLICATE)]
)
def test_a_tool_that_is_found_once_more_is_told_of_but_called_as_the_first(
    again: dict[str, Any], ignored: tuple[str, ...]
) -> None:
    found = call(
        input=[USER, {"type": "tool_search_output", "call_id": "c", "tools": [again]}],
        tools=[BASH],
    )
    assert '"bash"' in found.messages[1]["content"]
    assert (names(found.tools), found.deferred_tools) == (["bash"], ())
    assert (found.spellings["bash"].kind, found.ignored) == ("function", ignored)


def test_a_tool_stays_at_the_head_if_the_search_for_it_cannot_be_called() -> None:
    later = BASH | {"defer_loading": True}
    found = call(tools=[FOUND, TOOL_SEARCH, later])
    assert (names(found.tools), found.deferred_tools) == (["tool_search", "bash"], ())


# ---------------------------------------------------------------------------- items


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"type": "compaction", "encrypted_content": "x"}, "[compaction omitted]"),
        ({"type": "context_compaction"}, "[context_compaction omitted]"),
        ({"type": "compaction_trigger"}, "[compaction_trigger omitted]"),
        ({"type": "ghost_snapshot", "ghost_commit": {"id": "x"}}, "[ghost_snapshot omitted]"),
        ({"type": "brand-new"}, "[brand-new omitted]"),
        ({"type": "a\nb"}, "[item omitted]"),
        ({"type": "x" * 10_000}, "[item omitted]"),
        ({"type": "x", "content": 5, "summary": "s", "tools": {}, "name": []}, "[x omitted]"),
    ],
)
def test_an_unknown_item_is_a_line_of_the_users(item: dict[str, Any], text: str) -> None:
    found = call(input=[USER, item])
    assert found.messages[1:] == (line(text),)
    assert found.placeholders == 1


def test_an_unknown_item_is_no_part_of_the_answer_that_it_comes_after() -> None:
    ghost = {"type": "ghost_snapshot"}
    with_it = messages(USER, said("Big."), ghost, USER)
    assert with_it == [
        *messages(USER, said("Big.")),
        line("[ghost_snapshot omitted]"),
        line("How big is the repo?"),
    ]


def test_an_answer_goes_on_behind_an_unknown_item() -> None:
    answer = [
        thought("Hm.", **own("rs_", 0)),
        said("So.", **own("msg_", 1)),
        called(**own("fc_", 2)),
    ]
    ghost = {"type": "ghost_snapshot"}
    whole = messages(USER, *answer)
    for at in (1, 2):
        found = call(input=[USER, *answer[:at], ghost, *answer[at:], result()])
        assert list(found.messages[:2]) == whole
        assert [message["role"] for message in found.messages[2:]] == ["user", "tool"]
        assert f"resp_{LETTERS}" in found.carriers[1]


def test_a_list_of_the_servers_tools_is_told_of_whatever_they_hold() -> None:
    item = {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "a"}]}
    [_, answer] = messages(USER, item)
    told = '[mcp_list_tools {"server_label":"s","tools":[{"name":"a"}]}]'
    assert answer == {"role": "assistant", "content": told}


# ---------------------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("part", "text", "count"),
    [
        ({"type": "input_foo", "x": 1}, "[input_foo omitted]", 1),
        ({"type": "input_foo", "text": {"x": 1}}, "[input_foo omitted]", 1),
        ({"type": "input_foo", "text": "hi"}, "hi", 0),
        ({"type": "a\nb"}, "[part omitted]", 1),
        ({"type": "input_image", "text": "hi"}, "[image omitted]", 1),
        ({"type": "input_text", "text": None}, "", 0),
        ({"type": "output_text"}, "", 0),
        ({"type": "refusal", "refusal": None}, "", 0),
    ],
)
@pytest.mark.parametrize("role", ["user", "developer", "assistant"])
def test_a_part_is_never_refused(role: str, part: dict[str, Any], text: str, count: int) -> None:
    found = call(input=[USER, {"role": role, "content": [part]}])
    assert (found.messages[1]["content"], found.placeholders) == (text, count)
