"""A file of JSON lines as events with positions; what cannot be read as a refusal.

Invariant: one bad line costs that line only, however long or broken it is.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import Event
from schemas.json_lines import readable_ids
from schemas.record import COUNT_MAX

LINE_BYTES_MAX = 64 << 20
"""Eight times what the log takes, since JSON spells the same event longer."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class EventLine:
    """One line: the event, or why there is none."""

    number: int
    position: int
    """The event's place in the log it was dumped from, else the line number."""
    event: Event | BadRecord
    text: bytes


def read_events(stream: BinaryIO, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[EventLine]:
    """Every line that is not blank, in order."""
    number = 0
    last: int | None = None
    """The last position a line named; without any, positions are line numbers."""
    while line := stream.readline(line_bytes_max + 1):
        number += 1
        if len(line) > line_bytes_max and not line.endswith(b"\n"):
            size = len(line) + _skip_rest(stream)
            detail = f"the line has {size} bytes, the limit is {line_bytes_max}"
            refused = BadRecord("oversize", detail, **readable_ids(line))
            yield EventLine(number, number, refused, line[:200])
            continue
        text = line.removeprefix(_BYTE_ORDER_MARK).strip()
        if not text:
            continue
        following = number if last is None else last + 1
        event, named = _event(text)
        if named is not None or last is not None:
            last = following if named is None else named
        position = following if named is None else named
        yield EventLine(number, position, event, line.rstrip(b"\r\n"))


def _event(text: bytes) -> tuple[Event | BadRecord, int | None]:
    """The event, or why there is none, and the position the line names."""
    try:
        record = codec.from_json(text)
        if isinstance(record, Event):
            return record, _position(text) if b'"position"' in text else None
    except BadRecord as error:
        return error, None
    name = record.__struct_config__.tag
    detail = f"`{name}` is a record, not an event of a session"
    session_id = getattr(record, "session_id", None)
    return BadRecord("unknown_type", detail, session_id=session_id), None


def _position(text: bytes) -> int | None:
    position = json.loads(text).get("position")
    if position is None or (type(position) is int and 0 <= position <= COUNT_MAX):
        return position
    detail = f"`position` is {position!r:.80}, not a place in a log"
    raise BadRecord("invalid_field", detail, **readable_ids(text))


def _skip_rest(stream: BinaryIO) -> int:
    skipped = 0
    while chunk := stream.readline(1 << 20):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped
