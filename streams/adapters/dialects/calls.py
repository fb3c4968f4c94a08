"""One model call in the form that every dialect translates into and every answer comes from.

    request ──► Call(messages, tools, ...)         what the agent asks, whatever API it speaks
    answer  ◄── Piece, Piece, ..., Answer          what the model said, as it says it

Messages are plain dictionaries in the form that chat templates read:

    {"role": "system" | "user" | "assistant" | "tool", "content": "text"}
    assistant   + "reasoning_content": "text"
                + "tool_calls": [{"id", "type": "function", "function": {"name", "arguments"}}]
                  arguments: an object; the raw text where it is no JSON object
    tool        + "tool_call_id", "name"

Invariant: what a client sends twice in two spellings of its API is the same `Call`; a dialect
refuses what it cannot carry and never drops it silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from schemas.events import RequestClass

Message = dict[str, Any]
Tool = dict[str, Any]
"""A function as chat templates read it: {"type": "function", "function": {"name", ...}}."""

FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What an agent asks for."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    """Those that stand at the head of the prompt."""
    deferred_tools: tuple[Tool, ...] = ()
    """May be called too; the conversation tells of them where they were found."""
    tool_choice: str = "auto"
    """auto, none, required, or the name of the one function that has to be called."""
    parallel_tool_calls: bool = True
    response_schema: Any = None
    """A JSON schema, or True for any JSON object: the answer is then constrained."""
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    sampling: dict[str, float] = field(default_factory=dict)
    """As asked: temperature, top_p, top_k, min_p, penalties, seed. A train session ignores it."""
    stream: bool = False
    stream_usage: bool = False
    """Whether the stream ends with the token counts."""
    request_class: RequestClass | None = None
    """Where the client tells; else the gateway decides by the shape."""
    agent_id: str | None = None
    placeholders: int = 0
    """Parts that became text, e.g. images."""
    ignored: tuple[str, ...] = ()
    """Fields that ask for something this gateway does not give, by name; to be counted."""
    previous_id: str | None = None
    """The answer that this call goes on from, where only the new messages are sent."""
    head: int = 0
    """How many of the messages stand before the whole conversation, whatever else is sent."""
    carriers: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Texts of ours that came back with a message, by its place: what an API signs or encrypts,
    ids of its items. Those of calls stand in the calls."""
    references: frozenset[int] = frozenset()
    """Places of messages that are not sent but named: their carriers say which answers they are."""

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """All that the model may call."""
        return (*self.tools, *self.deferred_tools)

    @property
    def prefill(self) -> bool:
        """Whether the answer has to go on from the last message."""
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """More of what the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One whole call of a function."""

    index: int
    """Its place among the calls of the answer, from 0."""
    id: str
    """Minted by the gateway; names the turn when the client sends it back."""
    name: str
    arguments: str
    """The JSON text as it was sampled."""


Piece = Reasoning | Text | ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Real counts of tokens."""

    prompt: int
    output: int
    reasoning: int = 0
    reused: int = 0
    """Prompt tokens that stood in a recorded turn; an engine has them in its cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the model said, whole."""

    id: str
    """Minted by the gateway; names the turn."""
    carrier: str = ""
    """Names it too; for what an API lets its server sign or encrypt."""
    model: str
    created_s: int
    reasoning: str = ""
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason
    stop_string: str | None = None
    """The one of the call's that it ends before."""
    ill_formed: bool = False
    """A call could not be read; it stands in the text."""
    usage: Usage


class CallRefused(Exception):
    """A request that cannot be answered; a dialect gives it its API's own shape."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        """Say what is wrong, with what, and what to do."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
