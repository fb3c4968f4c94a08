"""Conversations that a template is tried with before it is trusted.

They are short, and differ in what templates are known to trip over: tools or none, a system
message or none, reasoning, parallel calls, results, a system message in the middle.

Invariant: nothing here is ever part of a prompt.
"""

from streams.adapters.dialects.calls import Message, Tool

TOOLS: tuple[Tool, ...] = (
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at a thing.",
            "parameters": {
                "type": "object",
                "properties": {"at": {"type": "string"}},
                "required": ["at"],
            },
        },
    },
)
SYSTEM: Message = {"role": "system", "content": "Be brief."}
USER: Message = {"role": "user", "content": "What is there?"}
USER_AGAIN: Message = {"role": "user", "content": "And behind it?"}


def call(*numbers: int, content: str = "", reasoning: str = "") -> Message:
    """An assistant's message that calls `look` as many times as there are numbers."""
    calls = [
        {
            "id": f"call{number:05d}",
            "type": "function",
            "function": {"name": "look", "arguments": {"at": f"place {number}"}},
        }
        for number in numbers
    ]
    message: Message = {"role": "assistant", "content": content, "tool_calls": calls}
    return {**message, "reasoning_content": reasoning} if reasoning else message


def result(number: int, content: str = "A wall.") -> Message:
    return {
        "role": "tool",
        "content": content,
        "tool_call_id": f"call{number:05d}",
        "name": "look",
    }


def said(content: str, reasoning: str = "") -> Message:
    message: Message = {"role": "assistant", "content": content}
    return {**message, "reasoning_content": reasoning} if reasoning else message


CONVERSATIONS: tuple[tuple[tuple[Tool, ...], list[Message]], ...] = (
    ((), [USER]),
    ((), [SYSTEM, USER, said("A wall."), USER_AGAIN]),
    ((), [USER, said("A wall.", "I looked."), USER_AGAIN]),
    (TOOLS, [SYSTEM, USER]),
    (TOOLS, [SYSTEM, USER, call(1, reasoning="I look."), result(1)]),
    (TOOLS, [USER, call(1, 2, content="Two looks."), result(1), result(2)]),
    (TOOLS, [SYSTEM, USER, call(1), result(1), said("A wall.", "I saw."), USER_AGAIN]),
)
"""Tools and messages; what a family's renderer and its template have to print alike."""

HISTORIES: tuple[list[Message], ...] = (
    [SYSTEM, USER, said("A door."), USER_AGAIN, said("A wall."), USER],
    [SYSTEM, USER, call(3, reasoning="I look."), result(3), said("A door."), USER],
)
"""What may stand before an answer, the second with results."""

FOLLOWING: dict[str, list[Message]] = {
    "a user": [USER_AGAIN],
    "a result": [result(1)],
    "two results": [result(1), result(2)],
    "a result and a user": [result(1), USER_AGAIN],
}
"""What may follow an answer."""
