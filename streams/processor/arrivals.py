"""One entry of the source log as the processor takes it: read, named, and what row it leaves.

Invariant: an entry that cannot be read still has a session if its key names one, so that it is
counted there.
"""

import math
from typing import NamedTuple

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import Event, Purge
from streams.core.effects import EVENT_ROW, Effects
from streams.core.event_bytes import event_bytes
from streams.log.homes import refuse_elsewhere
from streams.log.withheld import Withheld
from streams.processor.offsets import Entry
from streams.processor.rows import Row
from streams.settings import Settings

_NAME_BYTES_MAX = 200
"""Of a session id; a longer key is none, and must not swell what is written about it."""

_KEPT_BYTES_MIN = 2_048
"""Shorter values are kept as they are."""

Session = tuple[int, str]
"""Partition and session id."""


class Incoming(NamedTuple):
    """One entry of the source log."""

    partition: int
    offset: int
    logged_ms: int
    key: bytes | None
    value: bytes | None


class Arrived(NamedTuple):
    """One event, read, and the offset it holds back until it is done."""

    partition: int
    offset: int
    logged_ms: int
    value: bytes
    event: Event | BadRecord
    session_id: str
    entry: Entry

    @classmethod
    def of(cls, incoming: Incoming, entry: Entry, settings: Settings) -> "Arrived":
        """Read an entry of the log."""
        partition, offset, logged_ms, key, value = incoming
        event = read_event(key, value, settings.message_bytes_max)
        event = refuse_elsewhere(event, partition, settings)
        session_id = "" if isinstance(event, Purge) else event.session_id or ""
        value = b"" if value is None else value
        return cls(partition, offset, logged_ms, value, event, session_id, entry)

    @property
    def session(self) -> Session:
        """Whose event, and where."""
        return self.partition, self.session_id


def row_of(effects: Effects, event: Event | BadRecord, logged_ms: int, value: bytes) -> Row | None:
    """What the event leaves in the table: itself, only its code, or nothing."""
    if effects.row is None:
        return None
    if effects.row == EVENT_ROW:
        assert not isinstance(event, BadRecord), "only an event that was read is kept"
        return Row(logged_ms, kept_value(event, value))
    return Row(logged_ms, None, effects.row, effects.refused_turn)


def kept_value(event: Event, value: bytes) -> bytes:
    """The bytes to keep of an event: its own, unless they are many more than a budget counts.

    Blank space inside JSON texts and fields that this version does not know are counted nowhere;
    an event that is mostly made of them is kept without.
    """
    if len(value) <= max(_KEPT_BYTES_MIN, 2 * event_bytes(event)):
        return value
    encoded = codec.to_msgpack(event)
    return encoded if len(encoded) < len(value) else value


def read_event(
    key: bytes | None, value: bytes | None, bytes_max: float = math.inf
) -> Event | BadRecord:
    """The event in a log entry, or why there is none; the key names the session even then.

    Brokers count bytes after compression, so a foreign producer can store more than ours may:
    beyond `bytes_max` neither a row nor a dead letter could hold it.
    """
    session_id = key[:_NAME_BYTES_MAX].decode("utf-8", "replace") if key else None
    try:
        if value is None:
            raise BadRecord("undecodable", "the entry has no value")
        if isinstance(value, Withheld):
            raise BadRecord("oversize", value.detail)
        size = len(key or b"") + len(value)
        if size > bytes_max:
            raise BadRecord("oversize", f"{size} bytes, the limit is {bytes_max}")
        record = codec.from_msgpack(value)
        if not isinstance(record, Event):
            kind = record.__struct_config__.tag
            raise BadRecord("unknown_type", f"`{kind}` is a record, not an event of a session")
    except BadRecord as error:
        error.session_id = error.session_id or session_id
        return error
    told = getattr(record, "session_id", session_id)
    if session_id is not None and told != session_id:
        detail = f"the entry's key is {session_id!r:.80}, the event says {told!r:.80}"
        return BadRecord("invalid_field", detail, session_id=session_id)
    return record
