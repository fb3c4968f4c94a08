"""What the tree keeps of messages and turns: where they hang, where their tokens lie.

Invariant: `read(turn.block, 0, turn.end)` is the turn's whole prompt followed by its output;
the output is `[prompt_len, end)`.
"""

from collections import deque
from typing import Any

import msgspec
import numpy as np

from schemas.events import Turn
from schemas.record import NOT_GIVEN
from schemas.samples import Attach
from streams.core.delta import Block
from streams.core.messages import Message

_NO_IDS = np.empty(0, np.int32)


class Node(msgspec.Struct, eq=False):
    """One chat message in the tree."""

    parent: "Node | None" = None
    message: Message | None = None
    """None for the root and for a turn that answered with no message."""
    role: str | None = None
    replayable: bool = False
    """Whether a prompt message that says the same matches this node."""
    depth: int = 0
    turn: "RecordedTurn | None" = None
    """Set while the node is generated; routing-only nodes have none."""
    merged: "RecordedTurn | None" = None
    """The turn this node held before a rewrite demoted it."""
    children: "list[Node]" = msgspec.field(default_factory=list)
    index: "dict[bytes, Node] | None" = None
    """First child by digest, once there are many."""
    assistants: int = 0
    """Children with that role, of any kind."""
    short_leaves: "deque[Node] | None" = None
    """Generated children below the merge threshold; those no longer leaves go as they are met."""

    @property
    def nearest_turn(self) -> "RecordedTurn | None":
        """The nearest generated message at or above this node."""
        node: Node | None = self
        while node is not None:
            if node.turn is not None:
                return node.turn
            node = node.parent
        return None


class RecordedTurn(msgspec.Struct, eq=False, kw_only=True):
    """One model call, attached."""

    event: Turn
    """The event without its prompt, output and messages: those live in blocks and nodes."""
    order: int
    """From 0, in order of arrival."""
    node: Node
    above: "RecordedTurn | None"
    """The nearest generated ancestor, fixed on arrival."""
    attach: Attach
    shared: int
    """How many tokens of `above` (prompt and output) this prompt repeats."""
    block: Block
    prompt_len: int
    end: int
    prompt_messages: int
    response: Message | None
    prompt_hash: Any
    """Digest state after the prompt, or None if the event asked for no check."""
    end_hash: Any
    """The same after the output."""
    undelivered: bool
    branch_calls_tool: bool
    """Any turn from the root to here called a tool."""
    branch_ill_formed: bool
    extended: bool = False
    """A later turn has this one above it, so the client must have had it."""
    merged_by: int = -1
    """The turn whose rewrite demoted this one, by order."""

    @property
    def generated(self) -> int:
        """Number of sampled tokens."""
        return self.end - self.prompt_len

    @property
    def goes_on_from(self) -> "RecordedTurn | None":
        """The turn whose token sequence this one continues, if it does."""
        return self.above if self.attach in ("extend", "realign") else None

    @property
    def merged(self) -> bool:
        """Whether a rewrite demoted this turn's message."""
        return self.node.merged is self

    @property
    def calls_tool(self) -> bool:
        """Whether the response calls a tool."""
        return self.response is not None and self.response.calls_tool


def without_prompt(turn: Turn) -> Turn:
    """The event less everything that the tree stores elsewhere, owning what it keeps."""
    logprobs = turn.logprobs
    if logprobs is not None and logprobs.flags.writeable:
        logprobs = logprobs.copy()
    return msgspec.structs.replace(
        turn,
        prompt_messages=(),
        prompt_ids=_NO_IDS,
        output_ids=_NO_IDS,
        logprobs=logprobs,
        response_message=NOT_GIVEN,
        # Held by the book of rewards.
        reward=None,
        # A Raw read from a JSON line is a view that would keep the whole line alive.
        tools=turn.tools.copy() if turn.tools else NOT_GIVEN,
    )
