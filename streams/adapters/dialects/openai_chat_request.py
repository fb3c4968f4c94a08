"""A Chat Completions request as a `Call`: what is carried, what is refused, what has no effect.

    carried      messages, tools, tool choice, response format, stop, limits, sampling, stream
    refused      what bends the sampling in a way that a turn has no field for; tools that are no
                 functions; more than one choice; the forms that `tools` replaced
    ignored      what asks for more than the answer (`Call.ignored`), bookkeeping, unknown fields

A request is decoded into the structs below; fields that they do not name are not looked at, and
null is the same as not given.

Invariant: a field that is known to change how tokens are sampled is carried or refused, never
dropped.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from streams.adapters.dialects.calls import Call, Tool
from streams.adapters.dialects.common import Tokens, check_nesting, read_body, refused
from streams.adapters.dialects.openai_chat_messages import GivenMessage, read_messages
from streams.adapters.dialects.openai_sampling import SamplingFields, read_sampling, read_stop


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    type: str | None = None
    function: _Function | None = None


class _Named(msgspec.Struct):
    name: str


class _Choice(msgspec.Struct):
    type: str | None = None
    function: _Named | None = None


class _JsonSchema(msgspec.Struct):
    schema: dict[str, Any] | None = None


class _ResponseFormat(msgspec.Struct):
    type: str
    json_schema: _JsonSchema | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Request(SamplingFields, kw_only=True):
    model: str
    messages: list[GivenMessage]
    tools: list[_Tool] | None = None
    tool_choice: str | _Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: _ResponseFormat | None = None
    max_completion_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None

    functions: Any = None
    function_call: Any = None

    audio: Any = None
    chat_template_kwargs: Any = None
    logprobs: Any = None
    reasoning_effort: Any = None
    top_logprobs: Any = None
    verbosity: Any = None
    web_search_options: Any = None


_REQUEST = msgspec.json.Decoder(_Request)

_NO_EFFECT = (
    "audio",
    "chat_template_kwargs",
    "logprobs",
    "reasoning_effort",
    "top_logprobs",
    "verbosity",
    "web_search_options",
)
_TOOL_CHOICES = ("auto", "none", "required")


def read_call(body: bytes) -> Call:
    """The call that a request's body asks for.

    Raises:
        CallRefused: 400, with the field it is about.
    """
    request = read_body(_REQUEST, body)
    _refuse_what_is_not_carried(request)
    sampling = read_sampling(request)
    messages, placeholders = read_messages(request.messages)
    tools = tuple(_read_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ()))
    return Call(
        model=request.model,
        messages=messages,
        tools=tools,
        tool_choice=_read_tool_choice(request.tool_choice, tools),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        response_schema=_read_response_format(request.response_format),
        stop=read_stop(request),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        sampling=sampling,
        stream=request.stream is True,
        stream_usage=request.stream_options is not None
        and request.stream_options.include_usage is True,
        placeholders=placeholders,
        ignored=tuple(name for name in _NO_EFFECT if getattr(request, name)),
    )


def _refuse_what_is_not_carried(request: _Request) -> None:
    if request.n not in {None, 1}:
        raise refused("n", "is not 1; each call has one answer: send the request again for more")
    if request.functions:
        raise refused("functions", "is not supported; send `tools`")
    if request.function_call not in (None, "auto", "none"):
        raise refused("function_call", "is not supported; send `tool_choice`")


def _read_tool(tool: _Tool, param: str) -> Tool:
    if tool.type not in {None, "function"}:
        raise refused(f"{param}.type", f"is {tool.type!r:.80}; only functions can be called here")
    if tool.function is None:
        raise refused(f"{param}.function", "is missing")
    if not tool.function.name:
        raise refused(f"{param}.function.name", "is empty")
    function: dict[str, Any] = {"name": tool.function.name}
    if tool.function.description is not None:
        function["description"] = tool.function.description
    if tool.function.parameters is not None:
        check_nesting(tool.function.parameters, f"{param}.function.parameters")
        function["parameters"] = tool.function.parameters
    return {"type": "function", "function": function}


def _read_tool_choice(choice: str | _Choice | None, tools: Sequence[Tool]) -> str:
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice not in _TOOL_CHOICES:
            raise refused("tool_choice", "has to be auto, none, required or name a function")
        if choice == "required" and not tools:
            raise refused("tool_choice", "is 'required', but there are no `tools`")
        return choice if tools else "auto"
    if choice.type not in {None, "function"}:
        why = f"is {choice.type!r:.80}; it has to be 'function', or leave `tool_choice` a word"
        raise refused("tool_choice.type", why)
    if choice.function is None:
        raise refused("tool_choice.function", "is missing")
    name = choice.function.name
    if name in _TOOL_CHOICES:
        raise refused("tool_choice.function.name", f"is {name!r}, a word with another meaning here")
    if all(tool["function"]["name"] != name for tool in tools):
        raise refused("tool_choice.function.name", f"is {name!r:.80}, which is not in `tools`")
    return name


def _read_response_format(format_: _ResponseFormat | None) -> dict[str, Any] | bool | None:
    if format_ is None or format_.type == "text":
        return None
    if format_.type == "json_object":
        return True
    if format_.type != "json_schema":
        raise refused("response_format.type", "has to be text, json_object or json_schema")
    if format_.json_schema is None:
        raise refused("response_format.json_schema", "is missing")
    schema = format_.json_schema.schema
    if schema is None:
        return True
    check_nesting(schema, "response_format.json_schema.schema")
    return schema
