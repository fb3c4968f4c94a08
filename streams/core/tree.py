"""A session as a tree of messages, each model turn classified once, when it arrives.

An agent's calls look like one growing conversation until they do not: the harness compacts its
history, forks a sub-agent, or re-renders a tool call with other spaces. None of that needs a
special case. Messages decide where a turn hangs; token ids decide what it does to the sequence
it hangs from, against the nearest generated ancestor:

    t1  [p p p r r]
    t2  [p p p r r t t r]     extend: all of t1 is there, one segment
    t3  [p p p r x t t r]     the difference starts inside t1's response: realign, if the
                              policy's gate allows it, else fork
    t4  [p x ...]             fork: a new segment

Invariants: a turn's class never changes; only a leaf is ever demoted; a refused turn leaves
the tree as it was. Nothing recurses.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from schemas.events import Turn
from schemas.samples import Attach
from streams.core.delta import (
    ID_BYTES,
    Block,
    grown,
    prompt_hash,
    read,
    shared_length,
    stored_together,
)
from streams.core.event_bytes import own_bytes
from streams.core.limits import Limits
from streams.core.messages import Message, read_message
from streams.core.policy import Policy
from streams.core.recorded import Node, RecordedTurn, without_prompt
from streams.core.routing import Place, route
from streams.errors import BadEvent


@dataclass(slots=True, eq=False)
class Tree:
    """The tree of one session; grown by `add`, read by everything else."""

    policy: Policy
    limits: Limits
    root: Node = field(default_factory=Node)
    turns: dict[str, RecordedTurn] = field(default_factory=dict)
    """By turn id, in order of arrival; demoted turns stay: others may be based on them."""
    parts: int = 0
    """How many of them are what a client kept of another: no calls of the model."""
    joins: int = 0
    channels: set[str] = field(default_factory=set)
    """Names of all channels."""
    nodes: int = 0
    tokens: int = 0
    bytes: int = 0

    def add(self, turn: Turn) -> RecordedTurn:
        """Attach a turn; `BadEvent` if it cannot be true, and then nothing has changed."""
        identity = self.policy.identity
        base = self.base_of(turn)
        self._check_lists(turn)
        if len(turn.prompt_messages) > self.limits.nodes:
            self._check_budget(len(turn.prompt_messages), 0, 0)
        new = [read_message(text, identity) for text in turn.prompt_messages]
        kept_messages = turn.kept_messages or 0
        if not new and not kept_messages:
            raise BadEvent("invalid_field", "the whole prompt has no message")
        response = None
        if turn.response_message:
            response = read_message(turn.response_message, identity)
        place = route(self.root, base, kept_messages, new, self.policy)
        above = place.node.nearest_turn
        tokens = _join(turn, base, above)
        prompt_state = _checked_hash(turn, base, above, tokens)
        added = len(tokens.tail) // ID_BYTES + turn.output_ids.size
        size = _stored_bytes(turn, place, response) + ID_BYTES * added
        self._check_budget(len(place.rest) + 1, added, size)

        node = self._mount(place, response)
        output = turn.output_ids.tobytes()
        end_state = None
        if prompt_state is not None:
            end_state = prompt_state.copy()
            end_state.update(output)
        recorded = RecordedTurn(
            event=without_prompt(turn),
            order=len(self.turns),
            node=node,
            above=above,
            attach=_classify(turn, above, tokens.shared, self.policy),
            shared=tokens.shared,
            block=grown(tokens.origin, tokens.at, tokens.tail, output),
            prompt_len=tokens.prompt_len,
            end=tokens.prompt_len + turn.output_ids.size,
            prompt_messages=node.depth - 1,
            response=response,
            prompt_hash=prompt_state,
            end_hash=end_state,
            undelivered=not turn.delivered,
            branch_calls_tool=(response is not None and response.calls_tool)
            or (above is not None and above.branch_calls_tool),
            branch_ill_formed=turn.ill_formed or (above is not None and above.branch_ill_formed),
        )
        node.turn = recorded
        self._note_leaf(node, recorded)
        if above is not None:
            above.extended = True
        self.turns[turn.turn_id] = recorded
        self.parts += turn.part_of is not None
        self.joins += len(turn.continued_at or ())
        self.channels.update(turn.channels or ())
        self.nodes += len(place.rest) + 1
        self.tokens += added
        self.bytes += size
        return recorded

    def clear(self) -> None:
        """Let go of every node and turn, when nobody needs the tree any more.

        They point at each other, so without this they would wait for the garbage collector.
        """
        left = [self.root]
        while left:
            node = left.pop()
            left += node.children
            node.children.clear()
            node.parent = node.turn = node.merged = node.index = node.short_leaves = None
        self.turns.clear()

    def base_of(self, turn: Turn) -> RecordedTurn | None:
        """The turn a delta builds on, its kept lengths checked; none if self-contained."""
        if turn.base_turn_id is None:
            return None
        base = self.turns.get(turn.base_turn_id)
        if base is None:
            detail = f"base turn {turn.base_turn_id} is not in the session; send it first"
            raise BadEvent("unknown_base", detail)
        messages = base.prompt_messages + (base.response is not None)
        if (turn.kept_messages or 0) > messages or (turn.kept_ids or 0) > base.end:
            detail = (
                f"keeps {turn.kept_messages} messages and {turn.kept_ids} ids of base turn "
                f"{turn.base_turn_id}, which has {messages} and {base.end}"
            )
            raise BadEvent("invalid_field", detail)
        return base

    def _check_lists(self, turn: Turn) -> None:
        part = turn.part_of is not None
        self._check("turns", len(self.turns) - self.parts + (not part))
        self._check("parts", self.parts + part)
        if turn.continued_at:
            self._check("joins", self.joins + len(turn.continued_at))
        if turn.channels:
            self._check("channels", len(self.channels.union(turn.channels)))

    def _check_budget(self, nodes: int, tokens: int, size: int) -> None:
        self._check("nodes", self.nodes + nodes)
        self._check("tokens", self.tokens + tokens)
        self._check("bytes", self.bytes + size)

    def _check(self, budget: str, wanted: int) -> None:
        most = getattr(self.limits, budget)
        if wanted > most:
            detail = f"the session would hold {wanted} {budget}, its budget is {most}"
            raise BadEvent("oversize", detail)

    def _note_leaf(self, leaf: Node, turn: RecordedTurn) -> None:
        """Remember a leaf short enough to be merged, where a rewrite of it would arrive."""
        if turn.generated >= self.policy.fork_threshold_tokens:
            return
        parent = leaf.parent
        assert parent is not None, "a leaf hangs from something"
        if parent.short_leaves is None:
            parent.short_leaves = deque()
        parent.short_leaves.append(leaf)

    def _mount(self, place: Place, response: Message | None) -> Node:
        node, rest = place.node, place.rest
        if place.rewrites is not None:
            node.index = None
            node = place.rewrites
            assert node.turn is not None, "only a generated leaf is rewritten"
            node.turn.merged_by = len(self.turns)
            node.merged, node.turn = node.turn, None
            node.message, node.replayable = rest[0], True
            rest = rest[1:]
        for message in rest:
            node = _child(node, message, message.role, replayable=True)
        # The role of a generated leaf is assistant, whatever its message says; only a message
        # that says so too can come back in a prompt and match.
        replayable = response is not None and response.role == "assistant"
        return _child(node, response, "assistant", replayable=replayable)


def _child(parent: Node, message: Message | None, role: str | None, *, replayable: bool) -> Node:
    node = Node(parent, message, role, replayable, parent.depth + 1)
    parent.children.append(node)
    if role == "assistant":
        parent.assistants += 1
    if parent.index is not None and replayable and message is not None:
        parent.index.setdefault(message.digest, node)
    return node


class _Tokens(msgspec.Struct, frozen=True):
    """A turn's prompt against what is held: how much it repeats, and what to store."""

    prompt_len: int
    shared: int
    """Tokens repeated from the nearest turn above."""
    origin: Block | None
    at: int
    tail: bytes
    """The prompt from `at` on; everything before it is in `origin`."""
    from_above: bool
    """Whether `origin` is the sequence of the turn above, not the base's."""


def _join(turn: Turn, base: RecordedTurn | None, above: RecordedTurn | None) -> _Tokens:
    suffix = turn.prompt_ids.tobytes()
    kept = (turn.kept_ids or 0) if base is not None else 0
    prompt_len = kept + turn.prompt_ids.size
    shared = 0
    if above is not None:
        if above is base:
            shared = kept
            if kept < above.end:
                shared += shared_length(above.block, kept, above.end, suffix)
        elif base is None:
            shared = shared_length(above.block, 0, above.end, suffix)
        else:
            same = stored_together(base.block, kept, above.block, above.end)
            rest = read(base.block, same, kept) + suffix
            shared = same + shared_length(above.block, same, above.end, rest)
        if shared >= kept:
            tail = suffix[(shared - kept) * ID_BYTES :]
            return _Tokens(prompt_len, shared, above.block, shared, tail, True)
    origin = base.block if base is not None else None
    return _Tokens(prompt_len, shared, origin, kept, suffix, False)


def _checked_hash(
    turn: Turn, base: RecordedTurn | None, above: RecordedTurn | None, tokens: _Tokens
) -> Any:
    if turn.prompt_digest is None:
        return None
    running, done = _known_hash(above if tokens.from_above else base, tokens.at)
    if done < tokens.at:
        running.update(read(tokens.origin, done, tokens.at))
    running.update(tokens.tail)
    if running.digest() != turn.prompt_digest:
        detail = (
            f"the joined prompt of {tokens.prompt_len} ids has digest {running.hexdigest()}, "
            f"the event says {turn.prompt_digest.hex()}; publish the turn self-contained"
        )
        raise BadEvent("digest_mismatch", detail)
    return running


def _known_hash(held: RecordedTurn | None, same: int) -> tuple[Any, int]:
    """The digest of as much of the first `same` tokens as some turn above was checked for."""
    while held is not None:
        if held.end_hash is not None and held.end <= same:
            return held.end_hash.copy(), held.end
        if held.prompt_hash is not None and held.prompt_len <= same:
            return held.prompt_hash.copy(), held.prompt_len
        same = min(same, held.shared)
        held = held.above
    return prompt_hash(), 0


def _classify(turn: Turn, above: RecordedTurn | None, shared: int, policy: Policy) -> Attach:
    if above is None:
        return "root"
    if shared == above.end:
        return "extend"
    if policy.realign_gate == "drifted_tail":
        gate = above.end - shared
    elif policy.realign_gate == "incoming_output":
        gate = turn.output_ids.size
    else:
        return "fork"
    inside_last_response = shared >= above.prompt_len
    return "realign" if inside_last_response and gate < policy.fork_threshold_tokens else "fork"


def _stored_bytes(turn: Turn, place: Place, response: Message | None) -> int:
    size = own_bytes(turn) + (len(response.text) if response is not None else 0)
    for message in place.rest:
        size += len(message.text)
    return size
