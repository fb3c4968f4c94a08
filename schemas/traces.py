"""The readable record of a closed session, on `turnstream.traces`, keyed by session.

Messages shared by several branches stand once; each names the message before it, so a branch is
the walk from its last message back to a root. A trace holds event times only, so replaying a
session writes the same trace.
"""

import msgspec

from schemas.events import EndReason, EndStatus
from schemas.record import NOT_GIVEN, Count, Identified, Int64, Name, Record


class TraceTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model call as a person reads it."""

    turn_id: Name
    message: Count | None = None
    """Index of its response in `messages`."""
    finish_reason: str | None = None
    reward: float | None = None
    prompt_len: Count = 0
    response_len: Count = 0
    weight_versions: list[tuple[Int64, Count]] | None = None
    started_ms: Int64 | None = None
    finished_ms: Int64 | None = None
    raw_prompt: str | None = None
    """Only on the first turn of a root."""


class Trace(Identified, frozen=True, kw_only=True, tag="trace"):
    """Messages, rewards, status and lengths of one session."""

    end_status: EndStatus
    messages: msgspec.Raw
    """A JSON list; each message once."""
    parents: list[Int64]
    """For each message the index of the one before it; -1 at a root."""
    turns: list[TraceTurn]
    metadata: msgspec.Raw = NOT_GIVEN
    tools: msgspec.Raw = NOT_GIVEN
    reward: float | None = None
    reward_payload: msgspec.Raw = NOT_GIVEN
    reason: EndReason | None = None
    tool_turns: Count = 0
    generated: Count = 0
    trained: Count = 0
    messages_left_out: Count = 0
    """The messages were too large to be kept here; so many."""
    untrained: dict[str, Count] = msgspec.field(default_factory=dict)


TRACE_TYPES: tuple[type[Record], ...] = (Trace,)
