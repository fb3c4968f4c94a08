"""The blocks of a Messages request as text, whatever their type.

    text                              itself
    document, search_result           title, source and text; a placeholder where it is no text
    tool_reference, tool_addition     the tool's definition
    image, container_upload, ...      a placeholder, counted
    a type that is not known          the text it holds, else a placeholder, counted

Cache marks, citations and whatever else the structs do not name are not part of a conversation.

Invariant: a block says something in the conversation, be it only that it was there; a request is
refused for one of a known type that is not whole or not in its place.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from streams.adapters.dialects.anthropic_tools import GivenTool, Tools, printed, read_tool
from streams.adapters.dialects.calls import Tool
from streams.adapters.dialects.common import function_tool, joined, omitted, refused

_DEPTH_MAX = 8
_PLAIN_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_BELONGS = {
    "tool_use": "an assistant's message",
    "thinking": "an assistant's message",
    "redacted_thinking": "an assistant's message",
    "tool_result": "a user's message",
}


class _Source(msgspec.Struct):
    """Where a document comes from."""

    data: str | None = None
    content: "Content" = None
    media_type: str | None = None


class _ToolChange(msgspec.Struct):
    """A tool that joins or leaves in the middle of a conversation."""

    name: str | None = None
    definition: GivenTool | None = None


class Block(msgspec.Struct):
    """One block of a message's content, of any type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    is_error: bool | None = None
    content: "Content" = None
    source: str | _Source | None = None
    title: str | None = None
    context: str | None = None
    tool_name: str | None = None
    tool: _ToolChange | None = None


Content = str | list[Block] | dict[str, Any] | None
"""An object where a tool of the vendor's has failed; it says no more than a placeholder."""


def blocks_of(content: str | list[Block] | None) -> Iterable[tuple[int, Block]]:
    """A text alone is a block of text."""
    if isinstance(content, str):
        return ((0, Block(type="text", text=content)),)
    return enumerate(content or ())


class BlockTexts:
    """Turns the blocks of one request into text."""

    def __init__(self, tools: Tools) -> None:
        """`tools` has the definitions that blocks refer to."""
        self._tools = tools
        self.placeholders = 0
        self.added_tools: list[Tool] = []
        """Defined within the conversation."""

    def all_of(self, content: Content, param: str, depth: int = 0) -> str:
        """Content as one text."""
        if isinstance(content, dict):
            return self._placeholder("result")
        if depth > _DEPTH_MAX:
            raise refused(param, f"is nested deeper than {_DEPTH_MAX} blocks")
        texts = (self.text_of(b, f"{param}[{i}]", depth) for i, b in blocks_of(content))
        return joined(texts, "\n")

    def text_of(self, block: Block, param: str, depth: int = 0) -> str:
        match block.type:
            case "text":
                if block.text is None:
                    raise refused(f"{param}.text", "is missing")
                return block.text
            case "tool_reference":
                return self._definition(block.tool_name, f"{param}.tool_name")
            case "tool_addition" | "tool_removal":
                return self._changed(block, param)
            case "document":
                return self._document(block, param, depth)
            case "search_result":
                source = block.source if isinstance(block.source, str) else None
                found = self.all_of(block.content, f"{param}.content", depth + 1)
                return joined((block.title, source, found), "\n")
            case kind if kind in _BELONGS:
                raise refused(f"{param}.type", f"is {kind!r}, which belongs into {_BELONGS[kind]}")
            case kind:
                return self._other(kind, block, param, depth)

    def _other(self, kind: str, block: Block, param: str, depth: int) -> str:
        """The text of a block that is not known: what it holds, or that there was one."""
        if omitted(kind) is None and block.text:
            return block.text
        if omitted(kind) is None and isinstance(block.content, str | list) and block.content:
            return self.all_of(block.content, f"{param}.content", depth + 1)
        return self._placeholder(kind)

    def _document(self, block: Block, param: str, depth: int) -> str:
        source = block.source if isinstance(block.source, _Source) else _Source()
        if source.content:
            text = self.all_of(source.content, f"{param}.source.content", depth + 1)
        elif source.data is not None and source.media_type == "text/plain":
            text = source.data
        else:
            text = self._placeholder("document")
        return joined((block.title, block.context, text), "\n")

    def _placeholder(self, kind: str) -> str:
        """That there was something; a type that is no name is not repeated."""
        self.placeholders += 1
        named = kind if _PLAIN_NAME.fullmatch(kind) else "block"
        return omitted(kind) or f"[{named} omitted]"

    def _definition(self, name: str | None, param: str) -> str:
        if not name:
            raise refused(param, "is missing")
        added = (tool for tool in self.added_tools if tool["function"]["name"] == name)
        known = self._tools.named(name) or next(added, None)
        return printed(known or function_tool(name, None, None, param))

    def _changed(self, block: Block, param: str) -> str:
        change = block.tool or _ToolChange()
        if block.type == "tool_removal" and change.name:
            return f"The tool {change.name} can no longer be called."
        if change.definition is not None:
            tool = read_tool(change.definition, f"{param}.tool.definition")
            if tool is None:
                return self._placeholder(block.type)
            self.added_tools.append(tool)
            return printed(tool)
        if change.name:
            return self._definition(change.name, f"{param}.tool.name")
        return self._placeholder(block.type)
