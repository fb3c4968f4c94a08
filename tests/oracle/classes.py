"""Which situations a session contains, so that the generator can be held to producing them.

Every class is read off the events and the oracle's own tree, never off the generator's
intentions: a drift that happens to hit equal tokens is no drift.

Invariant: a class is a plain fact about one session and one threshold; `CLASSES` names all.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.oracle.seed_and_slime import (
    Node,
    Rules,
    canonical,
    common_prefix,
    leaves,
    mount_point,
    record_turn,
    samples,
    segments,
)
from tests.oracle.sessions import THRESHOLDS

Event = dict[str, Any]
Message = dict[str, Any]

CLASSES = (
    "empty output",
    "logprobs absent",
    "logprobs []",
    "response null",
    "response of another role",
    "response without a role",
    "message fork",
    "another system prompt",
    "sub-agents interleaved",
    "compaction",
    "retry, same response message",
    "retry, other response message",
    "foreign assistant",
    "assistant rewritten",
    "merge under seed",
    "merge under slime",
    "merge under seed only",
    "merge beside an unsampled answer",
    "merge on the last prompt message",
    "merge demotes a realigned turn",
    "numbers equal for slime only",
    "extends cleanly",
    "prompt equals the held tokens",
    "drift in the prompt region",
    "drift in an earlier response",
    "drift at the response's first token",
    "drift inside the response",
    "drift at the response's last token",
    "prompt cut at the response's start",
    "prompt cut inside the response",
    "prompt cut before the response",
    "realign under seed",
    "realign under slime",
    "gate refuses under seed",
    "gate refuses under slime",
    "turn shared by several leaves",
    "seed and slime differ",
    "segment with nothing to train",
    *(f"threshold {threshold}" for threshold in sorted(THRESHOLDS)),
)


def of_the_turn(turn: Event) -> Iterator[str]:
    if not turn["output_ids"]:
        yield "empty output"
    if "logprobs" not in turn:
        yield "logprobs absent"
    elif turn["output_ids"] and not turn["logprobs"]:
        yield "logprobs []"
    response = turn["response_message"]
    if response is None:
        yield "response null"
    elif "role" not in response:
        yield "response without a role"
    elif response["role"] != "assistant":
        yield "response of another role"


def of_retries(turns: Sequence[Event]) -> Iterator[str]:
    for place, turn in enumerate(turns):
        for earlier in turns[:place]:
            same_messages = earlier["prompt_messages"] == turn["prompt_messages"]
            if same_messages and earlier["prompt_ids"] == turn["prompt_ids"]:
                same = earlier["response_message"] == turn["response_message"]
                yield f"retry, {'same' if same else 'other'} response message"


def generated_above(leaf: Node) -> list[Node]:
    """The generated turns on the way to this one, nearest last."""
    return [node for node in leaf.path()[:-1] if node.turn is not None]


def of_the_tokens(leaf: Node) -> Iterator[str]:
    """Where the turn's prompt leaves the tokens of its nearest generated ancestor."""
    above = generated_above(leaf)
    if not above or leaf.turn is None or above[-1].turn is None:
        return
    prompt = leaf.turn["prompt_ids"]
    start = len(above[-1].turn["prompt_ids"])
    held = above[-1].turn["prompt_ids"] + above[-1].turn["output_ids"]
    common = common_prefix(held, prompt)
    if common == len(held):
        yield "prompt equals the held tokens" if prompt == held else "extends cleanly"
    elif common == len(prompt):
        if common == start:
            yield "prompt cut at the response's start"
        else:
            yield f"prompt cut {'before' if common < start else 'inside'} the response"
    elif common < start:
        spans = [(len(node.turn["prompt_ids"]), node.turn) for node in above[:-1] if node.turn]
        inside = any(at <= common < at + len(turn["output_ids"]) for at, turn in spans)
        yield "drift in an earlier response" if inside else "drift in the prompt region"
    elif common == start:
        yield "drift at the response's first token"
    elif common == len(held) - 1:
        yield "drift at the response's last token"
    else:
        yield "drift inside the response"


def realigns(leaf: Node, rules: Rules) -> bool | None:
    """Whether the turn overwrites the response above it; None if the question does not arise."""
    above = generated_above(leaf)
    if not above or leaf.turn is None or above[-1].turn is None:
        return None
    held = above[-1].turn["prompt_ids"] + above[-1].turn["output_ids"]
    common = common_prefix(held, leaf.turn["prompt_ids"])
    if common == len(held) or common < len(above[-1].turn["prompt_ids"]):
        return None
    return rules.may_realign(len(held) - common, leaf.turn)


def of_the_gate(leaf: Node, rules: Rules) -> Iterator[str]:
    realigned = realigns(leaf, rules)
    if realigned is not None:
        yield f"{'realign' if realigned else 'gate refuses'} under {rules.profile}"


def of_the_merge(mount: Node, rest: Sequence[Message], rules: Rules) -> Iterator[str]:
    """What an assistant message that matches nothing does to the answers already there."""
    if any(child.turn is not None for child in mount.children):
        yield "assistant rewritten"
    target = rules.merge_target(mount)
    if target is None:
        return
    yield f"merge under {rules.profile}"
    if len(rest) == 1:
        yield "merge on the last prompt message"
    if realigns(target, rules):
        yield "merge demotes a realigned turn"
    if Rules(profile="slime", threshold=rules.threshold).merge_target(mount) is None:
        yield "merge under seed only"
    if any(child.role == "assistant" and child.turn is None for child in mount.children):
        yield "merge beside an unsampled answer"


def of_the_messages(root: Node, turn: Event, rules: Rules) -> Iterator[str]:
    """How the turn's messages meet the tree, before it is recorded."""
    messages = turn["prompt_messages"]
    mount, depth = mount_point(root, messages, rules)
    for node, message in zip(mount.path(), messages, strict=False):
        if node.message is not None and canonical(node.message) != canonical(message):
            yield "numbers equal for slime only"
    rest = messages[depth:]
    if rest and rest[0].get("role") == "assistant":
        yield from of_the_merge(mount, rest, rules)
        if rules.merge_target(mount) is not None:
            rest = rest[1:]
    if len(rest) == len(messages) - depth and rest and mount.children:
        yield "another system prompt" if depth == 0 else "message fork"
    if any(message.get("role") == "assistant" for message in rest):
        yield "foreign assistant"
    if depth == 1 and any(str(message["content"]).startswith("summary") for message in rest):
        yield "compaction"


def of_the_tree(turns: Sequence[Event], rules: Rules) -> Iterator[str]:
    root = Node(role=None, message=None, parent=None)
    families: list[Node] = []
    for turn in turns:
        yield from of_the_messages(root, turn, rules)
        leaf = record_turn(root, turn, rules)
        yield from of_the_tokens(leaf)
        yield from of_the_gate(leaf, rules)
        family = leaf.path()[0]
        if families and family in families and family is not families[-1]:
            yield "sub-agents interleaved"
        families.append(family)
    claimed: set[Node] = set()
    for leaf in leaves(root):
        if any(node in claimed for node in leaf.path()):
            yield "turn shared by several leaves"
        if not all(any(builder.mask) for builder in segments(leaf, claimed, rules)):
            yield "segment with nothing to train"


def classes(events: Sequence[Event], *, fork_threshold: int) -> set[str]:
    turns = [event for event in events if event["type"] == "turn"]
    found = {name for turn in turns for name in of_the_turn(turn)}
    found |= set(of_retries(turns))
    for profile in ("seed", "slime"):
        found |= set(of_the_tree(turns, Rules(profile=profile, threshold=fork_threshold)))
    seed = samples(events, profile="seed", fork_threshold=fork_threshold)
    slime = samples(events, profile="slime", fork_threshold=fork_threshold)
    if [row["loss_mask"] for row in seed] != [row["loss_mask"] for row in slime]:
        found.add("seed and slime differ")
    return found | {f"threshold {fork_threshold}"}
