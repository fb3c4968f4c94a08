"""The part of a broken answer that a client kept and went on from.

    sampled     reasoning  call 1  call 2 ...    the client is gone: recorded, not delivered
    comes back  reasoning  call 1                what it had whole by then
    recorded    reasoning  call 1                a turn of its own, which the next one extends

Whether a broken answer reached anybody is known when the client goes on, or never. What it goes on
from was sampled and was used, so it trains; the whole of it stays what it is, not delivered.

Invariant: the ids, logprobs and versions of a part are the first of those that were sampled.
"""

from collections import OrderedDict

import msgspec

from schemas.events import Turn
from schemas.record import json_text
from streams.adapters.dialects.calls import Message

_HELD_MAX = 8


class Doubtful:
    """The newest turns of a session whose end no client is known to have seen."""

    def __init__(self) -> None:
        """Nothing is held."""
        self._held: OrderedDict[str, Turn] = OrderedDict()

    def add(self, event: Turn) -> None:
        self._held[event.turn_id] = event
        if len(self._held) > _HELD_MAX:
            self._held.popitem(last=False)

    def take(self, turn_id: str) -> Turn | None:
        """The turn, once: it is delivered, or what was kept of it is known."""
        return self._held.pop(turn_id, None)


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
