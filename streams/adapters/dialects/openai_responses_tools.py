"""The tools of a Responses request as functions, which is all that a chat template knows.

    function      ──► as it is
    custom        ──► a function with one text, `input`; its grammar is told with it
    namespace     ──► its functions, each named NAMESPACE__NAME
    tool_search   ──► a function, if the client runs it; then what it finds is not at the head
    web_search, file_search, mcp, ...       nothing runs them here: left out and counted
    one whose function has the name of one before it    left out; counted unless it is the same

Clients put lists together from what users plug in, so names do collide. Within a conversation a
tool is told of wherever it is found, be it for the second time; the first is the one that is
called.

An answer is told in the words of the request: `spelled` is the way back.

Invariant: every function has a name of its own, and the same tool has the same name in every
request, whatever else the request holds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from streams.adapters.dialects.calls import Tool
from streams.adapters.dialects.common import function_tool, joined, refused

INPUT = "input"
"""The one parameter of a custom tool."""
TOOL_SEARCH = "tool_search"
_BETWEEN = "__"
# By name, so that what is counted has as few names.
_NOT_RUN = {
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_preview",
}


class _Format(msgspec.Struct):
    type: str | None = None
    syntax: str | None = None
    definition: str | None = None


class GivenTool(msgspec.Struct):
    """One entry of a tool list as a client spells it."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    format: _Format | None = None
    tools: "list[GivenTool] | None" = None
    execution: str | None = None
    defer_loading: bool | None = None


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a client calls a tool."""

    kind: Literal["function", "custom", "tool_search"]
    name: str
    namespace: str | None = None


@dataclass(slots=True)
class Tools:
    """What may be called in one request."""

    head: list[Tool] = field(default_factory=list)
    deferred: list[Tool] = field(default_factory=list)
    spellings: dict[str, Spelling] = field(default_factory=dict)
    """By the name of the function."""
    ignored: list[str] = field(default_factory=list)
    _functions: dict[str, Tool] = field(default_factory=dict)

    @property
    def callable(self) -> bool:
        """Whether there is any."""
        return bool(self.head or self.deferred)

    def add(self, given: Sequence[GivenTool], param: str, *, found: bool = False) -> list[Tool]:
        """Read a list; those that were `found` on the way do not stand at the head.

        Returns the functions in it that the conversation tells of.
        """
        told: list[Tool] = []
        flat = list(self._flat(given, param))
        searched = self._searched(flat)
        for tool, spelling, where in flat:
            name = function_name(spelling.name, spelling.namespace)
            schema = _one_text(tool.format) if spelling.kind == "custom" else tool.parameters
            function = function_tool(name, tool.description, schema, f"{where}.parameters")
            if found:
                told.append(function)
            if name in self.spellings:
                if not self._is_same(name, function, spelling, found=found):
                    self.ignored.append("tools.duplicate")
                continue
            self.spellings[name] = spelling
            self._functions[name] = function
            later = found or (searched and tool.defer_loading is True)
            (self.deferred if later else self.head).append(function)
        return told

    def _searched(self, flat: Sequence[tuple[GivenTool, Spelling, str]]) -> bool:
        """Whether a list brings a search that the model can call: no other tool has its name."""
        search = Spelling("tool_search", TOOL_SEARCH)
        given = [spelling for _, spelling, _ in flat if spelling.name == TOOL_SEARCH]
        named = (spelling for spelling in given if not spelling.namespace)
        first = self.spellings.get(TOOL_SEARCH) or next(named, None)
        return first == search and search in given

    def _is_same(self, name: str, function: Tool, spelling: Spelling, *, found: bool) -> bool:
        """Whether nothing is lost with a tool whose name is taken."""
        if self.spellings[name] != spelling:
            return False
        first, again = self._functions[name]["function"], function["function"]
        # What is said of one that is found stands in the conversation.
        return bool(first.get("parameters") == again.get("parameters") if found else first == again)

    def _ignore(self, tool: GivenTool) -> None:
        self.ignored.append(f"tools.{tool.type if tool.type in _NOT_RUN else 'other'}")

    def _flat(
        self, given: Sequence[GivenTool], param: str
    ) -> Iterator[tuple[GivenTool, Spelling, str]]:
        for index, tool in enumerate(given):
            where = f"{param}[{index}]"
            if tool.type == "namespace":
                yield from self._flat_namespace(tool, where)
            elif _client_searches(tool):
                yield tool, Spelling("tool_search", TOOL_SEARCH), where
            elif tool.type in {"function", "custom"}:
                yield tool, _spelling(tool, None, where), where
            else:
                self._ignore(tool)

    def _flat_namespace(
        self, namespace: GivenTool, param: str
    ) -> Iterator[tuple[GivenTool, Spelling, str]]:
        if not namespace.name:
            raise refused(f"{param}.name", "is missing")
        told = namespace.description
        for index, tool in enumerate(namespace.tools or ()):
            where = f"{param}.tools[{index}]"
            if tool.type not in {"function", "custom"}:
                self._ignore(tool)
                continue
            # What is said of the whole namespace is said once, with the first of its functions.
            about = msgspec.structs.replace(
                tool,
                description=joined((told, tool.description), "\n\n") or None,
                defer_loading=tool.defer_loading or namespace.defer_loading,
            )
            told = None
            yield about, _spelling(tool, namespace.name, where), where


def _client_searches(tool: GivenTool) -> bool:
    return tool.type == TOOL_SEARCH and tool.execution == "client"


def _spelling(tool: GivenTool, namespace: str | None, param: str) -> Spelling:
    if not tool.name:
        raise refused(f"{param}.name", "is missing")
    return Spelling("custom" if tool.type == "custom" else "function", tool.name, namespace)


def _one_text(format_: _Format | None) -> dict[str, Any]:
    text = {"type": "string"}
    if format_ is not None and format_.definition:
        syntax = f"{format_.syntax} grammar" if format_.syntax else "grammar"
        text["description"] = f"Text that follows this {syntax}:\n{format_.definition}"
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}


def function_name(name: str, namespace: str | None) -> str:
    """The name that a template and a model see."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith(_BETWEEN) else namespace + _BETWEEN + name


def spelled(spellings: Mapping[str, Spelling], name: str) -> Spelling:
    """How the client knows what the model called; a name it never gave stays as it is."""
    return spellings.get(name) or Spelling("function", name)


def definitions(tools: Iterable[Tool]) -> str:
    """Tools as text, one a line, for a conversation that tells of them."""
    return "\n".join(msgspec.json.encode(tool["function"]).decode() for tool in tools)
