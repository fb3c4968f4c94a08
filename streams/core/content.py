"""What a chat message says, and what counts as one: the same for traces, dumps and judgers.

    content               text
    "hi"                  hi
    [{"text": "h"}, ...]  the texts of its parts, one after the other
    None                  nothing
    7                     7

Invariant: a message that leaves here is an object with a role, and a copy of what was given.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from streams.core.plain_values import plain

Message = dict[str, Any]
_NO_MESSAGE = "no message: give a text, an object with `content`, or nothing"


class NoMessage(ValueError):
    """A value that cannot be taken for a message."""


def text_of(message: Any) -> str:
    """The text of a message, or of a content; parts without text say nothing."""
    content = message.get("content") if isinstance(message, Mapping) else message
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        content = [content]
    if isinstance(content, Sequence):
        return "".join(_text_of_part(part) for part in content)
    return json.dumps(plain(content))


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    return text if isinstance(text, str) else ""


def message_from(value: Any, role: str = "assistant") -> Message:
    """A text, an object, nothing or something message-like as a message.

    Args:
        value: What an agent, an SDK or an environment gave.
        role: Whose it is, where the value does not say.

    Raises:
        NoMessage: it is none of them.
    """
    if value is None:
        return {"role": role, "content": ""}
    if isinstance(value, str):
        return {"role": role, "content": plain(value)}
    if isinstance(value, Mapping):
        if value.keys().isdisjoint({"role", "content", "tool_calls"}):
            raise NoMessage(f"{sorted(map(str, value))!r:.200} is {_NO_MESSAGE}")
        return {"role": role, **plain(value)}
    dumped = _dumped(value)
    if dumped is None:
        raise NoMessage(f"a {type(value).__name__} is {_NO_MESSAGE}")
    return message_from(dumped, role)


def _dumped(value: Any) -> Mapping[str, Any] | None:
    """The fields of something that looks like a message: an SDK's object, a dataclass."""
    dump = getattr(value, "model_dump", None)  # what the vendors' SDKs have
    if callable(dump):
        fields = dump(exclude_none=True)
        return fields if isinstance(fields, Mapping) else None
    if not hasattr(value, "content"):
        return None
    names = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content", "name")
    given = {name: getattr(value, name, None) for name in names}
    return {"content": None, **{k: v for k, v in given.items() if v is not None}}


def conversation_in(value: Any) -> list[Any] | None:
    """The messages that an observation is made of: a whole prompt; None if it is none."""
    held = value.get("messages") if isinstance(value, Mapping) else getattr(value, "messages", None)
    many = value if held is None else held
    if isinstance(many, list | tuple) and many and all(_looks_like_one(one) for one in many):
        return list(many)
    return None


def messages_from(value: Any, role: str, strange: Counter[str] | None = None) -> list[Message]:
    """An observation or an action as messages: those it is made of, else its text as one."""
    whole = conversation_in(value)
    if whole is not None:
        return [message_from(one, role) for one in whole]
    if isinstance(value, str) or _looks_like_one(value):
        return [message_from(value, role)]
    made = plain(value, strange)
    return [{"role": role, "content": made if isinstance(made, str) else json.dumps(made)}]


def final_message_from(value: Any, strange: Counter[str] | None = None) -> Message:
    """Whatever was given for the last message of a session as one; what is none is its text."""
    try:
        return message_from(value)
    except NoMessage:
        return messages_from(value, "assistant", strange)[-1]


def _looks_like_one(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "role" in value and not value.keys().isdisjoint({"content", "tool_calls"})
    return hasattr(value, "role") and hasattr(value, "content")
