"""A file of JSON lines as events with positions; what cannot be read as a refusal.

A line of a dump names the `position` that its event had; without any, the line number is one. In a
session a position that is not above the last one is a replay and changes nothing. That holds
within a partition: a dump of several names the `partition` too, and an event of another one than
the session's events before it is none. Where its position is too low it comes behind them:

    partition, position    0, 7    0, 9    2, 3    2, 4    0, 10    0, 9
    stands at              7       9       10      11      12       a replay

So the order of a session's events is that of the file, whatever partitions they were on.

Invariants: one bad line costs that line only, however long or broken it is; a session of one
partition keeps its positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import msgspec

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import Event, Purge, SessionExpired
from schemas.json_lines import read_python_spelling, readable_ids, split_fields
from schemas.record import COUNT_MAX

LINE_BYTES_MAX = 64 << 20
"""Eight times what the log takes, since JSON spells the same event longer."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class EventLine:
    """One line: the event, or why there is none."""

    number: int
    named: int
    """The event's position in the log it was dumped from, else the line number."""
    position: int
    """The same, but behind its session's events of other partitions."""
    event: Event | BadRecord
    text: bytes


def read_events(stream: BinaryIO, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[EventLine]:
    """Every line that is not blank, in order."""
    number = 0
    last: int | None = None
    """The last position a line named; without any, positions are line numbers."""
    rows = _Rows()
    while line := stream.readline(line_bytes_max + 1):
        number += 1
        if len(line) > line_bytes_max and not line.endswith(b"\n"):
            size = len(line) + _skip_rest(stream)
            detail = f"the line has {size} bytes, the limit is {line_bytes_max}"
            refused = BadRecord("oversize", detail, **readable_ids(line))
            yield EventLine(number, number, number, refused, line[:200])
            continue
        text = line.removeprefix(_BYTE_ORDER_MARK).strip()
        if not text:
            continue
        following = number if last is None else last + 1
        event, place = _event(text)
        named = following if place.position is None else place.position
        if place.position is not None or last is not None:
            last = named
        position = named
        if place.partition is not None and not isinstance(event, BadRecord | Purge):
            event, position = rows.placed(event, place.partition, named)
        yield EventLine(number, named, position, event, line.rstrip(b"\r\n"))


class _Place(NamedTuple):
    """What a line names; a log of one partition has no need to name that."""

    position: int | None = None
    partition: int | None = None


@dataclass(slots=True)
class _Row:
    """The events of a session that is on several partitions."""

    last: tuple[int, int]
    """Partition and position of the newest one, as they were named."""
    stands: int
    """Where that is here."""
    newest: dict[int, int]
    """By partition, the last position that was named."""


class _Rows:
    """Where the events of each session are in one row."""

    def __init__(self) -> None:
        self._of_one: dict[str, tuple[int, int]] = {}
        """Partition and newest position of sessions that have only one partition, as they should;
        a tuple each, since a dump may hold millions."""
        self._of_several: dict[str, _Row] = {}

    def placed(self, event: Event, partition: int, named: int) -> tuple[Event, int]:
        """The event, and where it stands."""
        assert not isinstance(event, Purge), "a purge is of no session"
        expires = isinstance(event, SessionExpired)
        row = self._of_several.get(event.session_id)
        if row is None:
            home, newest = self._of_one.get(event.session_id, (partition, -1))
            if home == partition:
                if not expires:  # it is no row: it closes the session, or is ignored
                    self._of_one[event.session_id] = (partition, max(newest, named))
                return event, named
            row = _Row((home, newest), newest, {home: newest})
            self._of_several[event.session_id] = row
            del self._of_one[event.session_id]
        if isinstance(event, SessionExpired):
            return _renamed(event, partition, row), max(named, row.stands + 1)
        if named <= row.newest.get(partition, -1):
            return event, named  # a replay, which stands at or below the newest
        row.last, row.newest[partition] = (partition, named), named
        row.stands = max(named, row.stands + 1)
        return event, row.stands


def _renamed(event: SessionExpired, partition: int, row: _Row) -> SessionExpired:
    """It counts if it names the session's newest event, which may have come to another place."""
    if event.last_offset is None:
        return event
    newest = (partition, event.last_offset) == row.last
    return msgspec.structs.replace(event, last_offset=row.stands if newest else -1)


def _event(text: bytes) -> tuple[Event | BadRecord, _Place]:
    """The event, or why there is none, and the place the line names."""
    try:
        record = codec.from_json(text)
        if isinstance(record, Event):
            return record, _place(text) if b'"position"' in text else _Place()
    except BadRecord as error:
        return error, _Place()
    name = record.__struct_config__.tag
    detail = f"`{name}` is a record, not an event of a session"
    session_id = getattr(record, "session_id", None)
    return BadRecord("unknown_type", detail, session_id=session_id), _Place()


def _place(text: bytes) -> _Place:
    try:
        fields = split_fields(text)
    except ValueError:
        fields, _ = read_python_spelling(text, "")
    return _Place(*(_number(text, fields, name) for name in _Place._fields))


def _number(line: bytes, fields: dict[str, msgspec.Raw], name: str) -> int | None:
    text = fields.get(name, b"null")
    try:
        value = msgspec.json.decode(text, type=int | None)
        if value is None or 0 <= value <= COUNT_MAX:
            return value
    except ValueError:
        pass
    detail = f"`{name}` is {bytes(text).decode():.80}, not a place in a log"
    raise BadRecord("invalid_field", detail, **readable_ids(line))


def _skip_rest(stream: BinaryIO) -> int:
    skipped = 0
    while chunk := stream.readline(1 << 20):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped
