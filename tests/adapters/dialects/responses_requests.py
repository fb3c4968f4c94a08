"""Responses requests for tests: a small valid one, and what differs from it."""

import json
from typing import Any

from streams.adapters.dialects.calls import Message
from streams.adapters.dialects.openai_responses_request import ResponsesCall, read_call
from tests.adapters.dialects.responses_answers import LETTERS

USER = {"type": "message", "role": "user", "content": "How big is the repo?"}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH: dict[str, Any] = {
    "type": "function",
    "name": "bash",
    "description": "Runs it.",
    "strict": False,
    "parameters": SCHEMA,
}
APPLY_PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin"'},
}
AGENTS: dict[str, Any] = {
    "type": "namespace",
    "name": "agents",
    "description": "Helpers.",
    "tools": [
        {"type": "function", "name": "spawn", "description": "Starts one.", "parameters": SCHEMA},
        {"type": "function", "name": "stop", "description": "Ends one."},
    ],
}
TOOL_SEARCH: dict[str, Any] = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
TOOLS = [BASH, APPLY_PATCH, AGENTS, TOOL_SEARCH]


def request(**fields: Any) -> bytes:
    """A body with the fields given beside the two that are needed."""
    return json.dumps({"model": "qwen", "input": [USER]} | fields).encode()


def call(**fields: Any) -> ResponsesCall:
    return read_call(request(**fields))


def messages(*items: dict[str, Any], **fields: Any) -> list[Message]:
    return list(call(input=list(items), **fields).messages)


def own(prefix: str, index: int, letters: str = LETTERS) -> dict[str, str]:
    """The id that an item of ours has."""
    return {"id": f"{prefix}{letters}_{index}"}


def said(text: str, **fields: Any) -> dict[str, Any]:
    """An assistant's message."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part], **fields}


def thought(text: str, **fields: Any) -> dict[str, Any]:
    part = {"type": "reasoning_text", "text": text}
    return {"type": "reasoning", "summary": [], "content": [part], **fields}


def called(arguments: Any = "{}", call_id: str = "call_1", **fields: Any) -> dict[str, Any]:
    """A call of `bash`."""
    named = {"call_id": call_id, "name": "bash"}
    return {"type": "function_call", **named, "arguments": arguments, **fields}


def result(text: Any = "4 MB", call_id: str = "call_1", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text, **fields}


def calling(*calls: tuple[str, str, Any], **fields: Any) -> Message:
    """The assistant message with these calls: id, name, arguments."""
    tool_calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": "", **fields, "tool_calls": tool_calls}
