"""Who calls: the main agent, a sub-agent, a compaction, a side call.

What is found decides whether a call trains, so a client's own word comes first, and the shape of
a request only tells what it can hardly be mistaken in: a wrong guess leaves sampled tokens out.

    x-turnstream-request-class, x-turnstream-agent-id     for whoever writes the agent
    x-claude-code-request-class, x-claude-code-agent-id   Claude Code; the class with hint headers
    x-codex-turn-metadata, x-openai-subagent, thread-id   Codex
    x-parent-session-id, x-session-id                     opencode's sub-agents

    by its shape a side call, in a session that works with tools: no tools, no history, and
        a model that nothing else in the session works with     a title, a commit message
        or an answer of one token                               a probe

Invariant: a call whose client does not tell, and whose shape fits an agent's, has no class.
"""

import dataclasses
from collections.abc import Mapping
from typing import cast, get_args

import msgspec

from schemas.events import RequestClass
from streams.adapters.dialects.calls import Call

_WORD_LENGTH_MAX = 200
_METADATA_LENGTH_MAX = 16_384
_CLASSES = frozenset(get_args(RequestClass))


class _CodexTurn(msgspec.Struct):
    request_kind: str | None = None


_CODEX_TURN = msgspec.json.Decoder(_CodexTurn)


def told(call: Call, headers: Mapping[str, str]) -> Call:
    """The call with what its headers say."""
    named = _first(headers, "x-turnstream-request-class", "x-claude-code-request-class")
    if named is None:
        named = _codex_kind(headers)
    agent = _first(headers, "x-turnstream-agent-id", "x-claude-code-agent-id")
    if agent is None and "x-parent-session-id" in headers:
        agent = _first(headers, "x-session-id")
    if agent is None and "x-openai-subagent" in headers:
        agent = _first(headers, "thread-id")
    if named is None and agent is None:
        return call
    request_class = cast(RequestClass, named) if named in _CLASSES else None
    return dataclasses.replace(
        call,
        request_class=request_class or call.request_class or ("subagent" if agent else None),
        agent_id=agent or call.agent_id,
    )


class Work:
    """What a session's agents work with, as far as it is known."""

    def __init__(self) -> None:
        """No call was made."""
        self._models: set[str] = set()
        self._tools = False

    def add(self, model: str, *, tools: bool) -> None:
        """A step of an agent: a call that offers tools, or goes on from an answer."""
        self._models.add(model)
        self._tools |= tools

    def hear(self, call: Call) -> None:
        """A call is made."""
        if _offers_tools(call) or _goes_on(call):
            self.add(call.model, tools=_offers_tools(call))

    def aside(self, call: Call) -> bool:
        """Whether the shape of a call is a side call's."""
        if call.request_class is not None or _offers_tools(call) or _goes_on(call):
            return False
        return self._tools and (call.model not in self._models or call.max_tokens == 1)


def _offers_tools(call: Call) -> bool:
    """Also those that are left out, because only a server could run them."""
    return bool(call.callable_tools) or any(name.startswith("tools") for name in call.ignored)


def _goes_on(call: Call) -> bool:
    said = any(message["role"] == "assistant" for message in call.messages)
    return said or call.previous_id is not None


def _codex_kind(headers: Mapping[str, str]) -> str | None:
    text = headers.get("x-codex-turn-metadata", "")
    if not text or len(text) > _METADATA_LENGTH_MAX:
        return None
    try:
        # Of a sub-agent's turn the other headers tell more.
        kind = _CODEX_TURN.decode(text.encode(errors="replace")).request_kind
    except ValueError:
        return None
    return "compaction" if kind == "compaction" else None


def _first(headers: Mapping[str, str], *names: str) -> str | None:
    found = (headers.get(name, "").strip() for name in names)
    text = next((text for text in found if text), None)
    # Bytes that are no UTF-8 arrive as lone surrogates, which no record can hold.
    return text if text and len(text) <= _WORD_LENGTH_MAX and text.isprintable() else None
