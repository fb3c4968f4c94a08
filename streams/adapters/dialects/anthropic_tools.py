"""The tools of a Messages request: which stand at the head of the prompt, which are found later.

    a custom tool                    at the head
    with `defer_loading`             left out of the head, told of where the conversation finds it
    one that the vendor's servers    left out: nobody here could run it
      run (web search, ...)
    one that the vendor's models     refused: its description is in no request
      know by heart (bash_..., ...)

A client that leaves the finding to the vendor's servers has all of its tools at the head: they
could not be found here.

The head of a prompt must not change while a conversation goes on, so a tool that joins later is
printed at its place in the conversation, in the form that chat templates print at the head.

Invariant: the same definition is printed as the same text, wherever it stands in the list.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from streams.adapters.dialects.calls import Tool
from streams.adapters.dialects.common import function_tool, refused

_VENDOR_FINDS = "tool_search_tool_"
_KNOWN_BY_HEART = ("bash_", "browser_", "computer_", "memory_", "text_editor_")


class GivenTool(msgspec.Struct):
    """One tool as a client spells it; cache marks and hints for the vendor are not read."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: bool | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    """What can be called."""

    head: tuple[Tool, ...]
    deferred: tuple[Tool, ...]
    left_out: frozenset[str]
    """The names of those that only the vendor could run."""

    def named(self, name: str) -> Tool | None:
        every = (*self.head, *self.deferred)
        return next((tool for tool in every if tool["function"]["name"] == name), None)


def read_tools(given: Sequence[GivenTool]) -> Tools:
    """Each tool where it belongs."""
    head: list[Tool] = []
    deferred: list[Tool] = []
    left_out: set[str] = set()
    found_here = not any((tool.type or "").startswith(_VENDOR_FINDS) for tool in given)
    for index, tool in enumerate(given):
        read = read_tool(tool, f"tools[{index}]")
        if read is None:
            left_out.add(tool.name or "")
        else:
            (deferred if tool.defer_loading and found_here else head).append(read)
    return Tools(tuple(head), tuple(deferred), frozenset(left_out))


def read_tool(tool: GivenTool, param: str) -> Tool | None:
    """The function; None if only the vendor could run it."""
    if tool.type not in {None, "custom"} and tool.input_schema is None:
        if str(tool.type).startswith(_KNOWN_BY_HEART):
            why = f"is {tool.type!r:.80}, which no model here knows; send it with an `input_schema`"
            raise refused(f"{param}.type", why)
        return None
    if not tool.name:
        raise refused(f"{param}.name", "is missing" if tool.name is None else "is empty")
    return function_tool(tool.name, tool.description, tool.input_schema, f"{param}.input_schema")


def printed(tool: Tool) -> str:
    """A tool as text within a conversation."""
    return json.dumps(tool, ensure_ascii=False)
