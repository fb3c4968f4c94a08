"""A file of JSON lines as events with positions; what cannot be read as a refusal.

Invariant: one bad line costs that line only, however long or broken it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import Event
from schemas.json_lines import readable_ids

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


class _Dumped(msgspec.Struct):
    position: int | None = None


def read_events(stream: BinaryIO, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[EventLine]:
    """Every line that is not blank, in order."""
    number = 0
    while line := stream.readline(line_bytes_max + 1):
        number += 1
        if len(line) > line_bytes_max and not line.endswith(b"\n"):
            size = len(line) + _skip_rest(stream)
            detail = f"the line has {size} bytes, the limit is {line_bytes_max}"
            refused = BadRecord("oversize", detail, **readable_ids(line))
            yield EventLine(number, number, refused, line[:200])
            continue
        text = line.removeprefix(_BYTE_ORDER_MARK).strip()
        if text:
            yield _event_line(number, text)


def _event_line(number: int, text: bytes) -> EventLine:
    try:
        record = codec.from_json(text)
        if not isinstance(record, Event):
            name = record.__struct_config__.tag
            detail = f"`{name}` is a record, not an event of a session"
            session_id = getattr(record, "session_id", None)
            return EventLine(
                number, number, BadRecord("unknown_type", detail, session_id=session_id), text
            )
        position = msgspec.json.decode(text, type=_Dumped).position if b"position" in text else None
    except BadRecord as error:
        return EventLine(number, number, error, text)
    except msgspec.MsgspecError as error:
        return EventLine(number, number, BadRecord("invalid_field", str(error)), text)
    return EventLine(number, number if position is None else position, record, text)


def _skip_rest(stream: BinaryIO) -> int:
    skipped = 0
    while chunk := stream.readline(1 << 20):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped
