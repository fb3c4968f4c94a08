"""What the trainer reads from `turnstream.samples`, keyed by group, else by session.

A session's samples come in `index` order, then its one `session_closed`, which lists them: a
consumer releases only the samples the outcome lists. A later reward arrives as
`sample_revised`; the largest revision wins.

Invariant: in every ledger row `generated` = `trained` + the sum of `untrained`.
"""

from typing import Literal

import msgspec

from schemas.events import Channel, EndReason, EndStatus, Sampling
from schemas.record import (
    NOT_GIVEN,
    Count,
    Floats,
    Identified,
    Ids,
    Int64,
    Name,
    Record,
    SessionId,
)

Attach = Literal["root", "extend", "realign", "fork"]
UntrainedReason = Literal[
    "rejected",
    "eval",
    "status",
    "no_reward",
    "gap",
    "undelivered",
    "not_trainable",
    "constrained",
    "auxiliary",
    "ill_formed",
    "forced",
    "retry_orphan",
    "merged",
    "realigned",
    "oversize",
]
"""Closed, in order of precedence: a token is counted under the first that holds."""
WithheldReason = Literal["rejected", "eval", "status", "no_reward", "gap", "core_failure"]


class TurnSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where a turn's sampled tokens stand in a sample, trained here or not."""

    turn_id: Name
    start: Count
    end: Count
    attach: Attach
    sampling: Sampling | None = None
    continued_at: list[tuple[Count, bool | None]] | None = None
    """As in the turn; a place counts from `start`."""
    cache_flushed: bool | None = None


class ChannelBlob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows of a channel that lie in a blob."""

    name: str
    start: Count
    """Its first row is of this token; rows that would stand behind `end` are not of this sample."""
    end: Count
    channel: Channel


class Sample(Identified, frozen=True, kw_only=True, tag="sample"):
    """One contiguous token sequence with its loss mask."""

    sample_id: str
    """Hex blake2b-16 over msgpack `[session_id, policy, last turn_id]`: replay gives it again."""
    index: Count
    count: Count
    tokens: Ids
    prompt_len: Count
    """Index of the first trained token; one definition, everywhere."""
    loss_mask: list[tuple[Count, Count]]
    """Trained runs `[start, end)`, sorted, maximal."""
    logprobs: Floats
    """Full length; 0.0 where untrained."""
    reward: float | None
    """This sample's share by policy."""
    session_reward: float | None
    """The session's raw score, the only basis for a baseline."""
    policy: str
    revision: Count
    rollout_id: SessionId | None = None
    logprobs_missing: list[tuple[Count, Count]] | None = None
    """Trained, but the engine gave no logprob."""
    reward_payload: msgspec.Raw = NOT_GIVEN
    turn_rewards: dict[str, float] | None = None
    weight_versions: list[tuple[Int64, Count, Count]] | None = None
    """Runs `[version, start, end)` over trained tokens only; -1 is unknown, older than all."""
    turns: list[TurnSpan] = msgspec.field(default_factory=list)
    channels: dict[str, Channel] | None = None
    """Over all tokens; zero where nothing was sampled, and where the rows lie in a blob."""
    channel_blobs: list[ChannelBlob] | None = None
    channels_missing: Count = 0
    """Turns whose rows of a channel are neither here nor in a blob, or do not fit the others'."""
    end_status: EndStatus | None = None
    truncated: bool = False
    """The branch's last turn stopped by length."""
    use_tool: bool = False
    ill_formed: bool = False
    tool_turns: Count = 0
    """Turns this sample owns whose response calls a tool."""
    generated: Count = 0
    trained: Count = 0

    @property
    def response_len(self) -> int:
        """Tokens from the first trained one on; one definition, everywhere."""
        return self.tokens.size - self.prompt_len


class SampleRevised(Record, frozen=True, kw_only=True, tag="sample_revised"):
    """A later reward for a sample already sent; no tokens again."""

    session_id: SessionId
    sample_id: str
    revision: Count
    """Log position of the reward event; the larger wins."""
    reward: float | None
    session_reward: float | None
    reward_payload: msgspec.Raw = NOT_GIVEN
    turn_rewards: dict[str, float] | None = None


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What became of one turn's sampled tokens."""

    turn_id: Name
    attach: Attach
    generated: Count
    trained: Count
    untrained: dict[UntrainedReason, Count] = msgspec.field(default_factory=dict)


class SessionClosed(Identified, frozen=True, kw_only=True, tag="session_closed"):
    """The outcome: exactly one for every session that ever started."""

    sample_ids: list[str]
    end_status: EndStatus
    policy: str
    turns: Count
    generated: Count
    trained: Count
    ledger: list[LedgerRow]
    withheld: WithheldReason | None = None
    """Why the whole session gave no sample, if one reason covers it."""
    reason: EndReason | None = None
    finish_reason: str | None = None
    accepted: bool = True
    will_retry: bool = False
    reward: float | None = None
    reward_payload: msgspec.Raw = NOT_GIVEN
    reward_invalid: bool = False
    metadata: msgspec.Raw = NOT_GIVEN
    final_message: msgspec.Raw = NOT_GIVEN
    duplicates: Count = 0
    ignored: Count = 0
    refused: Count = 0
    gaps: Count = 0
    lost: Count = 0
    """Turns that were said not to have been delivered and that the log never had."""
    implied_end: bool = False
    ledger_omitted: Count = 0
    """So many turns have no row in `ledger`, which would not fit; none of them trained, and their
    tokens are in `generated`."""


SAMPLE_TYPES: tuple[type[Record], ...] = (Sample, SampleRevised, SessionClosed)
