"""How table state is written: three kinds of key, each written once.

    r|<offset, 8 bytes>|<session>   an event the session keeps, or only its code
    m|<session>                     the marker of a closed session
    f|<offset, 8 bytes>             a purge's floor

Invariant: key and value follow from the source log alone, never from a clock, a worker or a
generation, so two workers that write the same key write the same bytes.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgpack
import msgspec

from streams.core.refused_turns import RefusedTurn
from streams.core.state import Marker

_Decoded = TypeVar("_Decoded")
_OFFSET_BYTES = 8
OFFSET_END = 1 << 63
"""Logs count in signed integers; no processor writes a higher offset."""
TIME_BYTES = 8
"""In front of a value, where a table keeps no times by itself: when it was written."""


class Row(NamedTuple):
    """A kept event: its wire bytes, or only the code it is counted under."""

    logged_ms: int
    value: bytes | None
    code: str | None = None
    refused_turn: RefusedTurn | None = None
    """Beside the code of a turn over a budget; rows of before have none."""

    @property
    def names_event(self) -> bool:
        """Whether the event is to be read from the log, where the row's key says."""
        return self.value is None and self.code is None


class RowKey(NamedTuple):
    """Whose row, and which event's."""

    offset: int
    session_id: str


class MarkerKey(NamedTuple):
    """A closed session."""

    session_id: str


class FloorKey(NamedTuple):
    """A purge, by its own offset."""

    offset: int


Key = RowKey | MarkerKey | FloorKey


class KeptMarker(msgspec.Struct, frozen=True, gc=False):
    """A marker as it is held: its bytes, and beside them what a purge asks of every one.

    Markers are most of a worker's memory, and one in a hundred is ever read again.
    """

    first: int
    closed_at: int
    closed_ms: int
    """When it was written; only the sweep reads it, so it decides no outcome."""
    value: bytes


class _Place(msgspec.Struct):
    session_id: str
    first: int
    closed_at: int


def write_key(key: Key) -> bytes:
    """A key as changelog bytes."""
    match key:
        case RowKey(offset, session_id):
            return b"r|" + offset.to_bytes(_OFFSET_BYTES) + b"|" + session_id.encode()
        case MarkerKey(session_id):
            return b"m|" + session_id.encode()
        case FloorKey(offset):
            return b"f|" + offset.to_bytes(_OFFSET_BYTES)


def read_key(data: bytes) -> Key:
    """The key in changelog bytes; `ValueError` if they are none of ours."""
    body = data[2:]
    match data[:2]:
        case b"r|" if body[_OFFSET_BYTES : _OFFSET_BYTES + 1] == b"|":
            return RowKey(_offset(body[:_OFFSET_BYTES]), body[_OFFSET_BYTES + 1 :].decode())
        case b"m|":
            return MarkerKey(body.decode())
        case b"f|" if len(body) == _OFFSET_BYTES:
            return FloorKey(_offset(body))
        case _:
            raise ValueError(f"not a row key: {data!r:.80}")


def _offset(data: bytes) -> int:
    offset = int.from_bytes(data)
    if offset >= OFFSET_END:
        raise ValueError(f"not an offset: {offset}")
    return offset


def check_offset(offset: int, end: int, start: int = 0) -> None:
    """`ValueError` if a log with these bounds has no such event."""
    if not start <= offset < end:
        raise ValueError(f"an entry of event {offset}, the log holds {start} to {end}")


def named_events(rows: Mapping[RowKey, Row]) -> list[int]:
    """The offsets of the events that rows only name, in order."""
    return sorted({key.offset for key, row in rows.items() if row.names_event})


def write_row(row: Row) -> bytes:
    """A row as changelog bytes."""
    refused = [row.refused_turn] if row.refused_turn is not None else []
    return bytes(msgpack.packb([row.logged_ms, row.value, row.code, *refused]))


def read_row(data: bytes) -> Row:
    """The row in changelog bytes; `ValueError` if they are none."""
    try:
        match msgpack.unpackb(data):
            case [int(logged_ms), bytes() | None as value, str() | None as code]:
                return Row(logged_ms, value, code)
            case [int(logged_ms), None, str(code), refused]:
                return Row(logged_ms, None, code, msgspec.convert(refused, RefusedTurn))
    except Exception as error:  # msgpack raises many kinds; all mean the same here
        raise ValueError(f"not a row: {data!r:.80}") from error
    raise ValueError(f"not a row: {data!r:.80}")


def read_floor(data: bytes, at: int) -> int:
    """The floor that the purge at offset `at` set; `ValueError` if it set no such floor."""
    floor = int.from_bytes(data)
    if len(data) != _OFFSET_BYTES or floor > at:
        raise ValueError(f"not the floor of a purge at {at}: {data!r:.80}")
    return floor


def write_marker(marker: Marker) -> bytes:
    """A marker as changelog bytes; sets and maps in a fixed order, so every worker agrees."""
    return msgspec.json.encode(marker, order="deterministic")


def kept_marker(session_id: str, data: bytes, closed_ms: int) -> KeptMarker:
    """A session's marker as it is held; `ValueError` if the bytes are none of it."""
    place = _decoded(data, _Place)
    if place.session_id != session_id:
        raise ValueError(f"a marker of {place.session_id!r:.80}, not of {session_id!r:.80}")
    return KeptMarker(place.first, place.closed_at, closed_ms, data)


def read_marker(data: bytes) -> Marker:
    """The marker in changelog bytes; `ValueError` if they are none."""
    return _decoded(data, Marker)


def _decoded(data: bytes, kind: type[_Decoded]) -> _Decoded:
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise ValueError(f"not a marker: {error}") from None
