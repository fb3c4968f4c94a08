"""The readable record of a closed session, on `turnstream.traces`, keyed by session.

Messages shared by several branches stand once; each names the message before it, so a branch is
the walk from its last message back to a root. What is the session's stands once, beside them.
Lengths and versions are those of the samples: one definition, whoever shows them.

Invariant: a trace holds event times only, so replaying a session writes the same trace.
"""

import msgspec

from schemas.events import EndReason, EndStatus, RequestClass
from schemas.record import NOT_GIVEN, Count, Identified, Int64, Name, Record
from schemas.samples import Attach, WithheldReason


class TraceTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model call as a person reads it."""

    turn_id: Name
    message: Count | None = None
    """Index of its response in `messages`; none if a client's rewrite took its place."""
    attach: Attach | None = None
    request_class: RequestClass | None = None
    agent_id: str | None = None
    part_of: Name | None = None
    """No call of its own: the part of that turn's answer which the client kept."""
    ill_formed: bool = False
    finish_reason: str | None = None
    """As the engine said it."""
    reward: float | None = None
    prompt_len: Count = 0
    """Of this call alone: tokens of its prompt; `response_len`: sampled ones."""
    response_len: Count = 0
    trained: Count = 0
    weight_versions: list[tuple[Int64, Count]] | None = None
    """Runs `[version, tokens]` over the response."""
    started_ms: Int64 | None = None
    finished_ms: Int64 | None = None
    raw_prompt: str | None = None
    """The prompt as text, as it was rendered; only on the first turn of a root."""


class TraceSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The numbers of one sample, by the sample's own definitions.

    Where a session gives none (eval, a failure), those of the samples it would have given.
    """

    turn_id: Name
    """Its last turn: the sample's tokens are that turn's whole prompt and response."""
    prompt_len: Count
    """Index of the first trained token."""
    response_len: Count
    """The tokens from there on."""
    trained: Count
    sample_id: str | None = None
    """None: it was not sent."""
    reward: float | None = None
    """Its share by policy."""
    weight_versions: list[tuple[Int64, Count]] | None = None
    """Runs `[version, tokens]` over trained tokens only: the first and the last are the range."""


class Trace(Identified, frozen=True, kw_only=True, tag="trace"):
    """Messages, rewards, status and lengths of one session."""

    end_status: EndStatus
    messages: msgspec.Raw
    """A JSON list; each message once, as it was recorded."""
    parents: list[Int64]
    """For each message the index of the one before it; -1 at a root."""
    turns: list[TraceTurn]
    """In order of arrival."""
    samples: list[TraceSample] = msgspec.field(default_factory=list)
    metadata: msgspec.Raw = NOT_GIVEN
    tools: msgspec.Raw = NOT_GIVEN
    final_message: msgspec.Raw = NOT_GIVEN
    """What the session's end gave as such."""
    reward: float | None = None
    """The session's score."""
    reward_payload: msgspec.Raw = NOT_GIVEN
    """The score under `score`, and what was given beside it."""
    reward_invalid: bool = False
    accepted: bool = True
    will_retry: bool = False
    withheld: WithheldReason | None = None
    """Why the session gave no sample, if one reason covers it."""
    reason: EndReason | None = None
    finish_reason: str | None = None
    """Of the whole session, as whoever ended it said."""
    policy: str | None = None
    tool_turns: Count = 0
    """Calls whose response has tool calls."""
    generated: Count = 0
    trained: Count = 0
    gaps: Count = 0
    generate_ms: Count | None = None
    """Model calls, summed; calls side by side count each."""
    tool_ms: Count | None = None
    """From a response to the first call that goes on from it, and steps without a call, summed:
    tools, environments, people."""
    reward_ms: Count | None = None
    """What the judging took, as the rewards said."""
    messages_left_out: Count = 0
    """The messages were too large to be kept here; so many."""
    untrained: dict[str, Count] = msgspec.field(default_factory=dict)


TRACE_TYPES: tuple[type[Record], ...] = (Trace,)
