"""Where a turn hangs: its prompt messages walk the tree; token ids play no part.

At every node the first child that matches is taken, in the order the children came. At the
first message without a match the walk stops; if that message is an assistant's, the policy may
merge it onto the one short leaf it rewrites.

    system S ─ user u ─ assistant "ok"      recorded
    system S ─ user u ─ assistant "ok "     replayed: merge onto that leaf, or mount beside it

A delta names the turn it was built on. If it keeps that turn's answer, its path goes through
that answer, also where a twin says the same and came first:

    user u ─┬ assistant "ok"  t1            the client hung up and asked again
            └ assistant "ok"  t2 ─ user x   a delta on t2; a self-contained turn goes on from t1

Invariant: routing changes nothing that shows. A delta's kept messages need no walk: the
path of its base never changes, because only leaves are rewritten.
"""

from collections.abc import Sequence

import msgspec

from streams.core.messages import Message
from streams.core.policy import Policy
from streams.core.recorded import Node, RecordedTurn

_INDEX_FROM = 8
"""Children beyond which a dictionary beats looking at each."""


class Place(msgspec.Struct, frozen=True):
    """Where a prompt ends up: below `node`, after mounting `rest`."""

    node: Node
    rest: Sequence[Message]
    rewrites: Node | None
    """The leaf, a child of `node`, that `rest[0]` is merged onto."""


def route(
    root: Node, base: RecordedTurn | None, kept: int, new: Sequence[Message], policy: Policy
) -> Place:
    """The place of a prompt: the first `kept` messages of the base's, then the new ones."""
    node = root
    if base is not None:
        node = _ancestor(base, kept)
        if kept > base.prompt_messages and base.response is not None:
            answer = base.node
            if answer.turn is base and answer.replayable:
                node = answer
                if not node.children and (not new or new[0].role != "assistant"):
                    return Place(node, new, None)
            else:
                # A rewritten leaf holds another message now, and an answer that is no
                # assistant's cannot be replayed: looked up like any message of a prompt.
                new = [base.response, *new]
    walked = 0
    for message in new:
        child = first_match(node, message)
        if child is None:
            break
        node = child
        walked += 1
    rest = new[walked:]
    rewrites = None
    if rest and rest[0].role == "assistant":
        rewrites = rewritten_leaf(node, policy)
    return Place(node, rest, rewrites)


def first_match(node: Node, message: Message) -> Node | None:
    """The first child whose message is the same."""
    if len(node.children) <= _INDEX_FROM:
        for child in node.children:
            held = child.message
            if child.replayable and held is not None and held.same_as(message):
                return child
        return None
    if node.index is None:
        node.index = {}
        for child in node.children:
            if child.replayable and child.message is not None:
                node.index.setdefault(child.message.digest, child)
    return node.index.get(message.digest)


def rewritten_leaf(node: Node, policy: Policy) -> Node | None:
    """The leaf that an unknown assistant message at this place rewrites, if the policy merges."""
    leaves = node.short_leaves
    if leaves is None or policy.merge == "never":
        return None
    if policy.merge == "only_assistant_child" and node.assistants != 1:
        return None
    # A leaf that was continued or rewritten never becomes one again, so it is looked at once.
    while leaves and not _stands(leaves[0]):
        leaves.popleft()
    while leaves and not _stands(leaves[-1]):
        leaves.pop()
    return leaves[0] if len(leaves) == 1 else None


def _stands(leaf: Node) -> bool:
    return leaf.turn is not None and not leaf.children


def _ancestor(base: RecordedTurn, depth: int) -> Node:
    node = base.node.parent
    assert node is not None, "a generated message always has a parent"
    while node.depth > depth:
        assert node.parent is not None, "depth counts the parents"
        node = node.parent
    return node
