"""The control API, for whoever starts agents: open a session, end it, reward it, look at it.

    POST  /control/sessions                  open        -> key, base URL
    GET   /control/sessions/ID               what this gateway knows of it
    POST  /control/sessions/ID/end           status, reward
    POST  /control/sessions/ID/rewards       a reward, for the session or one turn
    POST  /control/drain                     take no new calls
    POST  /control/pause, /control/resume    see `control_weights`

The fields are those of the events `session_opened`, `session_ended` and `reward`; a turn may also
be named by the id of its answer or of a tool call in it. Opening or ending a second time with the
same words is no error, so that a request whose reply was lost can be sent again; with other words
it is a conflict, as far as the first is known here (see `sessions`). While the trainer is too far
behind (see `admission`), or as many are open as may be, opening is answered 429 with `retry-after`.

Invariant: a reply means that the event it speaks of is durable; the control key opens this and
nothing else, and a session key does not open it; a field that is not known, or that a reader of
the log could not read, is refused by name.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import numpy as np
from aiohttp import web

from schemas.bad_record import BadRecord
from schemas.checks import score
from schemas.codec import from_json
from schemas.events import Event, Reward, SessionEnded, SessionOpened
from schemas.record import Record
from streams.adapters.dialects.calls import CallRefused
from streams.adapters.gateway.access.admission import RETRY_AFTER_S, Admission, TrainerBehind
from streams.adapters.gateway.access.keys import KeyRing
from streams.adapters.gateway.access.places import NoPlace
from streams.adapters.gateway.api.bodies import Bodies
from streams.adapters.gateway.metrics import UNKNOWN_RUN
from streams.adapters.gateway.parts import Parts
from streams.adapters.gateway.sessions.events import Over, words_of
from streams.adapters.gateway.sessions.served import ended_refusal
from streams.adapters.gateway.sessions.session import Session
from streams.adapters.time_limit import reason_of
from streams.core.content import Message, NoMessage, message_from
from streams.core.partition import Partition
from streams.errors import LogError, TooLarge
from streams.log.interface import Position

Kind = TypeVar("Kind", bound=Record)
Told = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_OURS = {"type", "v"}
_CONFLICT, _BEHIND, _AWAY = 409, 429, 503
_REWARD_MAX = float(np.finfo(np.float32).max)
"""Trainers compute with 32 bits; beyond this a reward is infinite there."""


class Refused(Exception):
    """A request of the operator's that cannot be done."""

    def __init__(self, status: int, message: str) -> None:
        """What is wrong, and what to do."""
        super().__init__(message)
        self.status = status


class Control:
    """The routes behind the control key."""

    def __init__(self, parts: Parts, keys: KeyRing, admission: Admission, bodies: Bodies) -> None:
        """`base_url` is set when the port is known."""
        self._bodies = bodies
        self._settings = parts.settings
        self._sessions = parts.sessions
        self._publisher = parts.publisher
        self._minter = parts.minter
        self._metrics = parts.metrics
        self._fingerprint = parts.renderer.fingerprint
        self._keys = keys
        self._admission = admission
        parts.sessions.time_limits.end = self._time_is_up
        self._opening: set[str] = set()
        self._ends: dict[str, tuple[bytes, asyncio.Task[Told]]] = {}
        """What was said, and the end under way."""
        self.base_url = ""

    def routes(self) -> list[web.RouteDef]:
        """All of them but those of the process."""
        return [
            web.post("/control/sessions", self.guarded(self._open)),
            web.get("/control/sessions/{id}", self.guarded(self._state)),
            web.post("/control/sessions/{id}/end", self.guarded(self._end)),
            web.post("/control/sessions/{id}/rewards", self.guarded(self._reward)),
        ]

    def guarded(self, handle: Callable[[web.Request], Awaitable[Told]]) -> Handler:
        """The handler, behind the control key and with its errors as JSON."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            text = request.headers.get("authorization", "")
            key = text[7:].strip() if text[:7].lower() == "bearer " else text
            if not self._keys.is_control(key):
                self._metrics.count("keys_refused")
                self._metrics.say_seldom("refused_control", detail="401: no control key")
                return _json({"error": "the control key is missing or wrong"}, 401)
            try:
                return _json(await handle(request))
            except Exception as error:
                return self._failed(request.match_info.get("id"), error)

        return guarded

    async def fields_of(self, request: web.Request, kind: type[Record]) -> Told:
        """What is asked for, each value as its text: numbers and metadata are logged as given."""
        use = self._bodies.limits.begin(None)
        try:
            body = await self._bodies.read(request, use)
        finally:
            use.release()
        try:
            fields = msgspec.json.decode(body or b"{}", type=dict[str, msgspec.Raw])
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is no JSON object: {error}") from None
        known = set(kind.__struct_fields__) - _OURS
        for name in fields.keys() - known:
            known_names = ", ".join(sorted(known))
            raise Refused(400, f"`{name:.80}` is no field here; there are {known_names}")
        for name, text in fields.items():
            _check_readable(name, text)
        return dict(fields)

    def _failed(self, session_id: str | None, error: Exception) -> web.Response:
        match error:
            case Refused():
                told, status = {"error": str(error)}, error.status
            case TrainerBehind():
                told = {"error": str(error), "code": "trainer_behind"}
                return _json(told, _BEHIND, RETRY_AFTER_S)
            case NoPlace():
                told, status = {"error": str(error), "code": "no_place"}, _BEHIND
            case TooLarge():
                told, status = {"error": f"too large: {error}"}, 413
            case CallRefused():
                told, status = {"error": error.message}, error.status
            case BadRecord():
                told, status = {"error": error.detail, "code": error.code}, 400
            case LogError():
                self._metrics.say("log", session_id, None, str(error))
                told, status = {"error": f"not durable: {error}: try again"}, 503
            case _:
                self._metrics.failure(session_id, None, error)
                told, status = {"error": "the gateway failed"}, 500
        return _json(told, status, self._settings.gateway_retry_after_s)

    async def _open(self, request: web.Request) -> Told:
        fields = await self.fields_of(request, SessionOpened)
        asked = {"session_id": f"s-{uuid.uuid4().hex}", **fields}
        # Both decide what the samples are, and a later start may have other settings.
        asked.setdefault("policy", self._settings.profile)
        asked.setdefault("fingerprint", self._fingerprint)
        event = event_of(SessionOpened, "session_opened", asked)
        _check(event)
        if event.fingerprint != self._fingerprint:
            detail = f"`fingerprint` is not this gateway's, which is {self._fingerprint}"
            raise Refused(400, detail)
        position = await self._opened_before(event) if "session_id" in fields else None
        if position is None:
            await self._admission.check(event)
            position = await self._opened(event)
        expires_ms = int((time.time() + self._settings.key_lifetime_s) * 1000)
        key = self._keys.mint(event.session_id, expires_ms, position)
        return {
            "session_id": event.session_id,
            "key": key,
            "base_url": f"{self.base_url}/v1",
            "base_url_with_key": f"{self.base_url}/s/{key}/v1",
            "expires_ms": expires_ms,
        }

    async def _opened_before(self, event: SessionOpened) -> Position | None:
        """Where, if it was opened with the same words and goes on, as far as that is known."""
        opened = await self._sessions.opened_at(event)
        session = self._sessions.find(event.session_id)
        over = self._sessions.how_it_ended(event.session_id)
        if session is not None and session.opened_at is not None:
            opened = session.opened_at, session.opened == event and not session.sealed
        if opened is not None and opened[1] and over is None:
            return opened[0]
        if opened is not None or over is not None or event.session_id in self._opening:
            detail = f"`session_id` {event.session_id} is in use or was: ids are never used again"
            raise Refused(_CONFLICT, detail)
        return None

    async def _opened(self, event: SessionOpened) -> Position:
        await self._take_place(event.session_id)
        self._opening.add(event.session_id)
        try:
            position = await self._publisher.event(event.session_id, event)
        except BaseException:
            self._sessions.places.free(event.session_id)
            raise
        finally:
            self._opening.discard(event.session_id)
        self._sessions.add(event, position)
        self._metrics.count_run(event.run_id, "sessions_opened")
        return position

    async def _take_place(self, session_id: str) -> None:
        """Have a place for a new session, if there is one by what the log says now."""
        places = self._sessions.places
        for open_id in list(places.taken) if places.full else ():
            held = self._sessions.find(open_id)
            if held is not None:
                await self._sessions.ended_before(held)
        places.take(session_id)

    async def _end(self, request: web.Request) -> Told:
        session_id = request.match_info["id"]
        fields = await self.fields_of(request, SessionEnded)
        if "final_message" in fields:
            fields["final_message"] = _message(fields["final_message"])
        asked = {"end_status": "completed", **fields, "session_id": session_id}
        event = event_of(SessionEnded, "session_ended", asked)
        _check(self._opening_of(session_id), event)
        return await self._ended_once(event)

    async def _ended_once(self, event: SessionEnded) -> Told:
        """End the session, or join whoever does so in the same words."""
        session_id, words = event.session_id, words_of(event)
        over = self._sessions.how_it_ended(session_id)
        if over is not None:
            return _already(event, over)
        if session_id not in self._ends:
            # Shielded: whoever asks and goes away still has ended it.
            ending = asyncio.create_task(self._ended(event))
            self._ends[session_id] = (words, ending)
            ending.add_done_callback(lambda done: self._let_go(session_id, done))
        said, ending = self._ends[session_id]
        _check_words(said, words, "another status or reward")
        return await asyncio.shield(ending)

    async def _time_is_up(self, session_id: str, limit_ms: int) -> None:
        """End a session that took too long; while the log is away, try again."""
        asked = {"session_id": session_id, "end_status": "timeout", "reason": reason_of(limit_ms)}
        event = event_of(SessionEnded, "session_ended", asked)
        while self._sessions.how_it_ended(session_id) is None:
            try:
                await self._ended_once(event)
                self._metrics.count("sessions_timed_out")
            except Refused as refusal:
                if refusal.status == _CONFLICT:
                    return  # somebody ends it just now, in words that count
                await asyncio.sleep(self._settings.gateway_retry_after_s)
            except LogError as error:
                self._metrics.say("log", session_id, None, str(error))
                await asyncio.sleep(self._settings.gateway_retry_after_s)

    def _let_go(self, session_id: str, done: "asyncio.Task[Told]") -> None:
        self._ends.pop(session_id, None)
        if not done.cancelled():
            done.exception()  # whoever asked has it

    async def _ended(self, event: SessionEnded) -> Told:
        words = words_of(event)
        session = await self._sessions.ending(event.session_id)
        if session is not None:
            await self._finish(session)
            over = await self._sessions.ended_before(session)
            if over is not None:
                return _already(event, over)
            if event.turns is None and session.sources:
                event = msgspec.structs.replace(event, turns=dict(session.sources))
        await self._publisher.event(event.session_id, event)
        self._sessions.over(event.session_id, Over(event.end_status, words))
        run_id = session.run_id if session else event.run_id or UNKNOWN_RUN
        self._metrics.count_run(run_id, "sessions_ended")
        return {"session_id": event.session_id, "end_status": event.end_status}

    async def _finish(self, session: Session) -> None:
        """Let turns under way end, stop those that do not, and say what is still unsaid.

        After the end the log takes no turn of the session any more.
        """
        if not await session.quiet(self._settings.gateway_drain_timeout_s):
            for turn in list(session.running.values()):
                turn.stop(ended_refusal())
            if not await session.quiet(self._settings.publish_timeout_s):
                raise Refused(503, "turns of the session are still under way: try again")
        await self._publisher.say_all(session)

    async def _reward(self, request: web.Request) -> Told:
        session_id = request.match_info["id"]
        fields = await self.fields_of(request, Reward)
        asked = {"reward_id": uuid.uuid4().hex, **fields, "session_id": session_id}
        named = bytes(fields.get("turn_id", b"")).decode(errors="replace").strip('"')
        minted = self._minter.recognise(named)
        if minted is not None and minted.of(session_id):
            asked["turn_id"] = minted.turn_id
        event = event_of(Reward, "reward", asked)
        _check(self._opening_of(session_id), event)
        await self._publisher.event(session_id, event)
        told = {"session_id": session_id, "reward_id": event.reward_id, "turn_id": event.turn_id}
        return {name: value for name, value in told.items() if value is not None}

    def _opening_of(self, session_id: str) -> SessionOpened:
        """As far as it is known here; else one that says nothing."""
        session = self._sessions.find(session_id)
        known = session.opened if session is not None else None
        return known or SessionOpened(session_id=session_id)

    async def _state(self, request: web.Request) -> Told:
        session_id = request.match_info["id"]
        session = self._sessions.find(session_id)
        if session is not None:
            return _told(session)
        over = self._sessions.how_it_ended(session_id)
        if over is None:
            raise Refused(404, "this gateway does not hold that session")
        return {"session_id": session_id, "ended": over.status}


def _told(session: Session) -> Told:
    return {
        "session_id": session.session_id,
        "ended": session.ended,
        "calls": session.calls,
        "recorded_turns": len(session.history.turns),
        "in_flight": len(session.running),
        "undelivered": len(session.undelivered),
    }


def _check_readable(name: str, text: msgspec.Raw) -> None:
    """Refuse what is logged unread, and what a judge or a sink could not read later."""
    if name == "reward":
        return  # a term that is not finite is noted in the payload (see `schemas.finite`)
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"`{name}` cannot be read: {error}") from None


def event_of(kind: type[Kind], name: str, asked: Told) -> Kind:
    """The record that these fields are."""
    event = from_json(msgspec.json.encode({**asked, "type": name}))
    assert isinstance(event, kind), "the type is given"
    return event


def _already(event: SessionEnded, over: Over) -> Told:
    _check_words(over.words, words_of(event), over.status)
    return {"session_id": event.session_id, "end_status": over.status, "already": True}


def _check_words(before: bytes | None, now: bytes, how: str) -> None:
    """Whoever ends a session twice, in different words, must not believe that both count."""
    if before is not None and before != now:
        detail = f"the session was ended before, in other words ({how}); those count"
        raise Refused(_CONFLICT, detail)


def _check(*events: Event) -> None:
    """Refuse what the processor would refuse, before it is in the log and nobody hears of it."""
    for event in events:
        if isinstance(event, Reward | SessionEnded):
            _check_reward(event)
    partition = Partition()
    for position, event in enumerate(events):
        for refusal in partition.feed(event, position).refusals:
            raise refusal


def _message(text: msgspec.Raw) -> msgspec.Raw | Message | None:
    """A final message as it is recorded: judges read it.

    Raises:
        Refused: it is no message.
    """
    given = msgspec.json.decode(text)
    if given is None:
        return None
    try:
        message = message_from(given) if isinstance(given, str | dict) else None
    except NoMessage:
        message = None
    if message is None or not _is_message(message):
        kinds = "a text, or an object with `role` (a text), `content` (a text, parts or null) and "
        raise Refused(400, f"`final_message` is no message: give {kinds}`tool_calls` (objects)")
    return text if message == given else message


def _is_message(message: Message) -> bool:
    content, calls = message.get("content"), message.get("tool_calls")
    parts = content if isinstance(content, list) else []
    return (
        isinstance(message["role"], str)
        and isinstance(content, str | list | None)
        and all(isinstance(part, str | dict) for part in parts)
        and isinstance(calls, list | None)
        and all(isinstance(call, dict) for call in calls or ())
    )


def _check_reward(event: Reward | SessionEnded) -> None:
    value = None if event.reward is None else score(event.reward)
    if event.reward_invalid or (value is not None and abs(value) > _REWARD_MAX):
        raise Refused(400, "`reward` is no finite number of 32 bits")


def _json(value: Told, status: int = 200, retry_after_s: int | None = None) -> web.Response:
    again = status in {_BEHIND, _AWAY} and retry_after_s is not None
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers={"retry-after": str(retry_after_s)} if again else None,
    )
