"""What can be called, in every form that the Responses API has for it."""

from typing import Any

import pytest

from tests.adapters.dialects.responses_requests import (
    AGENTS,
    APPLY_PATCH,
    BASH,
    SCHEMA,
    TOOL_SEARCH,
    USER,
    call,
    called,
    calling,
    messages,
)


def function(name: str, description: str, parameters: Any = None) -> dict[str, Any]:
    """A tool as a template reads it."""
    told = {"name": name, "description": description}
    return {
        "type": "function",
        "function": told | ({} if parameters is None else {"parameters": parameters}),
    }


def test_a_function_is_a_function() -> None:
    found = call(tools=[BASH])
    assert found.tools == (function("bash", "Runs it.", SCHEMA),)


def test_a_custom_tool_is_a_function_of_one_text_that_tells_its_grammar() -> None:
    [tool] = call(tools=[APPLY_PATCH]).tools
    text = {
        "type": "string",
        "description": 'Text that follows this lark grammar:\nstart: "*** Begin"',
    }
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"]}
    assert tool == function("apply_patch", "Changes files.", parameters)


def test_a_call_of_a_custom_tool_and_its_output() -> None:
    item = {"type": "custom_tool_call", "call_id": "call_1", "name": "apply_patch", "input": "*"}
    output = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"}
    assert messages(item, output) == [
        calling(("call_1", "apply_patch", {"input": "*"})),
        {"role": "tool", "content": "done", "tool_call_id": "call_1", "name": "apply_patch"},
    ]


def test_a_namespace_is_its_functions_with_what_is_said_of_it() -> None:
    assert call(tools=[AGENTS]).tools == (
        function("agents__spawn", "Helpers.\n\nStarts one.", SCHEMA),
        function("agents__stop", "Ends one."),
    )


def test_a_call_in_a_namespace_has_the_same_name_whatever_the_tools_are() -> None:
    item = called(name="spawn", namespace="agents")
    for tools in ([AGENTS], []):
        [message] = messages(item, tools=tools)
        assert message["tool_calls"][0]["function"]["name"] == "agents__spawn"


def test_a_namespace_that_ends_in_underscores_is_a_prefix() -> None:
    namespace = AGENTS | {"name": "mcp__mail__"}
    assert call(tools=[namespace]).tools[0]["function"]["name"] == "mcp__mail__spawn"


def test_tools_that_nothing_runs_here_are_left_out_and_counted() -> None:
    kinds = ["web_search", "file_search", "image_generation", "mcp", "local_shell", "brand_new"]
    found = call(tools=[BASH, *({"type": kind} for kind in [*kinds, "web_search"])])
    assert len(found.tools) == 1
    assert found.ignored == (*(f"tools.{kind}" for kind in kinds[:-1]), "tools.other")


def test_additional_tools_at_the_head_are_the_tools() -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [BASH]}
    found = call(input=[item, {"role": "developer", "content": "a"}, USER])
    assert found.tools == call(tools=[BASH]).tools
    assert [message["role"] for message in found.messages] == ["system", "user"]


def test_additional_tools_later_are_told_of_where_they_come() -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [AGENTS]}
    found = call(input=[USER, item], tools=[BASH])
    assert [tool["function"]["name"] for tool in found.tools] == ["bash"]
    names = ["agents__spawn", "agents__stop"]
    assert [tool["function"]["name"] for tool in found.deferred_tools] == names
    assert found.messages[1]["role"] == "system"
    assert all(name in found.messages[1]["content"] for name in names)


def test_a_search_for_tools_is_a_call_and_what_it_finds_may_be_called() -> None:
    items = [
        {
            "type": "tool_search_call",
            "call_id": "call_1",
            "execution": "client",
            "arguments": {"query": "agents"},
        },
        {"type": "tool_search_output", "call_id": "call_1", "tools": [AGENTS]},
    ]
    found = call(input=[USER, *items], tools=[BASH, TOOL_SEARCH])
    assert [tool["function"]["name"] for tool in found.tools] == ["bash", "tool_search"]
    assert found.messages[1] == calling(("call_1", "tool_search", {"query": "agents"}))
    assert found.messages[2]["name"] == "tool_search"
    assert "agents__spawn" in found.messages[2]["content"]
    assert [tool["function"]["name"] for tool in found.deferred_tools] == [
        "agents__spawn",
        "agents__stop",
    ]


def test_what_is_loaded_later_is_at_the_head_unless_the_client_can_search_for_it() -> None:
    later = BASH | {"defer_loading": True}
    assert len(call(tools=[later]).tools) == 1
    searched = call(tools=[later, TOOL_SEARCH])
    assert [tool["function"]["name"] for tool in searched.tools] == ["tool_search"]
    assert [tool["function"]["name"] for tool in searched.deferred_tools] == ["bash"]


@pytest.mark.parametrize(
    ("choice", "tools", "read", "ignored"),
    [
        ("auto", [BASH], "auto", ()),
        ("none", [BASH], "none", ()),
        ("required", [BASH], "required", ()),
        ("none", [], "auto", ()),
        ({"type": "function", "name": "bash"}, [BASH], "bash", ()),
        ({"type": "custom", "name": "apply_patch"}, [APPLY_PATCH], "apply_patch", ()),
        (
            {"type": "function", "name": "spawn", "namespace": "agents"},
            [AGENTS],
            "agents__spawn",
            (),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "bash"}],
            },
            [BASH],
            "auto",
            (),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "bash"}],
            },
            [BASH, AGENTS],
            "bash",
            (),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "bash"}],
            },
            [BASH, AGENTS],
            "auto",
            ("tool_choice",),
        ),
        ({"type": "web_search_preview"}, [BASH], "auto", ("tool_choice",)),
        ("required", [{"type": "mcp"}], "auto", ("tools.mcp", "tool_choice")),
    ],
)
def test_a_tool_choice(choice: Any, tools: list[Any], read: str, ignored: tuple[str, ...]) -> None:
    found = call(tools=tools, tool_choice=choice)
    assert (found.tool_choice, found.ignored) == (read, ignored)
