"""The same session with its prompts written as (base turn, kept lengths, suffix).

    base   messages m1 m2, response r     ids p p p, output o o
    turn   messages m1 m2 r m3            ids p p p o o t
    delta  kept_messages 3, [m3]          kept_ids 5, [t]

Kept lengths count along the base's whole prompt followed by its own response and output. A
message counts as kept only if it is spelled exactly as the base has it, number by number.

A delta that keeps its base's response names one of several answers that say the same; the whole
form goes on from the first of them. `with_deltas` leaves such responses out of what is kept.

Invariant: base, kept lengths and suffix rebuild the whole prompt; the digest guards its ids.
"""

import json
import random
import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

Event = dict[str, Any]


def digest(ids: Sequence[int]) -> str:
    return blake2b(struct.pack(f"<{len(ids)}i", *ids), digest_size=16).hexdigest()


def common(left: Sequence[Any], right: Sequence[Any]) -> int:
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return length


def kept_lengths(base: Event, turn: Event) -> tuple[int, int]:
    """The longest that `turn` can keep of `base`: messages, ids."""
    texts = [json.dumps(message) for message in whole(base)]
    messages = common(texts, [json.dumps(message) for message in turn["prompt_messages"]])
    return messages, common(base["prompt_ids"] + base["output_ids"], turn["prompt_ids"])


def as_delta(turn: Event, base: Event, kept_messages: int, kept_ids: int) -> Event:
    return turn | {
        "base_turn_id": base["turn_id"],
        "kept_messages": kept_messages,
        "kept_ids": kept_ids,
        "prompt_messages": turn["prompt_messages"][kept_messages:],
        "prompt_ids": turn["prompt_ids"][kept_ids:],
        "prompt_digest": digest(turn["prompt_ids"]),
    }


def whole(event: Event) -> list[Any]:
    response = event["response_message"]
    return [*event["prompt_messages"], *([] if response is None else [response])]


def says_it_again(base: Event, turns: Sequence[Event]) -> bool:
    """Whether the base's messages, its response included, stood in the session before it."""
    said, before = whole(base), turns[: turns.index(base)]
    # Equal by value: more than either identity of messages holds equal.
    return any(whole(other)[: len(said)] == said for other in before)


def with_deltas(events: Sequence[Event], choices: random.Random) -> list[Event]:
    """Most turns against an earlier one: the best, or any; kept wholly, or less than that."""
    written: list[Event] = []
    turns: list[Event] = []
    for event in events:
        if event["type"] != "turn" or not turns or choices.random() < 0.1:
            written.append(event)
        else:
            best = max(turns, key=lambda base: kept_lengths(base, event)[::-1])
            base = best if choices.random() < 0.5 else choices.choice(turns)
            messages, ids = kept_lengths(base, event)
            if messages > len(base["prompt_messages"]) and says_it_again(base, turns):
                messages = len(base["prompt_messages"])
            if choices.random() < 0.3:
                messages = choices.randint(0, messages)
            if choices.random() < 0.3:
                ids = choices.randint(0, ids)
            written.append(as_delta(event, base, messages, ids))
        if event["type"] == "turn":
            turns.append(event)
    return written
