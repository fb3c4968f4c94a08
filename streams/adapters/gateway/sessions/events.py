"""What an event in the log does to what a gateway knows of its session.

Invariant: events are taken in the order of the log; what the processor does not count is not
counted here, so that both know the same end of a session.
"""

from hashlib import blake2b
from typing import NamedTuple

import msgspec

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import SessionEnded, SessionExpired, SessionOpened, Turn, TurnUndelivered
from streams.adapters.gateway.sessions.session import Session
from streams.errors import BadEvent
from streams.log.interface import Entry

EXPIRED = "expired"


class Over(NamedTuple):
    """How a session ended."""

    status: str
    words: bytes | None = None
    """Of the event that ended it; None if none did, or it is not known."""


class _Head(msgspec.Struct):
    """What is read of every entry, also of those that nobody here needs."""

    type: str = ""
    turn_id: str | None = None


_HEAD = msgspec.msgpack.Decoder(_Head)


def words_of(event: SessionEnded) -> bytes:
    """What whoever ended a session said; the counts beside it are the gateway's."""
    said = codec.to_msgpack(msgspec.structs.replace(event, turns=None))
    return blake2b(said, digest_size=16).digest()


def head_of(entry: Entry) -> _Head:
    """Type and turn of an entry; empty where it cannot be read."""
    try:
        return _HEAD.decode(entry.value or b"")
    except (msgspec.MsgspecError, UnicodeError):
        return _Head()


def is_news(session: Session, head: _Head) -> bool:
    """Whether the gateway that holds the session has to know what stands in such an entry."""
    match head.type:
        case "turn":
            known = session.history.turns.get(head.turn_id or "")
            # One of ours that was given up may be there after all, and others may hang on it.
            given_up = known and known.position is None and head.turn_id in session.undelivered
            return known is None or bool(given_up)
        case "turn_undelivered":
            return head.turn_id not in session.undelivered
        case kind:
            return kind in ("session_ended", "session_expired")


def end_in(entry: Entry) -> Over | None:
    """How a session ended, if the entry says so."""
    try:
        event = codec.from_msgpack(entry.value or b"")
    except BadRecord:
        return None
    return Over(event.end_status, words_of(event)) if isinstance(event, SessionEnded) else None


def expires(session: Session, entry: Entry) -> bool:
    """Whether an expiry stands behind everything that is known of the session."""
    try:
        event = codec.from_msgpack(entry.value or b"")
    except BadRecord:
        return False
    if not isinstance(event, SessionExpired):
        return False
    return event.last_offset is None or event.last_offset >= session.newest[0]


def take(session: Session, entry: Entry) -> None:
    """One event of the session, as the log has it."""
    offset = entry.position.offset
    try:
        event = codec.from_msgpack(entry.value or b"")
        if isinstance(event, SessionExpired):
            if _counts(session, event):
                _end(session, Over(EXPIRED), offset)
            return  # one that does not count is no event of the session
        if isinstance(event, SessionOpened) and session.opened is None:
            session.opened, session.opened_at = event, entry.position
            session.opened_ms = entry.timestamp_ms
        elif isinstance(event, Turn):
            _take_turn(session, event, offset)
        elif isinstance(event, TurnUndelivered):
            session.number(event.source, event.seq)
            if event.turn_id is not None:
                session.undelivered.add(event.turn_id)
        elif isinstance(event, SessionEnded):
            _end(session, Over(event.end_status, words_of(event)), offset)
    except BadRecord:
        return  # the processor makes a dead letter of it; no turn can hang on it
    except BadEvent:
        pass  # a turn that cannot be used here; the processor may count it
    session.read = max(session.read, offset)
    session.met(offset, entry.timestamp_ms)


def _take_turn(session: Session, event: Turn, offset: int) -> None:
    session.history.record(event, position=offset)
    session.stands(offset)
    session.number(event.source, event.seq)
    if not event.delivered:
        session.undelivered.add(event.turn_id)
    if event.tools and event.tools_digest:
        session.tools_sent.add(event.tools_digest)
    if event.model and (event.tools_digest or event.base_turn_id):
        session.work.add(event.model, tools=event.tools_digest is not None)


def _end(session: Session, over: Over, offset: int) -> None:
    if session.ended is None:  # what comes after an end changes nothing
        session.ended, session.ended_words, session.ended_at = over.status, over.words, offset


def _counts(session: Session, event: SessionExpired) -> bool:
    """An expiry is void if anything came after what its sender had seen."""
    return event.last_offset is None or event.last_offset >= session.read
