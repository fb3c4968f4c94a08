"""The part of an answer that a client kept and went on from.

    sampled     reasoning  call 1  call 2 ...    the stream breaks, or a person interrupts
    comes back  reasoning  call 1                what the client had whole by then
    recorded    reasoning  call 1                a turn of its own, which the next one extends

How much of an answer reached the client is known when it goes on, or never. What it goes on from
was sampled and was used, so it trains; the answer as a whole counts as not delivered.

Invariant: the ids, logprobs and versions of a part are the first of those that were sampled.
"""

import msgspec

from schemas.events import Turn
from schemas.record import json_text
from streams.adapters.dialects.calls import Message


def part_of(event: Turn, length: int, message: Message, *, turn_id: str) -> Turn:
    """The first `length` tokens of a turn, as a turn of its own that gave `message`."""
    return msgspec.structs.replace(
        event,
        turn_id=turn_id,
        output_ids=event.output_ids[:length],
        logprobs=None if event.logprobs is None else event.logprobs[:length],
        response_message=json_text(message),
        weight_versions=_runs(event.weight_versions, length),
        finish_reason="abort",
        delivered=True,
    )


def _runs(runs: list[tuple[int, int]] | None, length: int) -> list[tuple[int, int]] | None:
    """The runs over the first `length` tokens."""
    if runs is None:
        return None
    first: list[tuple[int, int]] = []
    for version, tokens in runs:
        if length > 0:
            first.append((version, min(tokens, length)))
        length -= tokens
    return first
