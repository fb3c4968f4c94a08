"""Samples of one session as a tree of tokens, and back.

Each sample walks down the tree along its own tokens; where it leaves a node, that node is split
and a new one begins. So the tree holds every prefix once: no form of the samples that keeps their
order has fewer tokens.

Invariant: `unpacked(packed(samples)) == samples`, whatever the samples of a session are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.packed import Packed, PackedBranch, PackedNode
from schemas.record import Floats, Ids
from schemas.samples import Sample

_Array = TypeVar("_Array", bound=npt.NDArray[Any])
_OWN = tuple(name for name in PackedBranch.__struct_fields__ if name not in ("node", "logprobs"))
_SHARED = tuple(name for name in Packed.__struct_fields__ if name not in ("nodes", "branches"))


def packed(samples: Sequence[Sample]) -> Packed:
    """The samples of one session, at least one, as one tree.

    Raises:
        ValueError: they are not of one session.
    """
    first = samples[0]
    shared = _fields(first, _SHARED)
    tree = _Tree()
    ends = []
    for sample in samples:
        if any(shared[name] != getattr(sample, name) for name in _SHARED):
            detail = f"samples {first.sample_id} and {sample.sample_id} are not of one session"
            raise ValueError(detail)
        ends.append(tree.add(sample.tokens))
    nodes, numbers = tree.in_order()
    branches = [
        PackedBranch(
            node=numbers[id(end)],
            logprobs=_trained(sample),
            **_fields(sample, _OWN),
        )
        for sample, end in zip(samples, ends, strict=True)
    ]
    return Packed(nodes=nodes, branches=branches, **shared)


def unpacked(session: Packed) -> list[Sample]:
    """The samples, as they were."""
    shared = _fields(session, _SHARED)
    return [
        Sample(
            tokens=(tokens := branch_tokens(session, branch)),
            logprobs=_spread(branch, tokens.size),
            **shared,
            **_fields(branch, _OWN),
        )
        for branch in session.branches
    ]


def path_of(session: Packed, branch: PackedBranch) -> list[int]:
    """The numbers of a branch's nodes, from the root down."""
    path = []
    number = branch.node
    while number >= 0:
        path.append(number)
        number = session.nodes[number].parent
    return path[::-1]


def branch_tokens(session: Packed, branch: PackedBranch) -> Ids:
    """A branch's tokens; read-only."""
    parts = [session.nodes[number].tokens for number in path_of(session, branch)]
    if len(parts) == 1:
        return parts[0]
    return _frozen(np.concatenate([np.empty(0, np.int32), *parts]))


@dataclass(slots=True, eq=False)
class _Node:
    tokens: Ids
    below: "dict[int, _Node]" = field(default_factory=dict)


class _Tree:
    def __init__(self) -> None:
        self._root = _Node(np.empty(0, np.int32))

    def add(self, tokens: Ids) -> _Node:
        """The node where this path ends."""
        node, at = self._root, 0
        while at < tokens.size:
            child = node.below.get(int(tokens[at]))
            if child is None:
                child = node.below[int(tokens[at])] = _Node(tokens[at:])
                return child
            same = _common(child.tokens, tokens[at:])
            if same < child.tokens.size:
                child = _split(node, child, same)
            node, at = child, at + same
        return node

    def in_order(self) -> tuple[list[PackedNode], dict[int, int]]:
        """Nodes, a parent before its children and each one's subtree together; their numbers."""
        nodes: list[PackedNode] = []
        numbers = {id(self._root): -1}
        waiting = [(child, -1) for child in reversed(self._root.below.values())]
        while waiting:
            node, parent = waiting.pop()
            number = numbers[id(node)] = len(nodes)
            nodes.append(PackedNode(parent=parent, tokens=node.tokens))
            waiting.extend((child, number) for child in reversed(node.below.values()))
        return nodes, numbers


def _split(parent: _Node, node: _Node, at: int) -> _Node:
    """Put a node's beginning above it; it stays the one where others ended."""
    upper = _Node(node.tokens[:at])
    parent.below[int(node.tokens[0])] = upper
    node.tokens = node.tokens[at:]
    upper.below[int(node.tokens[0])] = node
    return upper


def _common(left: Ids, right: Ids) -> int:
    size = min(left.size, right.size)
    differ = np.flatnonzero(left[:size] != right[:size])
    return int(differ[0]) if differ.size else size


def _trained(sample: Sample) -> Floats:
    runs = [sample.logprobs[start:end] for start, end in sample.loss_mask]
    return _frozen(np.concatenate([np.empty(0, np.float32), *runs]))


def _spread(branch: PackedBranch, size: int) -> Floats:
    logprobs, at = np.zeros(size, np.float32), 0
    for start, end in branch.loss_mask:
        logprobs[start:end] = branch.logprobs[at : at + end - start]
        at += end - start
    return _frozen(logprobs)


def _frozen(array: _Array) -> _Array:
    array.flags.writeable = False
    return array


def _fields(record: msgspec.Struct, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}
