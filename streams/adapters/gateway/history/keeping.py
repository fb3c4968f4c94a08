"""The part of an answer that a client kept and went on from.

    sampled     reasoning  call 1  call 2 ...    the stream breaks, or a person interrupts
    comes back  reasoning  call 1                what the client had whole by then
    recorded    reasoning  call 1                a turn of its own, which the next one extends

How much of an answer reached the client is known when it goes on, or never. What it goes on from
was sampled and was used, so it trains; the answer as a whole counts as not delivered.

A client may keep half of what a token says. The rest is encoded anew, stands behind the part as
context, and does not train.

Invariant: the ids, logprobs and versions of a part are the first of those that were sampled.
"""

from dataclasses import dataclass

import msgspec
import numpy as np

from schemas.events import Channel, Turn
from schemas.record import Octets, json_text
from streams.adapters.dialects.calls import Message


@dataclass(frozen=True, slots=True)
class Part:
    """What a client kept."""

    length: int
    """Tokens, as they were sampled."""
    rest: tuple[int, ...]
    """What it kept of the next one, encoded anew."""
    message: Message


def part_of(event: Turn, part: Part, *, turn_id: str) -> Turn:
    """The beginning of a turn, as a turn of its own."""
    length, more = part.length, len(part.rest)
    logprobs, versions = event.logprobs, _runs(event.weight_versions, length)
    if more and logprobs is not None:
        logprobs = np.concatenate([logprobs[:length], np.zeros(more, np.float32)])
    joins = [join for join in event.continued_at or () if join[0] < length]
    if more and versions:
        versions[-1] = (versions[-1][0], versions[-1][1] + more)
    return msgspec.structs.replace(
        event,
        turn_id=turn_id,
        part_of=event.part_of or event.turn_id,
        output_ids=np.concatenate([event.output_ids[:length], np.array(part.rest, np.int32)]),
        logprobs=None if logprobs is None else logprobs[: length + more],
        untrained_runs=[(length, length + more, "reencoded")] if more else None,
        response_message=json_text(part.message),
        weight_versions=versions,
        continued_at=joins or None,
        channels=_rows(event.channels, length, more),
        finish_reason="abort",
        delivered=True,
    )


def _rows(channels: dict[str, Channel] | None, length: int, more: int) -> dict[str, Channel] | None:
    """The rows of the first `length` tokens, then zeros; what lies in a blob is left out."""
    first: dict[str, Channel] = {}
    for name, channel in (channels or {}).items():
        if channel.data is None:
            continue
        row = len(channel.data) // channel.shape[0]
        data = Octets(bytes(channel.data[: length * row]) + bytes(more * row))
        shape = [length + more, *channel.shape[1:]]
        first[name] = msgspec.structs.replace(channel, shape=shape, data=data)
    return first or None


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
