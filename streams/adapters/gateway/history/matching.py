"""Is this the answer that was given? Clients send answers back, and few send them unchanged.

    what comes back                                        taken for
    the ids of its calls, whatever else became of them     the answer
    the first of several calls                             the answer, cut behind them
    no ids: the same text and calls, blanks aside,         the answer
      reasoning as it was, trimmed, dropped, or pasted
      into the text in think tags
    the beginning of its text, or its text without         the answer, cut there
      its calls
    anything else                                          another message

Ids are the gateway's own and carried through almost every client; arguments are not: they come
back reordered, with defaults, repaired, under another tool's name.

Invariant: an answer that is taken for the recorded one gets the recorded form; of one that is
cut, only what came back is kept, in the recorded form.
"""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from streams.adapters.dialects.calls import Message

_ENCODE = msgspec.json.Encoder(order="deterministic").encode
_DECODE = msgspec.json.Decoder().decode
_PASTED = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Whole:
    """The message is the recorded answer."""

    reasoning_kept: bool
    """False where the client dropped it, so that a twin with another thought fits as well."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The message is the beginning of the recorded answer."""

    message: Message
    """That beginning, as it was recorded."""
    calls: int = 0
    """How many calls are left; 0: it ends in the text."""
    in_reasoning: bool = False
    """It ends before the text begins."""


def text_of(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def reasoning_of(message: Message) -> str:
    reasoning = message.get("reasoning_content")
    return reasoning if isinstance(reasoning, str) else ""


def calls_of(message: Message) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []


def carried_ids(message: Message) -> list[str]:
    """The ids in a message that may be ours."""
    return [call["id"] for call in calls_of(message) if call.get("id")]


def with_own_reasoning(message: Message) -> Message:
    """The message with a thought that was pasted into its text back in its own field."""
    pasted = _PASTED.match(text_of(message))
    if pasted is None or reasoning_of(message):
        return message
    text = text_of(message)[pasted.end() :]
    return {**message, "content": text, "reasoning_content": pasted[1].strip()}


def compare(echo: Message, recorded: Message) -> Whole | Cut | None:
    """What an assistant's message is to a recorded answer."""
    theirs, ours = carried_ids(echo), carried_ids(recorded)
    if theirs and ours and theirs[0] in ours:
        if set(theirs) == set(ours):
            return Whole(reasoning_kept=True)
        return _cut_behind(recorded, len(theirs)) if theirs == ours[: len(theirs)] else None
    return _compare_content(with_own_reasoning(echo), recorded)


def _compare_content(echo: Message, recorded: Message) -> Whole | Cut | None:
    said, text = text_of(echo).strip(), text_of(recorded).strip()
    thought, reasoning = reasoning_of(echo).strip(), reasoning_of(recorded).strip()
    calls, recorded_calls = calls_of(echo), calls_of(recorded)
    if said == text and len(calls) == len(recorded_calls) and thought in ("", reasoning):
        whole = all(map(_same_call, calls, recorded_calls))
        return Whole(reasoning_kept=thought == reasoning) if whole else None
    if not said and not calls:
        return _cut_in_reasoning(recorded, thought) if _begins(thought, reasoning) else None
    if thought not in ("", reasoning):
        return None
    if calls:
        kept = said == text and all(map(_same_call, calls, recorded_calls))
        return _cut_behind(recorded, len(calls)) if kept and recorded_calls[len(calls) :] else None
    return _cut_in_text(recorded, said) if _begins(said, text) else None


def _begins(part: str, whole: str) -> bool:
    return bool(part) and whole.startswith(part)


def _cut_behind(recorded: Message, calls: int) -> Cut:
    message = {name: value for name, value in recorded.items() if name != "tool_calls"}
    if calls:
        message["tool_calls"] = calls_of(recorded)[:calls]
    return Cut(message, calls)


def whole_calls_of(recorded: Message, said: str) -> Cut:
    """A broken answer without what followed its last whole call, or the text that was given."""
    calls, text = len(calls_of(recorded)), text_of(recorded)
    if text.lstrip().startswith(said.strip()):
        leading = len(text) - len(text.lstrip())
        text = text[: leading + len(said.strip())].rstrip()
    message = {**recorded, "content": text}
    return Cut(message, calls, in_reasoning=not calls and not text)


def _cut_in_text(recorded: Message, said: str) -> Cut:
    text = text_of(recorded)
    leading = len(text) - len(text.lstrip())
    message = {name: value for name, value in recorded.items() if name != "tool_calls"}
    message["content"] = text[: leading + len(said)]
    return Cut(message)


def _cut_in_reasoning(recorded: Message, thought: str) -> Cut:
    reasoning = reasoning_of(recorded)
    leading = len(reasoning) - len(reasoning.lstrip())
    message: Message = {"role": "assistant", "content": ""}
    message["reasoning_content"] = reasoning[: leading + len(thought)]
    return Cut(message, in_reasoning=True)


def _same_call(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    one, other = theirs["function"], ours["function"]
    if one["name"] != other["name"]:
        return False
    try:
        return _canonical(one.get("arguments")) == _canonical(other.get("arguments"))
    except RecursionError:
        # A thousand brackets in a row: then only the ids tell.
        return False


def _canonical(value: Any) -> bytes:
    """A JSON value's text, with sorted keys and 5000.0 spelled 5000."""
    root = [_DECODE(_ENCODE(value))]
    unread: list[Any] = [root]
    while unread:
        node = unread.pop()
        for key, item in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(item, dict | list):
                unread.append(item)
            elif isinstance(item, float) and item.is_integer():
                node[key] = int(item)
    return _ENCODE(root)
