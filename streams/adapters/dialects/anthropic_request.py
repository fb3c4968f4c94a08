"""A Messages request as a `Call`: what is carried, what is refused, what has no effect.

    carried      system, messages, tools, tool choice, the format of the answer, stop sequences,
                 limits, sampling, stream
    refused      a thread that the server would hold; compaction by the server; tools that only
                 the vendor's models know
    ignored      what asks for more than the answer (`Call.ignored`), bookkeeping, unknown fields

A client that is refused tries a poorer form of its request at once, with another list of tools,
and stays with it. So nothing is refused that can be done without.

A request is decoded into the structs below; fields that they do not name are not looked at, and
null is the same as not given. A request to count tokens is one without a limit.

A limit of no token asks to read the prompt and to say nothing: a client warms the cache with it.
No engine samples nothing, so one token is sampled, which no client is told of and no training
sees.

Invariant: a field that is known to change how tokens are sampled is carried or refused, never
dropped.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from streams.adapters.dialects.anthropic_blocks import Block
from streams.adapters.dialects.anthropic_messages import GivenMessage, read_messages
from streams.adapters.dialects.anthropic_tools import GivenTool, Tools, read_tools
from streams.adapters.dialects.calls import Answer, Call, CallRefused, Usage
from streams.adapters.dialects.common import (
    Int64,
    NotNegative,
    Share,
    check_nesting,
    read_body,
    read_stops,
    refused,
)


class ThreadRefused(CallRefused):
    """The server holds no threads; clients that see the code go on with whole conversations."""

    error_code = "thread_unsupported_request"

    def __init__(self) -> None:
        """The vendor's code says it, the words are for people."""
        message = "`thread` is not supported; send the whole conversation."
        super().__init__(400, message, code=self.error_code, param="thread")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesCall(Call):
    """A call with what only this API can ask for."""

    warms_up: bool = False
    """Nothing is to be said; the prompt is read, so that the next call finds it in a cache."""


def warms_up(call: Call) -> bool:
    """Whether the answer has to be empty."""
    return isinstance(call, MessagesCall) and call.warms_up


def told(call: Call, answer: Answer) -> Answer:
    """What the client gets of an answer: nothing, if that is what it asked for."""
    if not warms_up(call):
        return answer
    return replace(
        answer,
        reasoning="",
        text="",
        tool_calls=(),
        finish_reason="length",
        stop_string=None,
        usage=Usage(prompt=answer.usage.prompt, output=0, reused=answer.usage.reused),
    )


class _Choice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Format(msgspec.Struct):
    type: str
    schema: dict[str, Any] | None = None


class _OutputConfig(msgspec.Struct):
    format: _Format | None = None
    effort: Any = None
    task_budget: Any = None


class _Request(msgspec.Struct):
    model: str
    messages: list[GivenMessage]
    system: str | list[Block] | None = None
    tools: list[GivenTool] | None = None
    tool_choice: _Choice | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    output_config: _OutputConfig | None = None
    output_format: _Format | None = None
    """What `output_config.format` was called before."""

    temperature: NotNegative | None = None
    top_p: Share | None = None
    top_k: Int64 | None = None

    thread: Any = None
    compaction: Any = None

    thinking: Any = None
    context_management: Any = None
    container: Any = None
    mcp_servers: Any = None


_REQUEST = msgspec.json.Decoder(_Request)

_SAMPLING = ("temperature", "top_p", "top_k")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_WORDS = ("auto", "none", "required")


def read_call(body: bytes) -> MessagesCall:
    """The call that a request's body asks for.

    Raises:
        CallRefused: 400, with the field it is about.
    """
    request = read_body(_REQUEST, body)
    if request.thread is not None:
        raise ThreadRefused
    if request.compaction is not None:
        raise refused("compaction", "is not supported; ask for a summary in a message")
    tools = read_tools(request.tools or ())
    read = read_messages(request.system, request.messages, tools)
    choice, choice_ignored = _read_choice(request.tool_choice, tools)
    given = {name: getattr(request, name) for name in _SAMPLING}
    config = request.output_config or _OutputConfig()
    silent = request.max_tokens == 0
    return MessagesCall(
        model=request.model,
        messages=read.messages,
        tools=tools.head,
        deferred_tools=(*tools.deferred, *read.added_tools),
        tool_choice=choice,
        parallel_tool_calls=not (
            request.tool_choice and request.tool_choice.disable_parallel_tool_use
        ),
        response_schema=_read_format(config.format or request.output_format),
        stop=read_stops(request.stop_sequences or (), "stop_sequences"),
        max_tokens=1 if silent else request.max_tokens,
        sampling={name: value for name, value in given.items() if value is not None},
        stream=request.stream is True,
        stream_usage=request.stream is True,
        placeholders=read.placeholders,
        ignored=_ignored(request, config, tools, choice_ignored=choice_ignored),
        carriers=read.carriers,
        request_class="auxiliary" if silent else None,
        warms_up=silent,
    )


def _read_choice(choice: _Choice | None, tools: Tools) -> tuple[str, bool]:
    """Which tool has to be called, and whether that is not what was asked.

    It is not where only the vendor could run the tool, or where the kind of choice is not known.
    """
    every = (*tools.head, *tools.deferred)
    if choice is None:
        return "auto", False
    if choice.type in _CHOICES:
        if choice.type == "any" and not every:
            if not tools.left_out:
                raise refused("tool_choice.type", "is 'any', but there are no `tools`")
            return "auto", True
        return (_CHOICES[choice.type] if every else "auto"), False
    if choice.type != "tool":
        return "auto", True
    if not choice.name:
        raise refused("tool_choice.name", "is missing")
    if choice.name in tools.left_out:
        return "auto", True
    if tools.named(choice.name) is None:
        raise refused("tool_choice.name", f"is {choice.name!r:.80}, which is not in `tools`")
    if choice.name in _WORDS:
        why = f"is {choice.name!r}, a word with another meaning here"
        raise refused("tool_choice.name", why)
    return choice.name, False


def _read_format(format_: _Format | None) -> dict[str, Any] | bool | None:
    if format_ is None:
        return None
    if format_.type != "json_schema":
        raise refused("output_config.format.type", "has to be json_schema")
    if format_.schema is None:
        return True
    check_nesting(format_.schema, "output_config.format.schema")
    return format_.schema


def _ignored(
    request: _Request, config: _OutputConfig, tools: Tools, *, choice_ignored: bool
) -> tuple[str, ...]:
    asked = {
        "container": request.container,
        "context_management": _edits(request.context_management),
        "effort": config.effort,
        "mcp_servers": request.mcp_servers,
        "task_budget": config.task_budget,
        "thinking": _unthinking(request.thinking),
        "tool_choice": choice_ignored,
        "tools": tools.left_out,
    }
    return tuple(name for name, value in asked.items() if value)


def _edits(management: Any) -> bool:
    """Whether the client wants its history changed; to keep all thinking is what is done."""
    edits = management.get("edits") if isinstance(management, dict) else None
    return isinstance(edits, list) and any(
        not (isinstance(edit, dict) and edit.get("keep") == "all") for edit in edits
    )


def _unthinking(thinking: Any) -> bool:
    """Whether the model is asked not to think, or less often than it does."""
    asked = thinking.get("type") if isinstance(thinking, dict) else None
    return asked in ("disabled", "between_tools")
