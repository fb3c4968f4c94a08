"""A session's samples as one tree of tokens: what several begin with stands once.

    samples   a b c d e          nodes   0: a b c (no parent)      branches   ends at node 1
              a b c x y z                1: d e   (below 0)                   ends at node 2
                                         2: x y z (below 0)

A branch's tokens are those of its nodes from the root down; places in it (`loss_mask`, `turns`,
`weight_versions` ...) count along them, as in the `sample` that it stands for. `logprobs` has the
trained tokens only, run after run of `loss_mask`. Fields that are the session's stand once.

Invariant: a parent stands before its children, no two children of a node begin with the same
token, and every branch ends where a node ends.
"""

from typing import Annotated

import msgspec

from schemas.events import Channel, EndStatus
from schemas.record import (
    NOT_GIVEN,
    Compared,
    Count,
    Floats,
    Identified,
    Ids,
    Int64,
    Record,
    SessionId,
)
from schemas.samples import ChannelBlob, TurnSpan


class PackedNode(Compared, frozen=True, kw_only=True):
    """A run of tokens that belongs to the same branches."""

    parent: Annotated[int, msgspec.Meta(ge=-1)]
    """Its number among the nodes; -1: it begins a branch."""
    tokens: Ids


class PackedBranch(Compared, frozen=True, kw_only=True):
    """One sample, without its tokens."""

    node: Annotated[int, msgspec.Meta(ge=-1)]
    """Where it ends; -1: it has no token."""
    sample_id: str
    index: Count
    prompt_len: Count
    loss_mask: list[tuple[Count, Count]]
    logprobs: Floats
    reward: float | None
    revision: Count
    logprobs_missing: list[tuple[Count, Count]] | None = None
    turn_rewards: dict[str, float] | None = None
    weight_versions: list[tuple[Int64, Count, Count]] | None = None
    turns: list[TurnSpan] = msgspec.field(default_factory=list)
    channels: dict[str, Channel] | None = None
    channel_blobs: list[ChannelBlob] | None = None
    channels_missing: Count = 0
    truncated: bool = False
    use_tool: bool = False
    ill_formed: bool = False
    tool_turns: Count = 0
    generated: Count = 0
    trained: Count = 0


class Packed(Identified, frozen=True, kw_only=True, tag="packed"):
    """All samples of a session."""

    nodes: list[PackedNode]
    branches: list[PackedBranch]
    count: Count
    """Samples of the session; as many as branches, unless some were left out."""
    session_reward: float | None
    policy: str
    rollout_id: SessionId | None = None
    reward_payload: msgspec.Raw = NOT_GIVEN
    end_status: EndStatus | None = None

    @property
    def tokens(self) -> int:
        """What a trainer runs forward."""
        return sum(node.tokens.size for node in self.nodes)


PACKED_TYPES: tuple[type[Record], ...] = (Packed,)
