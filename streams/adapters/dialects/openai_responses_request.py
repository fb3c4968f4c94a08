"""A Responses request as a `Call`: what is carried, what is refused, what has no effect.

    carried      instructions, items, tools, tool choice, text format, limits, sampling, stream,
                 the answer it goes on from
    refused      what is kept or run elsewhere: conversations, stored prompts, background runs;
                 what bends the sampling in a way that a turn has no field for
    ignored      what asks for more than the answer (`Call.ignored`), bookkeeping, unknown fields

With `previous_response_id` only what is new is sent, and the instructions once more: they come
first in the messages, and whoever walks on from that answer finds them at its head already.

Invariant: a field that is known to change how tokens are sampled is carried or refused, never
dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from streams.adapters.dialects.calls import Call, CallRefused
from streams.adapters.dialects.common import Tokens, check_nesting, read_body, refused, to_json
from streams.adapters.dialects.openai_responses_choice import GivenChoice, read_tool_choice
from streams.adapters.dialects.openai_responses_given import GivenItem
from streams.adapters.dialects.openai_responses_items import Reader
from streams.adapters.dialects.openai_responses_odd import read_odd
from streams.adapters.dialects.openai_responses_tools import GivenTool, Spelling, Tools
from streams.adapters.dialects.openai_sampling import SamplingFields, read_sampling, read_stop


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesCall(Call):
    """A call with what its answer repeats of the request."""

    spellings: Mapping[str, Spelling] = field(compare=False)
    """How the client calls its tools, by the names of the functions."""
    echo: bytes = field(compare=False)
    """Fields of the request that stand on its response, as one JSON object."""


class _Format(msgspec.Struct):
    type: str
    schema: dict[str, Any] | None = None


class _Text(msgspec.Struct):
    format: _Format | None = None
    verbosity: Any = None


class _Reasoning(msgspec.Struct):
    effort: Any = None


class _Request(SamplingFields, kw_only=True):
    model: str = ""
    input: str | list[GivenItem] | None = None
    instructions: str | None = None
    tools: list[GivenTool] | None = None
    tool_choice: str | GivenChoice | None = None
    parallel_tool_calls: bool | None = None
    text: _Text | None = None
    max_output_tokens: Tokens | None = None
    previous_response_id: str | None = None
    reasoning: _Reasoning | None = None
    include: list[str] | None = None
    truncation: str | None = None
    stream: bool | None = None

    background: Any = None
    conversation: Any = None
    prompt: Any = None

    context_management: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    top_logprobs: Any = None


class _OddRequest(_Request, kw_only=True):
    """One whose items do not all fit."""

    input: Any = None


class _Echo(msgspec.Struct):
    """What a response repeats of its request, as it was sent."""

    instructions: Any = None
    max_output_tokens: Any = None
    max_tool_calls: Any = None
    metadata: Any = None
    parallel_tool_calls: Any = None
    previous_response_id: Any = None
    prompt_cache_key: Any = None
    reasoning: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    temperature: Any = None
    text: Any = None
    tool_choice: Any = None
    tools: Any = None
    top_logprobs: Any = None
    top_p: Any = None
    truncation: Any = None
    user: Any = None


class _WholeItems(msgspec.Struct):
    input: list[dict[str, Any]]


_REQUEST = msgspec.json.Decoder(_Request)
_ODD_REQUEST = msgspec.json.Decoder(_OddRequest)
_ECHO = msgspec.json.Decoder(_Echo)
_WHOLE_ITEMS = msgspec.json.Decoder(_WholeItems)

# Where a field may not be null on a response, what it is if the request does not say.
_ECHO_DEFAULTS: dict[str, Any] = {
    "metadata": {},
    "parallel_tool_calls": True,
    "store": True,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
}
_ENCRYPTED_REASONING = "reasoning.encrypted_content"
_NO_EFFECT = ("context_management", "max_tool_calls", "moderation", "top_logprobs")


def read_call(body: bytes) -> ResponsesCall:
    """The call that a request's body asks for.

    Raises:
        CallRefused: 400, with the field it is about.
    """
    request = _read_request(body)
    _refuse_what_is_not_carried(request)
    sampling = read_sampling(request)
    tools = Tools()
    tools.add(request.tools or (), "tools")
    whole = cache(lambda: read_body(_WHOLE_ITEMS, body).input)
    reader = Reader(tools, lambda index: whole()[index])
    if request.instructions:
        reader.say("system", request.instructions)
    if isinstance(request.input, str):
        reader.say("user", request.input)
    elif request.input:
        reader.read(request.input)
    else:
        raise refused("input", "is empty; a call needs at least one item")
    choice, choice_ignored = read_tool_choice(request.tool_choice, tools)
    return ResponsesCall(
        model=request.model,
        messages=tuple(reader.messages),
        tools=tuple(tools.head),
        deferred_tools=tuple(tools.deferred),
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        response_schema=_read_format(request.text.format if request.text else None),
        stop=read_stop(request),
        max_tokens=request.max_output_tokens,
        sampling=sampling,
        stream=request.stream is True,
        stream_usage=True,
        placeholders=reader.placeholders,
        ignored=(*_ignored(request), *dict.fromkeys(tools.ignored), *choice_ignored),
        previous_id=request.previous_response_id or None,
        head=1 if request.instructions else 0,
        carriers=reader.carriers,
        references=frozenset(reader.references),
        spellings=tools.spellings,
        echo=_echo(body),
    )


def _read_request(body: bytes) -> _Request:
    try:
        return read_body(_REQUEST, body)
    except CallRefused as refusal:
        if not (refusal.param or "").startswith("input["):
            raise
    request = read_body(_ODD_REQUEST, body)
    request.input = read_odd(request.input)
    return request


def _refuse_what_is_not_carried(request: _Request) -> None:
    if request.background:
        raise refused("background", "is not supported; wait for the answer, or stream it")
    if request.conversation is not None:
        raise refused("conversation", "is not kept here; send the items, or `previous_response_id`")
    if request.prompt is not None:
        raise refused("prompt", "is not kept here; send `instructions` and `input`")


def _ignored(request: _Request) -> list[str]:
    asked = {
        **{name: getattr(request, name) for name in _NO_EFFECT},
        "include": set(request.include or ()) - {_ENCRYPTED_REASONING},
        "reasoning_effort": request.reasoning and request.reasoning.effort,
        "truncation": request.truncation not in {None, "disabled"},
        "verbosity": request.text and request.text.verbosity,
    }
    return [name for name, value in asked.items() if value]


def spellings_of(call: Call) -> Mapping[str, Spelling]:
    """How a client calls its tools."""
    return call.spellings if isinstance(call, ResponsesCall) else {}


def echo_of(call: Call) -> bytes:
    """What a response repeats of its request."""
    return call.echo if isinstance(call, ResponsesCall) else _echo(b"{}")


def _echo(body: bytes) -> bytes:
    given = msgspec.structs.asdict(read_body(_ECHO, body))
    for name, value in given.items():
        if value is None:
            given[name] = _ECHO_DEFAULTS.get(name)
        elif isinstance(value, dict | list):
            check_nesting(value, name)
    return to_json(given | {"background": False})


def _read_format(format_: _Format | None) -> dict[str, Any] | bool | None:
    if format_ is None or format_.type == "text":
        return None
    if format_.type == "json_object":
        return True
    if format_.type != "json_schema":
        raise refused("text.format.type", "has to be text, json_object or json_schema")
    if format_.schema is None:
        return True
    check_nesting(format_.schema, "text.format.schema")
    return format_.schema
