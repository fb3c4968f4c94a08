"""The sessions a gateway serves: what each has recorded, and how one comes back after a restart.

A session's key says where it begins in the log, and every turn is in the log, so what is held
here is a cache: a session that is not known is read back before it is served. One that is over is
let go at once.

Invariant: a session that cannot be read back whole is refused, never started empty; one that
still has something to say to the log is never let go.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import SessionEnded, SessionExpired, SessionOpened, Turn, TurnUndelivered
from streams.adapters.dialects.calls import CallRefused
from streams.adapters.gateway.history import History
from streams.adapters.gateway.keys import SessionKey
from streams.adapters.gateway.minted import Minter
from streams.adapters.gateway.session import Session
from streams.errors import BadEvent, NoSuchPosition
from streams.log.interface import Entry, Log, Position
from streams.log.keys import event_key
from streams.settings import Settings

_TURN_WAIT_S = 5.0
_READ_WAIT_S = 1.0
_READ_BYTES_MAX = 256 << 20
"""Of one session's events; the processor's own budget for a session."""
GONE = "this session's events are no longer in the log: open a new session"
ENDED = "this session has ended: open a new one"
TOO_LARGE = "this session is too large to be read back from the log: end it, open a new one"
OTHER_RENDERING = (
    "this session was begun with another tokenizer or template: end it, open a new one"
)


def ended_refusal() -> CallRefused:
    """For whoever calls in a session that is over."""
    return CallRefused(410, ENDED, kind="session_ended", code="session_ended")


def _gone() -> CallRefused:
    return CallRefused(410, GONE, kind="session_gone", code="session_gone")


class Sessions:
    """Every session that was used lately, the one used last at the end."""

    def __init__(self, settings: Settings, log: Log, minter: Minter, fingerprint: str) -> None:
        """None is known yet."""
        self._settings = settings
        self._log = log
        self._minter = minter
        self._fingerprint = fingerprint
        self._known: OrderedDict[str, Session] = OrderedDict()
        self._over: OrderedDict[str, str] = OrderedDict()
        """How sessions ended, the newest; only to save a look into the log."""
        self._coming: dict[str, asyncio.Task[Session]] = {}

    def __len__(self) -> int:
        """How many are held."""
        return len(self._known)

    def add(self, opened: SessionOpened, position: Position) -> Session:
        """A session that was opened here."""
        session = self._new(opened.session_id)
        session.opened, session.opened_at = opened, position
        session.place = (position.partition, position.offset + 1)
        session.newest = (position.offset, int(time.time() * 1000))
        self._hold(session)
        return session

    async def get(self, key: SessionKey) -> Session:
        """The session of a key, read back from the log if it has to be.

        Raises:
            CallRefused: it is over, or what it was is gone.
            LogError: it cannot be read now.
        """
        if key.session_id in self._over:
            raise ended_refusal()
        session = self._known.get(key.session_id)
        if session is None:
            # Shielded: one caller that goes away does not stop it for the others.
            session = await asyncio.shield(self._comes(key))
        elif self._idle(session):
            await self.read_on(session)  # what happened meanwhile, somebody else has written
        if session.ended is not None:
            raise ended_refusal()
        if self._idle(session):
            raise _gone()  # the processor closes it at any moment
        if key.session_id in self._known:
            self._known.move_to_end(key.session_id)
        return session

    def find(self, session_id: str) -> Session | None:
        """A session that is held."""
        return self._known.get(session_id)

    def how_it_ended(self, session_id: str) -> str | None:
        """The status of a session that is known to be over."""
        return self._over.get(session_id)

    def over(self, session: Session, status: str) -> None:
        """The log has its end; nothing of it is needed any more."""
        session.ended = status
        self._known.pop(session.session_id, None)
        self._over[session.session_id] = status
        while len(self._over) > self._settings.gateway_sessions_held:
            self._over.popitem(last=False)

    async def read_on(self, session: Session) -> None:
        """Take over what others wrote of the session since."""
        if session.place is not None:
            await self._read(session)
            if session.ended is not None:
                self.over(session, session.ended)

    async def turn_at(self, session: Session, offset: int) -> Turn | None:
        """A turn of the session as the log has it; None where it is gone."""
        assert session.place is not None, "what is read has a place"
        partition = session.place[0]
        try:
            reader = await self._log.read(self._settings.turns_topic, {partition: offset})
        except NoSuchPosition:
            return None
        try:
            for entry in await reader.next_batch(_TURN_WAIT_S, 1):
                event = codec.from_msgpack(entry.value or b"")
                if entry.position.offset == offset and isinstance(event, Turn):
                    return event
        finally:
            await reader.close()
        return None

    def _comes(self, key: SessionKey) -> "asyncio.Task[Session]":
        coming = self._coming.get(key.session_id)
        if coming is None:
            coming = asyncio.create_task(self._read_back(key))
            self._coming[key.session_id] = coming
            coming.add_done_callback(lambda done: self._came(key.session_id, done))
        return coming

    def _came(self, session_id: str, done: "asyncio.Task[Session]") -> None:
        self._coming.pop(session_id, None)
        if not done.cancelled():
            done.exception()  # whoever waited has it; if nobody did, nobody needs it

    def _idle(self, session: Session) -> bool:
        silent_ms = time.time() * 1000 - session.newest[1]
        return not session.running and silent_ms > self._settings.idle_limit_s * 1000

    def _new(self, session_id: str) -> Session:
        return Session(session_id, History(self._recogniser(session_id)))

    def _recogniser(self, session_id: str) -> Callable[[str], str | None]:
        def recognise(text: str) -> str | None:
            minted = self._minter.recognise(text)
            return minted.turn_id if minted is not None and minted.of(session_id) else None

        return recognise

    async def _read_back(self, key: SessionKey) -> Session:
        if key.partition is None or key.offset is None:
            raise _gone()
        session = self._new(key.session_id)
        session.place = (key.partition, key.offset)
        try:
            await self._read(session)
        except NoSuchPosition:
            raise _gone() from None
        if session.opened is None:
            raise _gone()
        if session.ended is not None:
            self.over(session, session.ended)
            raise ended_refusal()
        if session.opened.fingerprint not in (None, self._fingerprint):
            raise CallRefused(
                409, OTHER_RENDERING, kind="fingerprint_mismatch", code="fingerprint_mismatch"
            )
        self._hold(session)
        return session

    async def _read(self, session: Session) -> None:
        assert session.place is not None, "only a session whose place is known is read"
        topic, (partition, start) = self._settings.turns_topic, session.place
        end = (await self._log.end_positions(topic)).get(partition, 0)
        if start >= end:
            return
        size_bytes = 0
        reader = await self._log.read(topic, {partition: start})
        try:
            while reader.positions[partition] < end:
                for entry in await reader.next_batch(_READ_WAIT_S):
                    if entry.position.offset < end and entry.key == event_key(session.session_id):
                        size_bytes += len(entry.value or b"")
                        _take(session, entry)
                if size_bytes > _READ_BYTES_MAX:
                    raise CallRefused(410, TOO_LARGE, kind="session_gone", code="session_gone")
        finally:
            await reader.close()
        session.place = (partition, end)

    def _hold(self, session: Session) -> None:
        """Keep it, and the newest of the others; the log has the rest."""
        self._known[session.session_id] = session
        self._known.move_to_end(session.session_id)
        spare = len(self._known) - self._settings.gateway_sessions_held
        if spare > 0:
            # Past the busy ones, but not past all of them for each new session.
            oldest = [s for _, s in zip(range(spare + 1000), self._known.values(), strict=False)]
            for idle in [s for s in oldest if s.may_go and s is not session][:spare]:
                del self._known[idle.session_id]


def _take(session: Session, entry: Entry) -> None:
    """One event of the session, as the log has it."""
    offset = entry.position.offset
    try:
        event = codec.from_msgpack(entry.value or b"")
        if isinstance(event, SessionOpened) and session.opened is None:
            session.opened, session.opened_at = event, entry.position
        elif isinstance(event, Turn):
            session.history.record(event, position=offset)
            session.prev = offset
            session.number(event.source, event.seq)
            if not event.delivered:
                session.undelivered.add(event.turn_id)
            if event.tools and event.tools_digest:
                session.tools_sent.add(event.tools_digest)
            if event.tools_digest and event.model:
                session.agent_models.add(event.model)
        elif isinstance(event, TurnUndelivered):
            session.number(event.source, event.seq)
            if event.turn_id is not None:
                session.undelivered.add(event.turn_id)
        elif isinstance(event, SessionEnded):
            session.ended = event.end_status
        elif isinstance(event, SessionExpired) and _counts(session, event):
            session.ended = "expired"
    except (BadRecord, BadEvent):
        pass  # the processor makes a dead letter of it; no turn can hang on it
    session.newest = (offset, max(entry.timestamp_ms, session.newest[1]))


def _counts(session: Session, event: SessionExpired) -> bool:
    """An expiry is void if anything came after what its sender had seen."""
    return event.last_offset is None or event.last_offset >= session.newest[0]
