"""The places of a session: one node a message, and the turns that were answered there.

    root ─ system ─ user ─ [t1]        t1 is one of the turns at `user`; its answer is a node
                      └─── assistant   a message that no turn of this session gave: context

Invariant: a node's message never changes, and the path to a node is exactly the recorded form of
the messages it stands for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from streams.adapters.dialects.calls import Message
from streams.adapters.gateway.history.matching import (
    Cut,
    Whole,
    calls_of,
    carried_ids,
    compare,
    reasoning_of,
    text_of,
    whole_calls_of,
)
from streams.core.delta import Block

TWINS_MAX = 256
"""Answers at one place that a message without ids is compared with, the newest first."""
_EDGE = 24
_TEXT = msgspec.json.Encoder(order="deterministic").encode


@dataclass(slots=True, eq=False)
class Answers:
    """The turns whose prompt ends at one place."""

    turns: "list[RecordedTurn]" = field(default_factory=list)
    joined: "list[RecordedTurn]" = field(default_factory=list)
    """Turns that go on in an answer which the client began here: it knows both as one message."""
    calls: "dict[str, RecordedTurn]" = field(default_factory=dict)
    """By the ids of the calls in them."""


@dataclass(slots=True, eq=False)
class Node:
    """One message at its place."""

    parent: "Node | None" = None
    message: Message | None = None
    """None at the root."""
    turn: "RecordedTurn | None" = None
    """The turn that gave this answer; None for what was given to the model."""
    depth: int = 0
    answers: Answers | None = None
    children: "dict[object, list[Node]] | None" = None
    heard: Message | None = None
    """What the client said last at this place, in its own spelling: it mostly says it again."""
    heard_named: tuple[str, ...] = ()
    """The turns it named with that."""
    heard_leads: "tuple[Node, ...]" = ()
    """Where that led: to one answer, or to any of several that say the same."""

    @property
    def is_leaf(self) -> bool:
        return self.answers is None and self.children is None

    def add(self, message: Message) -> "Node":
        """A further message below this one."""
        child = Node(self, message, depth=self.depth + 1)
        if self.children is None:
            self.children = {}
        self.children.setdefault(_key(message), []).append(child)
        return child

    def path(self, after: int = 0) -> "list[Node]":
        """The nodes down to here, without the first `after` below the root."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.depth > after:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def twin(self, tools_digest: str | None) -> "RecordedTurn | None":
        """The newest turn that was asked here under these tools."""
        turns = self.answers.turns if self.answers else []
        same = (turn for turn in reversed(turns) if turn.tools_digest == tools_digest)
        return next(same, None)

    def deepest_turn(self, tools_digest: str | None) -> "RecordedTurn | None":
        """The last answer on the way here that was given under these tools."""
        node: Node | None = self
        while node is not None:
            if node.turn is not None and node.turn.tools_digest == tools_digest:
                return node.turn
            node = node.parent
        return None


@dataclass(slots=True, eq=False, kw_only=True)
class RecordedTurn:
    """One model call."""

    turn_id: str
    place: Node
    """Where its prompt ends."""
    node: Node | None = None
    """Its answer; None if it gave none."""
    base: "RecordedTurn | None"
    kept_ids: int
    """How many ids of the base's prompt and output its prompt begins with."""
    kept_messages: int
    tools_digest: str | None
    block: Block
    prompt_len: int
    end: int
    """Length of prompt and output together."""
    prompt_sums: tuple[Any, int]
    """Running blake2b and CRC-32 over the prompt's ids."""
    end_sums: tuple[Any, int]
    """The same over prompt and output."""
    position: int | None = None
    """Where the log has it; None until it is acknowledged."""
    prev: int | None = None
    """Where the newest turn stood that was acknowledged when it was asked."""
    broken: bool = False
    """The client hung up while it was sampled: the end of it may never have been given."""

    @property
    def is_leaf(self) -> bool:
        """Whether nothing goes on from its answer."""
        return self.node is None or self.node.is_leaf

    @property
    def goes_on(self) -> bool:
        """Whether its prompt ends with an answer that the client began."""
        message = self.place.message
        return message is not None and message.get("role") == "assistant"

    def place_at(self, kept_messages: int) -> Node | None:
        """The place after that many messages of its prompt and its answer."""
        node: Node | None = self.place
        if kept_messages > self.place.depth:
            node = self.node
        while node is not None and node.depth > kept_messages:
            node = node.parent
        return node if node is not None and node.depth == kept_messages else None


@dataclass(frozen=True, slots=True)
class Kept:
    """What a client kept of an answer."""

    turn: RecordedTurn
    cut: Cut


def step(node: Node, message: Message) -> Node | None:
    """The child that was given to the model and is this message."""
    if node.children is None:
        return None
    same = (
        child for child in node.children.get(_key(message), ()) if _same(child.message, message)
    )
    return next(same, None)


def same_answer(node: Node, message: Message) -> RecordedTurn | None:
    """The newest turn at a place whose answer is exactly this message."""
    if node.answers is None:
        return None
    for turn in reversed(node.answers.turns):
        if turn.node is not None and _same(turn.node.message, message):
            return turn
    return None


def answers_at(
    node: Node, message: Message, named: "Sequence[RecordedTurn]" = ()
) -> tuple[list[RecordedTurn], Kept | None]:
    """The turns at a place whose answer a message is; without any, one that it is cut from.

    By the ids it carries, or by the turns `named` beside it; else the newest first, and only
    those with its reasoning if there are any: a client that dropped it may mean each of the
    others.
    """
    answers = node.answers
    if answers is None:
        return [], None
    called = (answers.calls.get(carried) for carried in carried_ids(message))
    here = (turn for turn in named if turn.place is node or turn in answers.joined)
    for turn in (*called, *here):
        found = _compared(message, turn, node) if turn is not None else None
        if turn is not None and found is not None:
            return ([turn], None) if isinstance(found, Whole) else ([], Kept(turn, found))
    exact: list[RecordedTurn] = []
    likely: list[RecordedTurn] = []
    kept: Kept | None = None
    for turn in (*answers.turns[: -TWINS_MAX - 1 : -1], *answers.joined[: -TWINS_MAX - 1 : -1]):
        found = _compared(message, turn, node)
        if isinstance(found, Whole):
            (exact if found.reasoning_kept else likely).append(turn)
            continue
        # Of two that it may be cut from, the one that is known to have broken off.
        better = kept is None or (turn.broken and not kept.turn.broken)
        if isinstance(found, Cut) and turn.place is node and better:
            kept = Kept(turn, found)
    whole = exact or likely
    return whole, None if whole else kept


def _compared(message: Message, turn: RecordedTurn, node: Node) -> Whole | Cut | None:
    """What a message is to a turn's answer, for a client that stands at `node`."""
    if turn.node is None:
        return None
    form = _form(turn, node)
    found = compare(message, form)
    if isinstance(found, Whole) and turn.broken and turn.is_leaf:
        # Tokens may follow what was given of it: half a call, half a character.
        return whole_calls_of(form, text_of(message))
    return found


def _form(turn: RecordedTurn, node: Node) -> Message:
    """A turn's answer as a client knows it that stands at `node`."""
    assert turn.node is not None, "only answers are compared"
    answer, begun = turn.node.message or {}, turn.place.message or {}
    if turn.place is node:
        return answer
    return {
        "role": "assistant",
        "content": text_of(begun) + text_of(answer),
        "reasoning_content": reasoning_of(begun) + reasoning_of(answer),
        "tool_calls": calls_of(begun) + calls_of(answer),
    }


def _same(one: Message | None, other: Message) -> bool:
    if one != other:
        return False
    # For Python 1, 1.0 and true are equal; in the arguments of a call they are not.
    return "tool_calls" not in other or _TEXT(one) == _TEXT(other)


def _key(message: Message) -> object:
    """What tells most messages apart without reading all of them."""
    text = text_of(message)
    return message.get("role"), len(text), text[:_EDGE], text[-_EDGE:]
