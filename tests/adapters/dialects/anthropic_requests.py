"""Messages requests for tests: a small valid one, and what differs from it."""

import json
from typing import Any

from streams.adapters.dialects.anthropic import read_call
from streams.adapters.dialects.calls import Call, Message, Tool

USER = {"role": "user", "content": "How big is the repo?"}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH: dict[str, Any] = {"name": "bash", "description": "Runs it.", "input_schema": SCHEMA}
FETCH: dict[str, Any] = {"name": "fetch", "input_schema": {"type": "object"}, "defer_loading": True}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}


def request(**fields: Any) -> bytes:
    """A body with the fields given beside the three that are needed."""
    return json.dumps({"model": "qwen", "max_tokens": 99, "messages": [USER]} | fields).encode()


def call(**fields: Any) -> Call:
    return read_call(request(**fields))


def messages(*given: dict[str, Any], **fields: Any) -> list[Message]:
    return list(call(messages=list(given), **fields).messages)


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return user(*blocks) | {"role": "assistant"}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": said} | fields


def thought(said: str, signature: str = "rs_1") -> dict[str, Any]:
    return {"type": "thinking", "thinking": said, "signature": signature}


def called(arguments: Any, **fields: Any) -> dict[str, Any]:
    """A block that calls `bash`."""
    return {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": arguments} | fields


def result(content: Any = None, **fields: Any) -> dict[str, Any]:
    """What that call gave."""
    given = {} if content is None else {"content": content}
    return {"type": "tool_result", "tool_use_id": "toolu_1"} | given | fields


def function(tool: dict[str, Any]) -> Tool:
    """A tool in the form that chat templates read."""
    told = {"name": tool["name"]}
    told |= {"description": tool["description"]} if "description" in tool else {}
    return {"type": "function", "function": told | {"parameters": tool["input_schema"]}}
