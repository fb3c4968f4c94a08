"""What the scripted engine says when nobody wrote it a script: enough for an agent to go round.

    a question, tools offered     it calls the first tool, with arguments its schema allows
    a tool's result               it says what the tool said, and is done
    a question without tools      it says what it is

It reads the prompt as Qwen3's template writes it; in other forms it finds no tools.
"""

import json
from typing import Any

TURN = "<|im_start|>"
RESULT, RESULT_END = "<tool_response>", "</tool_response>"
SHOWN_MAX = 200
SELF = (
    "This is the scripted engine: it answers from a script, not from a model. "
    "Give the gateway a real engine to talk to one."
)
HARMLESS = "echo hello"


def demo_answer(prompt: str) -> dict[str, Any]:
    """The message that answers the prompt."""
    *before, last, header = ["", "", *prompt.split(TURN)]
    if RESULT in last:
        message = _about(last)
    else:
        tools = _tools("".join(before))
        message = _call(tools[0]) if tools else {"content": SELF}
    if "</think>" in header:
        message.pop("reasoning_content", None)
    return message


def _about(turn: str) -> dict[str, Any]:
    result = turn.rpartition(RESULT)[2].partition(RESULT_END)[0].strip()
    shown = result if len(result) <= SHOWN_MAX else f"{result[:SHOWN_MAX]}..."
    return {
        "reasoning_content": "The tool has answered, so I am done.",
        "content": f"The tool says: {shown}" if shown else "The tool says nothing.",
    }


def _call(tool: dict[str, Any]) -> dict[str, Any]:
    name = tool["name"]
    call = {"name": name, "arguments": _example(tool.get("parameters") or {})}
    return {
        "reasoning_content": f"I can use {name} for this.",
        "content": f"I use {name}.",
        "tool_calls": [{"function": call}],
    }


def _tools(head: str) -> list[dict[str, Any]]:
    """The functions that the prompt offers, a line of JSON each."""
    lines = head.partition("<tools>\n")[2].partition("\n</tools>")[0].splitlines()
    found = []
    for line in lines:
        try:
            function = json.loads(line)["function"]
        except (ValueError, LookupError, TypeError):
            continue  # a line that only looks like one: the demo offers what it can read
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            found.append(function)
    return found


def _example(schema: Any) -> Any:
    """A small value that the schema allows, as far as types and required fields say."""
    if not isinstance(schema, dict):
        return HARMLESS
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        fields = schema.get("properties") or {}
        return {name: _example(fields.get(name)) for name in schema.get("required") or ()}
    if kind == "array":
        item = _example(schema.get("items"))
        return item.split() if item == HARMLESS else [item]
    values = {"integer": 1, "number": 1.5, "boolean": True, "null": None}
    return values.get(str(kind), HARMLESS)
