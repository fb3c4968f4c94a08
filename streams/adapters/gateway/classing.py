"""Who calls: the main agent, a sub-agent, a compaction, a side call. Only a client knows.

What is told decides whether a side call trains, so it is taken from headers that say it outright
and never guessed from the shape of a request: a wrong guess would leave sampled tokens out.

    x-turnstream-request-class, x-turnstream-agent-id     for whoever writes the agent
    x-claude-code-request-class, x-claude-code-agent-id   Claude Code, with its hint headers
    x-parent-session-id, x-session-id                     opencode's sub-agents

Invariant: a call whose client does not tell has no class.
"""

import dataclasses
from collections.abc import Mapping
from typing import cast, get_args

from schemas.events import RequestClass
from streams.adapters.dialects.calls import Call

_AGENT_LENGTH_MAX = 200
_CLASSES = frozenset(get_args(RequestClass))


def told(call: Call, headers: Mapping[str, str]) -> Call:
    """The call with what its headers say."""
    named = _first(headers, "x-turnstream-request-class", "x-claude-code-request-class")
    agent = _first(headers, "x-turnstream-agent-id", "x-claude-code-agent-id")
    if agent is None and headers.get("x-parent-session-id"):
        agent = _first(headers, "x-session-id")
    if named is None and agent is None:
        return call
    request_class = cast(RequestClass, named) if named in _CLASSES else None
    return dataclasses.replace(
        call,
        request_class=request_class or call.request_class or ("subagent" if agent else None),
        agent_id=agent or call.agent_id,
    )


def _first(headers: Mapping[str, str], *names: str) -> str | None:
    found = (headers.get(name, "").strip() for name in names)
    text = next((text for text in found if text), None)
    # Bytes that are no UTF-8 arrive as lone surrogates, which no record can hold.
    return text if text and len(text) <= _AGENT_LENGTH_MAX and text.isprintable() else None
