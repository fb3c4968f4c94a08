"""The sessions a gateway serves: what each has recorded, and how one comes back after a restart.

A session's key says where it begins in the log, and every turn is in the log, so what is held
here is a cache: a session that is not known is read back before it is served (`reading`). One that
is over is let go at once.

    gone on with elsewhere            met by the follower; read before the next call is begun
    ended elsewhere, or expired       met by the follower; let go, unless a call is under way
    near a time limit                 a turn that was recorded then is looked for behind an expiry
    opened elsewhere or before        met by the follower, as far as it looks back

An id that was opened so long ago that the follower did not meet it cannot be told from a new one:
looking for it would mean to read all of its partition. It is opened again then, as a session that
knows nothing of the first; the processor counts the second opening as a duplicate if its words
are the same, refuses it if they are not, and refuses every turn if the first has ended.

Invariant: a session that cannot be read back whole is refused, never started empty; one that
still has something to say to the log is never let go; a turn that the log has behind its
session's expiry is not answered as if it counted.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from schemas import codec
from schemas.events import SessionOpened, Turn
from streams.adapters.dialects.calls import CallRefused
from streams.adapters.gateway.access.keys import SessionKey
from streams.adapters.gateway.access.minted import Minter
from streams.adapters.gateway.access.places import Places
from streams.adapters.gateway.following import Follower
from streams.adapters.gateway.history.recorded import History
from streams.adapters.gateway.metrics import Metrics
from streams.adapters.gateway.sessions.events import Over, end_in, expires, head_of, is_news
from streams.adapters.gateway.sessions.openings import Openings
from streams.adapters.gateway.sessions.reading import TOO_LARGE, Passes
from streams.adapters.gateway.sessions.session import Session
from streams.adapters.gateway.sessions.time_limits import TimeLimits
from streams.errors import NoSuchPosition
from streams.log.interface import Entry, Log, Position
from streams.settings import Settings

_TURN_WAIT_S = 5.0
_MARGIN_S = 60.0
"""Before a time limit, half of it at most: clocks differ, and publishing takes time."""
GONE = "this session's events are no longer in the log: open a new session"
ENDED = "this session has ended: open a new one"
PAST_LIMIT = "this session was silent, or open, for longer than its limit: open a new one"
OTHER_RENDERING = (
    "this session was begun with another tokenizer or template: end it, open a new one"
)


def ended_refusal() -> CallRefused:
    """For whoever calls in a session that is over."""
    return CallRefused(410, ENDED, kind="session_ended", code="session_ended")


def _gone(why: str = GONE) -> CallRefused:
    return CallRefused(410, why, kind="session_gone", code="session_gone")


class Sessions:
    """Every session that was used lately, the one used last at the end."""

    def __init__(
        self, settings: Settings, log: Log, minter: Minter, fingerprint: str, metrics: Metrics
    ) -> None:
        """None is known yet."""
        self._settings = settings
        self._metrics = metrics
        self._log = log
        self._minter = minter
        self._fingerprint = fingerprint
        self._known: OrderedDict[str, Session] = OrderedDict()
        self._over: OrderedDict[str, Over] = OrderedDict()
        """How sessions ended, the newest; only to save a look into the log."""
        self._ending: set[str] = set()
        """Sessions whose end is under way, or may be in the log already."""
        self._coming: dict[str, asyncio.Task[Session]] = {}
        self._openings = Openings()
        self._follower = Follower(log, settings.turns_topic, self._meet, self._missed)
        self._passes = Passes(settings, log)
        self.time_limits = TimeLimits()
        self.places = Places(settings.gateway_sessions_open_max)
        self._refused: OrderedDict[SessionKey, tuple[int, str, str]] = OrderedDict()
        """Keys of sessions that were read and can never be served here, the newest: the answer."""
        self._stirred: set[str] = set()
        """Sessions of which something was met while they were read back."""

    def __len__(self) -> int:
        """How many are held."""
        return len(self._known)

    def follow(self) -> None:
        """Learn what others write from now on, and what was written last."""
        self._follower.start()

    async def close(self) -> None:
        """Let go of the log."""
        await self.time_limits.close()
        await self._follower.close()
        await self._passes.close()

    def add(self, opened: SessionOpened, position: Position) -> Session:
        """A session that was opened here."""
        session = self._new(opened.session_id)
        session.opened, session.opened_at = opened, position
        session.opened_ms = int(time.time() * 1000)
        session.place = (position.partition, position.offset + 1)
        session.read = position.offset
        session.newest = (position.offset, session.opened_ms)
        self._hold(session)
        return session

    async def get(self, key: SessionKey) -> Session:
        """The session of a key, read back from the log if it has to be.

        Raises:
            CallRefused: it is over, or what it was is gone.
            LogError: it cannot be read now.
        """
        self._refuse_ended(key.session_id)
        session = self._known.get(key.session_id)
        if session is not None and _begins_before(key, session) and session.may_go:
            session = None  # it was opened twice; the first opening is the one that counts
        if session is None:
            # Shielded: one caller that goes away does not stop it for the others.
            session = await asyncio.shield(self._comes(key))
            self._refuse_ended(key.session_id)  # meanwhile
        elif session.news or self._silent(session):
            await self.read_on(session)  # what happened meanwhile, somebody else has written
        if session.ended is not None:
            raise ended_refusal()
        if self._too_old(session) or (self._silent(session) and not session.running):
            raise _gone(PAST_LIMIT)  # the processor closes it at any moment
        if key.session_id in self._known:
            self._known.move_to_end(key.session_id)
        return session

    def find(self, session_id: str) -> Session | None:
        """A session that is held."""
        return self._known.get(session_id)

    def how_it_ended(self, session_id: str) -> Over | None:
        """Of a session that is known to be over."""
        return self._over.get(session_id)

    async def opened_at(self, event: SessionOpened) -> tuple[Position, bool] | None:
        """Where a session of this id was opened, and whether with the same words.

        None if that is not known: it was not, or long before this gateway started.

        Raises:
            LogError: what was there at the start is not read yet.
        """
        await self._follower.looked_back(self._settings.request_timeout_s)
        return self._openings.find(event)

    async def ending(self, session_id: str) -> Session | None:
        """Take no further call of a session; what is known of it, once that is settled."""
        self._ending.add(session_id)
        coming = self._coming.get(session_id)
        if coming is not None:
            await asyncio.wait({coming})
        session = self._known.get(session_id)
        if session is not None:
            session.sealed = True
        return session

    def over(self, session_id: str, how: Over) -> None:
        """The log has its end; nothing of it is needed any more."""
        session = self._known.pop(session_id, None)
        if session is not None:
            session.ended = how.status
        self._ending.discard(session_id)
        self.time_limits.forget(session_id)
        self.places.free(session_id)
        self._over[session_id] = how
        while len(self._over) > self._settings.gateway_sessions_held:
            self._over.popitem(last=False)

    async def read_on(self, session: Session) -> None:
        """Take over what others wrote of the session since, all that the log has now."""
        if session.place is not None:
            if not session.news:
                self._pass_over(session)
            session.news = False
            try:
                await self._passes.read_on(session)
            except BaseException:
                session.news = True
                raise
            if session.ended is not None:
                self.over(session.session_id, Over(session.ended, session.ended_words))

    async def ended_before(self, session: Session) -> Over | None:
        """How somebody else ended a session, if so.

        Raises:
            LogError: that cannot be read now.
        """
        if session.news or session.doubted or self._silent(session) or self._too_old(session):
            await self.read_on(session)
        return self._over.get(session.session_id)

    def doubt(self, session: Session) -> None:
        """Before a turn is published: note whether the session may have expired by now."""
        if self._silent(session, near=True) or self._too_old(session, near=True):
            session.doubted = True

    async def came_late(self, session: Session, turn_id: str) -> bool:
        """Whether a turn that was published stands behind its session's end.

        Raises:
            LogError: that cannot be read now.
        """
        if session.doubted or session.news:
            await self.read_on(session)
            session.doubted = False
        if session.ended_at is None:
            return False
        position = session.history.turns[turn_id].position
        return position is None or position > session.ended_at

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
            coming = asyncio.create_task(self._counted(key))
            self._coming[key.session_id] = coming
            coming.add_done_callback(lambda done: self._came(key.session_id, done))
        return coming

    def _came(self, session_id: str, done: "asyncio.Task[Session]") -> None:
        self._coming.pop(session_id, None)
        self._stirred.discard(session_id)
        if not done.cancelled():
            done.exception()  # whoever waited has it; if nobody did, nobody needs it

    def _refuse_ended(self, session_id: str) -> None:
        if session_id in self._over or session_id in self._ending:
            raise ended_refusal()

    def _silent(self, session: Session, *, near: bool = False) -> bool:
        """Whether the processor takes it for abandoned, or soon will."""
        return _passed(session.newest[1], self._settings.idle_limit_s, near=near)

    def _too_old(self, session: Session, *, near: bool = False) -> bool:
        """Whether the processor ends it whatever happens, or soon will."""
        return _passed(session.opened_ms, self._settings.hard_limit_s, near=near)

    def _missed(self) -> None:
        """The log let go of entries that were not met: each may have been anybody's."""
        self._stirred.update(self._coming)
        for session in self._known.values():
            session.news = True

    def _meet(self, entry: Entry) -> None:
        """An entry of any session, when the log has it."""
        head = head_of(entry)
        session_id = (entry.key or b"").decode(errors="replace")
        if session_id in self._coming:
            self._stirred.add(session_id)
        session = self._known.get(session_id)
        if session is not None and _is_next(session, entry.position) and is_news(session, head):
            session.news = True
        if session is None or session.may_go:
            if head.type == "session_ended":
                self._meet_end(session_id, entry)
            elif head.type == "session_expired" and (session is None or expires(session, entry)):
                # Not over: whoever calls in it once more reads from the log whether it is.
                self._known.pop(session_id, None)
                self.places.free(session_id)
        if head.type == "session_opened":
            self._openings.meet(session_id, entry)

    def _meet_end(self, session_id: str, entry: Entry) -> None:
        """Let go of a session that nobody here is busy with."""
        how = end_in(entry) if session_id not in self._over else None
        if how is not None:
            self.over(session_id, how)

    def _new(self, session_id: str) -> Session:
        return Session(session_id, History(self._recogniser(session_id)))

    def _recogniser(self, session_id: str) -> Callable[[str], str | None]:
        def recognise(text: str) -> str | None:
            minted = self._minter.recognise(text)
            return minted.turn_id if minted is not None and minted.of(session_id) else None

        return recognise

    async def _counted(self, key: SessionKey) -> Session:
        try:
            if key in self._refused:  # it would be read, all of it, for nothing
                status, message, code = self._refused[key]
                raise CallRefused(status, message, kind=code, code=code)
            with self._metrics.stage("read_back"):
                return await self._read_back(key)
        except CallRefused as refusal:
            self._metrics.count(f"read_back_refused:{refusal.code}")
            if refusal.message in (TOO_LARGE, OTHER_RENDERING):
                self._refused[key] = (refusal.status, refusal.message, refusal.code or "")
            if len(self._refused) > self._settings.gateway_sessions_held:
                self._refused.popitem(last=False)
            raise

    async def _read_back(self, key: SessionKey) -> Session:
        if key.partition is None or key.offset is None:
            raise _gone()
        session = self._new(key.session_id)
        session.place = (key.partition, key.offset)
        self._stirred.discard(key.session_id)
        try:
            await self._passes.read_on(session)
        except NoSuchPosition:
            raise _gone() from None
        if session.opened is None:
            raise _gone()
        if session.ended is not None:
            self.over(session.session_id, Over(session.ended, session.ended_words))
            raise ended_refusal()
        if session.opened.fingerprint not in (None, self._fingerprint):
            raise CallRefused(
                409, OTHER_RENDERING, kind="fingerprint_mismatch", code="fingerprint_mismatch"
            )
        session.news = key.session_id in self._stirred
        self._hold(session)
        return session

    def _pass_over(self, session: Session) -> None:
        """Leave out what the follower has met and is nothing new of the session."""
        assert session.place is not None, "only a session whose place is known is read"
        partition, start = session.place
        session.place = (partition, max(start, self._follower.met(partition)))

    def _hold(self, session: Session) -> None:
        """Keep it, and the newest of the others; the log has the rest."""
        self._known[session.session_id] = session
        self._known.move_to_end(session.session_id)
        self.time_limits.watch(session)
        self.places.hold(session.session_id)
        spare = len(self._known) - self._settings.gateway_sessions_held
        if spare > 0:
            # Past the busy ones, but not past all of them for each new session.
            oldest = [s for _, s in zip(range(spare + 1000), self._known.values(), strict=False)]
            for idle in [s for s in oldest if s.may_go and s is not session][:spare]:
                del self._known[idle.session_id]


def _passed(since_ms: int, limit_s: float, *, near: bool) -> bool:
    early_s = min(limit_s / 2, _MARGIN_S) if near else 0.0
    return time.time() * 1000 - since_ms > (limit_s - early_s) * 1000


def _begins_before(key: SessionKey, session: Session) -> bool:
    at = session.opened_at
    if at is None or key.offset is None or key.partition != at.partition:
        return False
    return key.offset < at.offset


def _is_next(session: Session, position: Position) -> bool:
    """Whether it stands where nothing was read of the session yet."""
    if session.place is None or position.partition != session.place[0]:
        return False
    return position.offset >= session.place[1]
