"""The plain way: whole prompts as Python lists, the `slime` rules applied when the session ends.

A tree with one message a node, matched by role and dictionary equality. Each leaf's path is
packed into builders; every prompt is compared as a whole with the tokens a builder holds. All
work that grows with the number of tokens is done by C: slices of lists, their comparison, their
concatenation. Where two slices differ, slices half as long find the place.

Invariant: a builder's tokens, mask and logprobs have one length.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from benchmarks.workloads import Call

FORK_THRESHOLD_TOKENS = 1024

Json = dict[str, Any]


@dataclass(slots=True, eq=False)
class TurnRecord:
    """What is kept of a call: its whole prompt and what was sampled."""

    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: list[float]


@dataclass(slots=True, eq=False)
class Request:
    """A call as a server holds it after decoding: fresh lists, fresh dictionaries."""

    messages: list[Json]
    response: Json
    turn: TurnRecord


@dataclass(slots=True, eq=False)
class Node:
    """One chat message; `turn` is set if the model generated it here."""

    role: str | None
    message: Json | None
    parent: "Node | None" = None
    turn: TurnRecord | None = None
    children: "list[Node]" = field(default_factory=list)
    claimed: bool = False
    """Some leaf before this one trains the turn."""

    def add(self, role: str | None, message: Json, turn: TurnRecord | None = None) -> "Node":
        child = Node(role, message, self, turn)
        self.children.append(child)
        return child


@dataclass(slots=True, eq=False)
class Builder:
    """A sample in the making."""

    tokens: list[int]
    mask: list[int]
    logprobs: list[float]
    response_start: int = 0
    """Where the newest response begins."""

    def append_prompt(self, prompt: list[int], start: int) -> None:
        """Everything from `start` on becomes the prompt's, untrained."""
        tail = prompt[start:]
        self.tokens[start:] = tail
        self.mask[start:] = [0] * len(tail)
        self.logprobs[start:] = [0.0] * len(tail)

    def append_output(self, turn: TurnRecord, *, trains: bool) -> None:
        size = len(turn.output_ids)
        self.response_start = len(self.tokens)
        self.tokens += turn.output_ids
        self.mask += [int(trains)] * size
        self.logprobs += turn.logprobs if trains and turn.logprobs else [0.0] * size


class Session:
    """Record turns, then take the samples."""

    def __init__(self, fork_threshold_tokens: int = FORK_THRESHOLD_TOKENS) -> None:
        self.root = Node(None, None)
        self.threshold = fork_threshold_tokens

    def record(self, request: Request) -> None:
        turn, messages = request.turn, request.messages
        if turn.logprobs and len(turn.logprobs) != len(turn.output_ids):
            detail = f"{len(turn.logprobs)} logprobs for {len(turn.output_ids)} output ids"
            raise ValueError(detail)
        node, depth = self.root, 0
        for message in messages:
            child = _match(node, message)
            if child is None:
                break
            node = child
            depth += 1
        if depth < len(messages) and messages[depth].get("role") == "assistant":
            leaf = self._rewritten(node)
            if leaf is not None:
                leaf.turn, leaf.message = None, messages[depth]
                node = leaf
                depth += 1
        for message in messages[depth:]:
            node = node.add(message.get("role"), message)
        node.add("assistant", request.response, turn)

    def samples(self) -> list[Builder]:
        """One sample for every builder that trains something, leaves depth first."""
        return [
            builder
            for leaf in self._leaves()
            for builder in self._builders(_generated(leaf))
            if 1 in builder.mask
        ]

    def _rewritten(self, node: Node) -> Node | None:
        assistants = [child for child in node.children if child.role == "assistant"]
        if self.threshold <= 0 or len(assistants) != 1:
            return None
        (leaf,) = assistants
        if leaf.children or leaf.turn is None or len(leaf.turn.output_ids) >= self.threshold:
            return None
        return leaf

    def _leaves(self) -> Iterator[Node]:
        unvisited = [self.root]
        while unvisited:
            node = unvisited.pop()
            if not node.children and node.parent is not None:
                yield node
            unvisited.extend(reversed(node.children))

    def _builders(self, path: Sequence[tuple[Node, TurnRecord]]) -> list[Builder]:
        builders: list[Builder] = []
        for node, turn in path:
            start = self._joins(builders[-1], turn) if builders else None
            if start is None:
                builders.append(Builder([], [], []))
                start = 0
            builder = builders[-1]
            builder.append_prompt(turn.prompt_ids, start)
            builder.append_output(turn, trains=not node.claimed)
            node.claimed = True
        return builders

    def _joins(self, builder: Builder, turn: TurnRecord) -> int | None:
        """From where on the prompt replaces what the builder holds; none: it forks."""
        shared = common_prefix(builder.tokens, turn.prompt_ids)
        if shared == len(builder.tokens):
            return shared
        realigns = shared >= builder.response_start and len(turn.output_ids) < self.threshold
        return builder.response_start if realigns else None


def common_prefix(held: list[int], prompt: list[int]) -> int:
    """How many tokens two sequences share from the first on."""
    size = min(len(held), len(prompt))
    if (held if size == len(held) else held[:size]) == prompt[:size]:
        return size
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        if held[low:middle] == prompt[low:middle]:
            low = middle
        else:
            high = middle
    return low


def decoded(call: Call) -> Request:
    """A call as a server's decoder hands it over; not part of what is measured."""
    return Request(
        messages=[msgspec.json.decode(text) for text in call.messages],
        response=msgspec.json.decode(call.response),
        turn=TurnRecord(
            prompt_ids=call.prompt_T.tolist(),
            output_ids=call.output_T.tolist(),
            logprobs=call.logprobs_T.tolist(),
        ),
    )


def _match(node: Node, message: Json) -> Node | None:
    role = message.get("role")
    for child in node.children:
        if child.role == role and child.message == message:
            return child
    return None


def _generated(leaf: Node) -> list[tuple[Node, TurnRecord]]:
    path: list[tuple[Node, TurnRecord]] = []
    node: Node | None = leaf
    while node is not None:
        if node.turn is not None:
            path.append((node, node.turn))
        node = node.parent
    path.reverse()
    return path
