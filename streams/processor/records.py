"""What an event's effects are on the log: which records, on which topic, under which key.

Invariant: bytes and keys follow from the event and its effects alone, so every processor, on
Kafka or embedded, writes the same.
"""

from collections import Counter
from collections.abc import Iterator

from schemas import codec
from schemas.dead_letters import DeadLetter
from schemas.record import Octets
from streams.core.effects import Effects
from streams.log.interface import Outgoing, Position
from streams.log.keys import event_key, sample_key
from streams.log.withheld import Withheld
from streams.settings import Settings

_NAME_MAX = 200
_DETAIL_MAX = 4_000


def letters_of(
    effects: Effects, place: Position, value: bytes | None, settings: Settings
) -> Iterator[Outgoing]:
    """A dead letter for each refusal, with the untouched bytes if there is room for them."""
    for refusal in effects.refusals:
        letter = DeadLetter(
            code=refusal.code,
            # What a foreign producer wrote into names must not make the letter too large.
            detail=refusal.detail[:_DETAIL_MAX],
            session_id=_cut(refusal.session_id),
            turn_id=_cut(refusal.turn_id),
            topic=place.topic,
            partition=place.partition,
            offset=place.offset,
            # A foreign producer may have stored more than a letter can hold.
            payload=None if value is None or _is_too_large(value, settings) else Octets(value),
        )
        yield Outgoing(
            topic=settings.dead_letters_topic,
            key=str(place).encode(),
            value=codec.to_msgpack(letter),
        )


def _is_too_large(value: bytes, settings: Settings) -> bool:
    return isinstance(value, Withheld) or len(value) > settings.message_bytes_max


def _cut(name: str | None) -> str | None:
    return name if name is None else name[:_NAME_MAX]


def samples_of(effects: Effects, settings: Settings) -> Iterator[Outgoing]:
    """The samples of a session that closes."""
    assert effects.outcome is not None, "samples come with an outcome"
    key = sample_key(effects.outcome.session_id, effects.outcome.group_id)
    for sample in effects.samples:
        yield Outgoing(topic=settings.samples_topic, key=key, value=codec.to_msgpack(sample))


def outcome_of(effects: Effects, settings: Settings) -> Iterator[Outgoing]:
    """The outcome of a session that closes."""
    outcome = effects.outcome
    assert outcome is not None, "every close has an outcome"
    key = sample_key(outcome.session_id, outcome.group_id)
    yield Outgoing(topic=settings.samples_topic, key=key, value=codec.to_msgpack(outcome))


def trace_of(effects: Effects, settings: Settings, counts: Counter[str]) -> Iterator[Outgoing]:
    """The trace of a session that closes, if it leaves one.

    A trace that does not fit the log is left out and counted: it decides nothing, and must not
    hold its session up.
    """
    outcome, trace = effects.outcome, effects.trace
    assert outcome is not None, "every close has an outcome"
    if trace is not None:
        key, value = event_key(outcome.session_id), codec.to_msgpack(trace)
        if len(key) + len(value) <= settings.record_bytes_max:
            yield Outgoing(topic=settings.traces_topic, key=key, value=value)
        else:
            counts["traces_too_large"] += 1


def revisions_of(effects: Effects, key: bytes, settings: Settings) -> Iterator[Outgoing]:
    """What a late reward changes, under the key its samples have."""
    for revision in effects.revisions:
        yield Outgoing(topic=settings.samples_topic, key=key, value=codec.to_msgpack(revision))
