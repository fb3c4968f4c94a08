"""The messages of a Chat Completions request in the form that chat templates read.

    system, developer ──► system, where they stand     user ──► user
    assistant         ──► assistant, with its reasoning and its calls as objects
    tool              ──► tool, with the name of the function that was called

Only what is named in the structs is read: cache marks, ids of parts, annotations and what
providers add are not part of a conversation. Null is the same as not given.

Invariant: two spellings of one conversation give the same messages.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from streams.adapters.dialects.calls import CallRefused, Message
from streams.adapters.dialects.common import (
    AUDIO_OMITTED,
    Content,
    check_nesting,
    flatten,
    joined,
    read_arguments,
    refused,
)


class _CalledFunction(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class _ToolCall(msgspec.Struct):
    id: str | None = None
    type: str | None = None
    function: _CalledFunction | None = None


class GivenMessage(msgspec.Struct):
    """One message as a client spells it."""

    role: str
    content: Content = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_ToolCall] | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    """Another spelling of it; both names are also used for objects, which are not text."""
    audio: Any = None
    function_call: Any = None


def read_messages(given: Sequence[GivenMessage]) -> tuple[tuple[Message, ...], int]:
    """The messages, and how many of their parts are only placeholders in them."""
    if not given:
        raise refused("messages", "is empty; a call needs at least one message")
    messages: list[Message] = []
    names: dict[str, str] = {}
    placeholders = 0
    for index, message in enumerate(given):
        param = f"messages[{index}]"
        match message.role:
            case "system" | "developer":
                carried, omitted = _read_given("system", message, param)
            case "user":
                carried, omitted = _read_given("user", message, param)
            case "assistant":
                carried, omitted = _read_assistant(message, param)
                calls = carried.get("tool_calls", ())
                names.update((call["id"], call["function"]["name"]) for call in calls)
            case "tool":
                carried, omitted = _read_tool_result(message, param, names)
            case _:
                raise _unknown_role(message.role, param)
        messages.append(carried)
        placeholders += omitted
    return tuple(messages), placeholders


def _unknown_role(role: str, param: str) -> CallRefused:
    if role == "function":
        return refused(f"{param}.role", "is 'function', which is not supported; send role 'tool'")
    return refused(
        f"{param}.role",
        f"is {role!r:.80}; it has to be system, developer, user, assistant or tool",
    )


def _read_given(role: str, message: GivenMessage, param: str) -> tuple[Message, int]:
    if message.content is None:
        raise refused(f"{param}.content", "is missing")
    text, omitted = flatten(message.content, f"{param}.content")
    carried: Message = {"role": role, "content": text}
    if message.name:
        carried["name"] = message.name
    return carried, omitted


def _read_assistant(message: GivenMessage, param: str) -> tuple[Message, int]:
    # A name is left out: no answer of ours has one, so it is the client's mark on an echo.
    if message.function_call is not None:
        raise refused(f"{param}.function_call", "is not supported; send `tool_calls`")
    # What one answer said was one text; whoever cut it into parts put nothing between them.
    text, omitted = flatten(message.content, f"{param}.content", between="")
    if message.refusal:
        text = joined((text, message.refusal), "\n")
    if message.audio is not None:
        text, omitted = joined((text, AUDIO_OMITTED), "\n"), omitted + 1
    carried: Message = {"role": "assistant", "content": text}
    for reasoning in (message.reasoning_content, message.reasoning):
        if isinstance(reasoning, str) and reasoning:
            carried["reasoning_content"] = reasoning
            break
    if message.tool_calls:
        carried["tool_calls"] = [
            _read_tool_call(call, f"{param}.tool_calls[{i}]")
            for i, call in enumerate(message.tool_calls)
        ]
    return carried, omitted


def _read_tool_call(call: _ToolCall, param: str) -> dict[str, Any]:
    if call.type not in {None, "function"}:
        raise refused(f"{param}.type", f"is {call.type!r:.80}; only calls of functions are carried")
    if call.function is None:
        raise refused(f"{param}.function", "is missing")
    arguments = call.function.arguments
    if isinstance(arguments, dict):
        check_nesting(arguments, f"{param}.function.arguments")
    function = {"name": call.function.name, "arguments": read_arguments(arguments)}
    return {"id": call.id or "", "type": "function", "function": function}


def _read_tool_result(
    message: GivenMessage, param: str, names: dict[str, str]
) -> tuple[Message, int]:
    if not message.tool_call_id:
        raise refused(f"{param}.tool_call_id", "is missing; it names the call that this answers")
    text, omitted = flatten(message.content, f"{param}.content")
    carried: Message = {"role": "tool", "content": text, "tool_call_id": message.tool_call_id}
    # Most clients leave the function's name out, some templates print it: the call has it.
    name = names.get(message.tool_call_id) or message.name
    if name:
        carried["name"] = name
    return carried, omitted
