"""An item of a Responses request as it is given, and which types of items are known.

Invariant: a type is read field by field, told of whole, or not known; no type is two of these.
"""

from typing import Any

import msgspec

from streams.adapters.dialects.common import Content, Part
from streams.adapters.dialects.openai_responses_tools import GivenTool

# Calls that a client runs, under names of the API's own, and the ones that the API's server runs.
CLIENT_CALLS = {"local_shell_call", "shell_call", "apply_patch_call", "computer_call"}
CLIENT_OUTPUTS = {f"{call}_output" for call in CLIENT_CALLS}
SERVER_ITEMS = {
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
}
WHOLE_TYPES = {*CLIENT_CALLS, *CLIENT_OUTPUTS, *SERVER_ITEMS, "mcp_approval_response"}
"""Told of with all their fields."""
READ_TYPES = {
    "message",
    "reasoning",
    "function_call",
    "custom_tool_call",
    "tool_search_call",
    "function_call_output",
    "custom_tool_call_output",
    "tool_search_output",
    "additional_tools",
    "item_reference",
}
"""Read field by field."""


class GivenItem(msgspec.Struct):
    """One item as a client spells it."""

    type: str | None = None
    id: Any = None
    role: str | None = None
    content: Content = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: str | None = None
    output: Any = None
    tools: list[GivenTool] | None = None
