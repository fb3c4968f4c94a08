"""Chat Completions requests for tests: a small valid one, and what differs from it."""

import json
from typing import Any

from streams.adapters.dialects.calls import Call, Message
from streams.adapters.dialects.openai_chat import read_call

USER = {"role": "user", "content": "How big is the repo?"}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH: dict[str, Any] = {
    "type": "function",
    "function": {"name": "bash", "description": "Runs it.", "parameters": SCHEMA},
}


def request(**fields: Any) -> bytes:
    """A body with the fields given beside the two that are needed."""
    return json.dumps({"model": "qwen", "messages": [USER]} | fields).encode()


def call(**fields: Any) -> Call:
    return read_call(request(**fields))


def messages(*given: dict[str, Any]) -> list[Message]:
    return list(call(messages=list(given)).messages)


def called(arguments: Any, **fields: Any) -> dict[str, Any]:
    """An assistant's message that calls `bash`."""
    function = {"name": "bash", "arguments": arguments}
    tool_call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [tool_call | fields]}
