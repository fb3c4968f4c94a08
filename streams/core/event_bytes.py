"""What an event takes, in memory and in the rows that are kept of an open session.

A turn repeats what the tree stores once: rows hold the whole event, so a session has a budget of
both. Computed from the fields, since files and logs spell the same event differently.
"""

from operator import attrgetter

import msgspec

from schemas.events import Event, Reward, Turn
from schemas.record import json_text

_RUN_BYTES = 128
"""In memory: a tuple and its numbers."""
_CHAR_BYTES = 4
"""In memory, of a text that is not ASCII."""
_CHANNEL_BYTES = 512
"""In memory, beside name and data."""
_EVENT_BYTES = 256
"""Names and numbers of any event."""
_texts_of = attrgetter(
    *("raw_prompt", "finish_reason", "agent_id", "model", "weight_label", "tools_digest"),
    "fingerprint",
)


def turn_bytes(turn: Turn) -> int:
    """A whole turn."""
    size = _EVENT_BYTES + own_bytes(turn) + len(bytes(turn.response_message))
    size += (
        turn.prompt_ids.nbytes + turn.output_ids.nbytes + _RUN_BYTES * len(turn.continued_at or ())
    )
    for message in turn.prompt_messages:
        size += len(bytes(message))
    return size


def event_bytes(event: Event) -> int:
    """Any event; what a session has one of counts no more than its names."""
    if isinstance(event, Turn):
        return turn_bytes(event)
    return _EVENT_BYTES + (payload_bytes(event.reward) if isinstance(event, Reward) else 0)


def reward_bytes(payload: msgspec.Raw) -> int:
    """A reward with this payload, if any."""
    return _EVENT_BYTES + len(bytes(payload))


def payload_bytes(reward: object) -> int:
    """A payload as JSON text; a number has none."""
    return len(bytes(json_text(reward))) if isinstance(reward, dict) else 0


def own_bytes(turn: Turn) -> int:
    """A turn without its messages and ids."""
    size = payload_bytes(turn.reward)
    if turn.logprobs is not None:
        size += turn.logprobs.nbytes
    for text in _texts_of(turn):
        if text is not None:
            size += _text_bytes(text)
    if turn.sampling is not None and turn.sampling.constraint is not None:
        size += _text_bytes(turn.sampling.constraint)
    if turn.tools:
        size += len(bytes(turn.tools))
    size += _RUN_BYTES * (len(turn.untrained_runs or ()) + len(turn.weight_versions or ()))
    for _, _, reason in turn.untrained_runs or ():
        size += _CHAR_BYTES * len(reason)
    for name, channel in (turn.channels or {}).items():
        size += (
            _CHANNEL_BYTES
            + _text_bytes(name)
            + len(channel.data or b"")
            + len(channel.digest or b"")
        )
        size += _text_bytes(channel.blob or "")
    return size


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else _CHAR_BYTES * len(text)
