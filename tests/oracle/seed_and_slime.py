"""What a session's samples are under `seed`, `slime` and `lossless`, by brute force.

The judge of the core's answers. It follows the rules the long way round, over plain lists:
every turn keeps its whole prompt, a builder holds the tokens it has gathered so far, and each
next turn is compared with all of them. Nothing is classified on arrival, nothing is shared,
no closed form is used:

    record        walk the messages, maybe merge a rewrite, mount the rest, add a leaf
    leaves        depth first, children in the order they came
    each leaf     its generated turns go through builders: clean, realign or fork
    at the end    builders that train nothing are dropped, the reward is dealt out

Invariant: it imports nothing of the project, so that an error in the core cannot excuse itself.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
Message = dict[str, Any]
DEFAULT_THRESHOLD = 1024
PROFILES = ("seed", "slime", "lossless")


@dataclass(eq=False)
class Node:
    """One chat message; `turn` is set while this session counts as having sampled it."""

    role: str | None
    message: Message | None
    parent: "Node | None"
    turn: Event | None = None
    children: list["Node"] = field(default_factory=list)

    def add(self, role: str | None, message: Message | None, turn: Event | None = None) -> "Node":
        child = Node(role=role, message=message, parent=self, turn=turn)
        self.children.append(child)
        return child

    def path(self) -> list["Node"]:
        """From below the root down to this node."""
        nodes = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(frozen=True)
class Rules:
    """Where the profiles differ."""

    profile: str
    threshold: int

    def same_message(self, node: Node, message: Message) -> bool:
        if node.message is None or node.role != message.get("role"):
            return False
        if self.profile == "slime":
            return node.message == message
        return canonical(node.message) == canonical(message)

    def short(self, turn: Event) -> bool:
        return len(turn["output_ids"]) < self.threshold

    def merge_target(self, mount: Node) -> Node | None:
        """The leaf that a rewritten assistant message below `mount` replaces, if there is one."""
        if self.profile == "lossless" or self.threshold <= 0:
            return None
        assistants = [child for child in mount.children if child.role == "assistant"]
        eligible = [
            child
            for child in assistants
            if not child.children and child.turn is not None and self.short(child.turn)
        ]
        # slime gives up as soon as a second assistant of any kind hangs there; seed only
        # when a second one could also be merged.
        rivals = assistants if self.profile == "slime" else eligible
        if len(rivals) != 1 or not eligible:
            return None
        return eligible[0]

    def may_realign(self, drift: int, turn: Event) -> bool:
        if self.profile == "lossless":
            return False
        if self.profile == "slime":
            return len(turn["output_ids"]) < self.threshold
        return self.threshold > 0 and drift < self.threshold


def canonical(message: Message) -> str:
    return json.dumps([message], sort_keys=True, ensure_ascii=False)


def mount_point(root: Node, messages: Sequence[Message], rules: Rules) -> tuple[Node, int]:
    """The deepest node reached by first matches, and how many messages led there."""
    node = root
    for depth, message in enumerate(messages):
        for child in node.children:
            if rules.same_message(child, message):
                node = child
                break
        else:
            return node, depth
    return node, len(messages)


def record_turn(root: Node, turn: Event, rules: Rules) -> Node:
    """Adds the turn to the tree and returns its generated leaf."""
    messages = turn["prompt_messages"]
    node, depth = mount_point(root, messages, rules)
    if depth < len(messages) and messages[depth].get("role") == "assistant":
        rewritten = rules.merge_target(node)
        if rewritten is not None:
            rewritten.turn = None
            rewritten.message = messages[depth]
            node, depth = rewritten, depth + 1
    for message in messages[depth:]:
        node = node.add(message.get("role"), message)
    return node.add("assistant", turn.get("response_message"), turn)


def grown(events: Sequence[Event], rules: Rules) -> Node:
    root = Node(role=None, message=None, parent=None)
    for event in events:
        if event["type"] == "turn":
            record_turn(root, event, rules)
    return root


def leaves(root: Node) -> list[Node]:
    """Depth first, by hand: a session may be deeper than the interpreter's stack."""
    found = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.children:
            waiting.extend(reversed(node.children))
        elif node.parent is not None:
            found.append(node)
    return found


@dataclass
class Builder:
    """One segment while it grows: three lists of the same length."""

    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    response_start: int = 0

    def add_context(self, ids: Sequence[int]) -> None:
        self.tokens += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def add_response(self, turn: Event, *, trained: bool) -> None:
        self.response_start = len(self.tokens)
        ids = turn["output_ids"]
        self.tokens += ids
        self.mask += [1 if trained else 0] * len(ids)
        given = turn.get("logprobs") or [0.0] * len(ids)
        self.logprobs += given if trained else [0.0] * len(ids)

    def cut(self, length: int) -> None:
        del self.tokens[length:]
        del self.mask[length:]
        del self.logprobs[length:]

    def takes(self, turn: Event, rules: Rules) -> bool:
        """Adds the turn's prompt, cleanly or by realigning; False if the turn has to fork."""
        prompt = turn["prompt_ids"]
        common = common_prefix(self.tokens, prompt)
        drift = len(self.tokens) - common
        if drift > 0:
            if common < self.response_start or not rules.may_realign(drift, turn):
                return False
            self.cut(self.response_start)
        self.add_context(prompt[len(self.tokens) :])
        return True


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length


def segments(leaf: Node, claimed: set[Node], rules: Rules) -> list[Builder]:
    """The leaf's builders in order; the turns nobody claimed before are claimed on the way."""
    builders: list[Builder] = []
    for node in leaf.path():
        if node.turn is None:
            continue
        if not builders or not builders[-1].takes(node.turn, rules):
            builders.append(Builder())
            builders[-1].add_context(node.turn["prompt_ids"])
        builders[-1].add_response(node.turn, trained=node not in claimed)
        claimed.add(node)
    return builders


def runs(mask: Sequence[int]) -> list[list[int]]:
    """The ones of a mask as `[start, end)`, as few as possible."""
    found: list[list[int]] = []
    for place, bit in enumerate(mask):
        if not bit:
            continue
        if found and found[-1][1] == place:
            found[-1][1] = place + 1
        else:
            found.append([place, place + 1])
    return found


def session_reward(events: Sequence[Event]) -> float:
    (reward,) = [event["reward"] for event in events if event["type"] == "session_ended"]
    return float(reward)


def samples(
    events: Sequence[Event], *, profile: str, fork_threshold: int = DEFAULT_THRESHOLD
) -> list[dict[str, Any]]:
    """The samples of one whole session: turns with full prompts, then its end with a reward."""
    assert profile in PROFILES
    rules = Rules(profile=profile, threshold=fork_threshold)
    claimed: set[Node] = set()
    builders: list[Builder] = []
    for leaf in leaves(grown(events, rules)):
        builders += [builder for builder in segments(leaf, claimed, rules) if any(builder.mask)]
    reward = session_reward(events)
    return [
        {
            "index": index,
            "count": len(builders),
            "tokens": builder.tokens,
            "prompt_len": builder.mask.index(1),
            "loss_mask": runs(builder.mask),
            "logprobs": builder.logprobs,
            "reward": reward / len(builders) if profile == "seed" else reward,
        }
        for index, builder in enumerate(builders)
    ]
