"""What adapters publish to `turnstream.turns`, keyed by session.

A session starts with `session_opened`, a self-contained turn or `session_ended`. Turns may be
written in delta form: with `base_turn_id` the two prompt fields hold only what follows the
kept part of the base turn.

    base turn   prompt p p p p   output r r
    this turn   kept_ids = 6     prompt_ids = t t      whole prompt: p p p p r r t t

Invariant: an event says what happened, never what follows from it; rules live in the core.
"""

from typing import Annotated, Any, Literal

import msgspec

from schemas.record import (
    NOT_GIVEN,
    Count,
    Floats,
    Identified,
    Ids,
    Int64,
    Name,
    Octets,
    Record,
    SessionId,
)

EndStatus = Literal[
    "completed",
    "truncated",
    "parse_error",
    "timeout",
    "error",
    "interrupted",
    "closed",
    "cancelled",
    "expired",
    "rejected",
]
RequestClass = Literal["main", "subagent", "compaction", "auxiliary"]
ExpiryCause = Literal["idle", "hard_limit", "reward_grace"]
RewardOrigin = Literal["given", "judged"]
"""Judged: a reward function's answer, which replaces no reward that somebody gave."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a turn was sampled, or how a session's turns are pinned to be."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    constraint: str | None = None
    """Set when the sampled distribution was cut (schema, forced tool, truncating sampler)."""
    logprobs: Literal["processed", "raw"] | None = None


class Channel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Extra data per sampled token: bytes beside the ids, or a reference to a blob."""

    dtype: Literal["int8", "int16", "int32", "int64", "uint8", "float16", "float32", "bool"]
    shape: list[Count]
    """The first dimension is the number of sampled tokens."""
    data: Octets | None = None
    blob: str | None = None
    digest: Octets | None = None
    length: Count | None = None


class EndReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a session ended the way it did; free text, never compared in code."""

    stage: str | None = None
    category: str | None = None
    type: str | None = None
    message: str | None = None
    retryable: bool | None = None


class SessionOpened(Identified, frozen=True, kw_only=True, tag="session_opened"):
    """An agent run begins."""

    sampling: Sampling | None = None
    budgets: dict[str, Count] | None = None
    policy: str | dict[str, Any] | None = None
    """A profile's name, or a table: `profile` and the fields that differ from it."""
    fingerprint: str | None = None
    metadata: msgspec.Raw = NOT_GIVEN
    """Opaque; reaches outcome, trace and judger whole."""
    reward_pending: bool | None = None
    """For a `session_ended` that does not say it, also one by the time limit: see there."""


class Turn(Identified, frozen=True, kw_only=True, tag="turn"):
    """One model call, exactly as the model saw and sampled it."""

    turn_id: Name
    prompt_messages: tuple[msgspec.Raw, ...]
    """Each message as JSON text; echoed assistant messages in the form that was recorded."""
    prompt_ids: Ids
    output_ids: Ids
    logprobs: Floats | None = None
    """As long as `output_ids`, or not given."""
    response_message: msgspec.Raw = NOT_GIVEN
    source: Name | None = None
    """One process start of an adapter."""
    seq: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None
    """From 1, per source and session, given when the turn is handed to the log."""
    prev: Int64 | None = None
    """Log position of the session's newest acknowledged turn when this one was asked, if known."""
    request_class: RequestClass | None = None
    class_by_shape: bool = False
    """The class is an adapter's guess; a turn that a later one extends was no side call."""
    agent_id: str | None = None
    model: str | None = None
    weight_versions: list[tuple[Int64, Count]] | None = None
    """Runs `[version, tokens]` over the output; a version grows within a run.

    -1 is unknown, and older than every other. None at all: the run has no versions."""
    weight_label: str | None = None
    """The engine's own name for the weights."""
    continued_at: list[tuple[Count, bool | None]] | None = None
    """`[place, cache_flushed]` inside the output: the engine stopped there and was asked again, and
    whether its cache was emptied meanwhile; null if no update was declared meanwhile."""
    cache_flushed: bool | None = None
    """Whether the last declared update before the turn's end emptied the engine's cache."""
    finish_reason: str | None = None
    sampling: Sampling | None = None
    untrained_runs: list[tuple[Count, Count, str]] | None = None
    """`[start, end, reason]` inside the output: forced or repaired tokens."""
    ill_formed: bool = False
    trainable: bool = True
    delivered: bool = True
    part_of: Name | None = None
    """The turn that this is the beginning of: what the client kept of its answer."""
    tools: msgspec.Raw = NOT_GIVEN
    tools_digest: str | None = None
    fingerprint: str | None = None
    prompt_built: Literal["reuse", "bridge", "suffix", "render"] | None = None
    channels: dict[str, Channel] | None = None
    reward: float | dict[str, Any] | None = None
    reward_invalid: bool = False
    """A reward was given, but it was not a finite number."""
    reward_origin: RewardOrigin = "given"
    raw_prompt: str | None = None
    started_ms: Int64 | None = None
    finished_ms: Int64 | None = None
    base_turn_id: Name | None = None
    kept_messages: Count | None = None
    kept_ids: Count | None = None
    prompt_digest: Octets | None = None
    """blake2b, 16 bytes, over the whole prompt's ids as little-endian int32."""


class TurnUndelivered(Record, frozen=True, kw_only=True, tag="turn_undelivered"):
    """The client never got this turn, or a twin of it was extended instead."""

    session_id: SessionId
    turn_id: Name | None = None
    source: Name | None = None
    seq: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None


class Reward(Record, frozen=True, kw_only=True, tag="reward"):
    """A score for the session, or for one turn of it."""

    session_id: SessionId
    reward_id: Name | None = None
    """A repeat changes nothing, another id replaces. Not given: each event is its own."""
    origin: RewardOrigin = "given"
    turn_id: Name | None = None
    reward: float | dict[str, Any] | None = None
    """A number, or a payload whose `score` is one."""
    reward_invalid: bool = False
    final: bool = True
    judged_ms: Count | None = None
    """How long whoever gave the reward took over it."""


class SessionEnded(Identified, frozen=True, kw_only=True, tag="session_ended"):
    """Whoever runs the agent says how it ended; the core never changes the status."""

    end_status: EndStatus
    reason: EndReason | None = None
    finish_reason: str | None = None
    reward: float | dict[str, Any] | None = None
    reward_invalid: bool = False
    reward_origin: RewardOrigin = "given"
    reward_pending: bool | None = None
    """Whether the close waits for a reward. Not given: as `session_opened` says; else true when
    the status trains, is not `timeout`, and no final session reward is known."""
    judged_ms: Count | None = None
    """As in `reward`; of the reward given here."""
    accepted: bool = True
    will_retry: bool = False
    turns: dict[str, Count] | None = None
    """The last `seq` of each source; fewer turns than that is a gap."""
    final_message: msgspec.Raw = NOT_GIVEN


class SessionExpired(Record, frozen=True, kw_only=True, tag="session_expired"):
    """The processor's sweep found a session silent; ignored if anything newer came."""

    session_id: SessionId
    cause: ExpiryCause | None = None
    last_offset: Int64 | None = None


class Purge(Record, frozen=True, kw_only=True, tag="purge"):
    """Nothing below `floor` is processed or kept in this partition any more."""

    floor: Count


Event = SessionOpened | Turn | TurnUndelivered | Reward | SessionEnded | SessionExpired | Purge
EVENT_TYPES: tuple[type[Record], ...] = (
    SessionOpened,
    Turn,
    TurnUndelivered,
    Reward,
    SessionEnded,
    SessionExpired,
    Purge,
)
