"""The HTTP side: every dialect's routes, keys, streams with keep-alive, health and metrics.

    POST  /v1/chat/completions             key as bearer or x-api-key
    POST  /s/KEY/v1/chat/completions       or in the path
    POST  /v1/messages   /v1/responses     likewise, and whatever other dialects serve
    GET   /v1/models   /healthz
    POST  /control/...                     see `control`

Invariant: a request without a key that opens its session learns nothing; whatever goes wrong is
said in the API's own shape: that of the path, also where the head of a request cannot be read. Out
of reach are the 503 of a connection that is refused before anything is read, which is Anthropic's
shape, and the 417 of an `expect: ...` to a path that is not served, which is plain text; and what
is refused while its head is read is answered as HTTP/1.0.
"""

import asyncio
import functools
import itertools
import re
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web

from streams.adapters.dialects import anthropic, openai_chat, openai_responses
from streams.adapters.dialects.calls import Answer, Call, CallRefused, Piece
from streams.adapters.dialects.common import ContextOverflow, refused
from streams.adapters.dialects.dialect import AnswerStream, CountingDialect, Dialect, Route
from streams.adapters.gateway.access.keys import BadKey, KeyRing, SessionKey
from streams.adapters.gateway.access.under_way import RequestUse
from streams.adapters.gateway.api.bodies import Bodies
from streams.adapters.gateway.parts import Parts
from streams.adapters.gateway.prompting import count_of
from streams.adapters.gateway.rendering.counting import is_long
from streams.adapters.gateway.sessions.classing import told
from streams.adapters.gateway.sessions.served import ended_refusal
from streams.adapters.gateway.sessions.session import Session
from streams.adapters.gateway.turns import RunningTurn
from streams.errors import LogError

_SLOW_S = 120.0
_RETRY_STATUSES = {429, 500, 502, 503, 529}
_FINAL_STATUSES = {401, 403, 409, 410, 413, 415}
"""The same request gets the same answer: clients that ask headers do not try again."""
_READ_AT_ONCE = 16_384
"""Bytes of a body that takes no turn of the event loop's to be decoded: a millisecond at most."""
_MODEL_CHARACTERS_MAX = 256
"""It is repeated in every event of a stream and recorded with every turn."""
_KEYED = "/s/"
"""A path that begins so has the key next."""
DIALECTS: tuple[Dialect, ...] = (openai_chat, anthropic, openai_responses)
"""The first is for those whose request does not tell."""
COUNTING: tuple[CountingDialect, ...] = (anthropic, openai_responses)
UNKNOWN_KEY = "unknown or expired key: open a session with the control API for a new one"
GOING_DOWN = "this gateway is going down: try again"

_CONTROL = "/control/"
_CONTINUE = "100-continue"
_UNREADABLE_CHARACTERS_MAX = 200
"""Of what the HTTP server says of a head; it would repeat the head."""
_PATH_CHARACTERS_MAX = 100
"""Of a path in a line of the log."""
_KEY = re.compile(r"t[sc]-[\w-]+")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Unreadable = Callable[[web.BaseRequest, int, str], web.Response]
Work = Callable[[web.Request, SessionKey, RequestUse], Awaitable[web.StreamResponse]]


class Api:
    """The routes that agents use."""

    def __init__(self, parts: Parts, keys: KeyRing, models: Sequence[str], bodies: Bodies) -> None:
        """Nothing is served yet."""
        self._parts = parts
        self._keys = keys
        self._bodies = bodies
        self._dialects = DIALECTS
        self._counting = COUNTING
        self._models = models
        self._turns: set[RunningTurn] = set()
        self.draining = False

    @property
    def in_flight(self) -> int:
        """Turns under way."""
        return len(self._turns)

    def pulse(self) -> int | None:
        """A number that moves with the calls under way; None: there is none."""
        sampled = [len(turn.sampled.ids) for turn in list(self._turns)]
        return sum(sampled) + self._parts.metrics.counts.total() if sampled else None

    def in_flight_of(self, run_id: str) -> int:
        """Those of one run."""
        return sum(turn.run_id == run_id for turn in self._turns)

    def routes(self) -> list[web.RouteDef]:
        """Of every dialect, with the key in a header or in the path."""
        served: dict[Route, Handler] = {}
        for dialect in self._dialects:
            served |= dict.fromkeys(dialect.ROUTES, self._calls(dialect))
            served[dialect.MODELS_ROUTE] = self._listed
        for dialect in self._counting:
            served |= dict.fromkeys(dialect.COUNT_ROUTES, self._counts(dialect))
        return [
            web.route(method, prefix + path, handler)
            for (method, path), handler in served.items()
            for prefix in ("", f"{_KEYED}{{key}}")
        ]

    async def drain(self, seconds: float) -> int:
        """Take no new call and let those under way end; how many are left."""
        self.draining = True
        if self._turns:
            await asyncio.wait({turn.task for turn in self._turns}, timeout=seconds)
        return len(self._turns)

    async def stop(self, seconds: float) -> None:
        """Stop what is under way, and let it be recorded."""
        for turn in self._turns:
            turn.stop(_going_down())
        await self.drain(seconds)
        for turn in self._turns:
            turn.task.cancel()

    @web.middleware
    async def shaped(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Give whatever the server itself refuses, or fails at, the API's own shape."""
        response = await self._answered(request, handler)
        if request.content.exception() is not None:
            # A body that has no end: what follows it cannot be told from it.
            response.force_close()
            request.content.feed_eof()
        return response

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            what = f"{request.method} {_unkeyed(request.path)}: {error.reason}"
            refusal = CallRefused(error.status, what)
        except asyncio.CancelledError:
            raise
        except ConnectionError:
            # Nobody is left to answer; raised, it would be logged as an error of ours.
            return web.Response(status=499)
        except Exception as error:
            self._parts.metrics.failure(None, None, error)
            refusal = CallRefused(500, "the gateway failed", kind="server_error")
        if request.path.startswith(_CONTROL):
            return self._at_control(refusal)
        return self._refused(self._spoken(request), refusal, request)

    def unreadable(self, path: str, status: int, message: str) -> web.Response:
        """The answer to a request that the HTTP server could not read, by what it asked for."""
        refusal = CallRefused(status, _first_of(message))
        if path.startswith(_CONTROL):
            return self._at_control(refusal)
        return self._refusal(self._spoken_at(path, {}), refusal)

    def _at_control(self, refusal: CallRefused) -> web.Response:
        self._parts.metrics.count(f"answers:{refusal.status}")
        body = msgspec.json.encode({"error": refusal.message})
        return web.Response(status=refusal.status, body=body, content_type="application/json")

    def _spoken(self, request: web.Request) -> Dialect:
        """The dialect of a request that no route told."""
        return self._spoken_at(request.path, request.headers)

    def _spoken_at(self, path: str, headers: Container[str]) -> Dialect:
        """A dialect by a path, else by the headers."""
        path = _unkeyed(path) + "/"
        placed = (
            dialect
            for dialect in self._dialects
            if any(path.startswith(f"{start}/") for _, start in dialect.ROUTES)
        )
        marked = (
            dialect
            for dialect in self._dialects
            if dialect.MARK_HEADER is not None and dialect.MARK_HEADER in headers
        )
        return next(itertools.chain(placed, marked), self._dialects[0])

    async def _listed(self, request: web.Request) -> web.StreamResponse:
        dialect = self._spoken(request)
        try:
            self._read_key(request, dialect)
        except CallRefused as refusal:
            return self._refused(dialect, refusal, request)
        body = dialect.models_body(self._models)
        return web.Response(body=body, content_type=dialect.BODY_TYPE)

    def _keyed(self, dialect: Dialect, work: Work) -> Handler:
        """Behind a session's key, and counted as a request of it."""

        async def handle(request: web.Request) -> web.StreamResponse:
            session_id: str | None = None
            try:
                key = self._read_key(request, dialect)
                session_id = key.session_id
                use = self._bodies.limits.begin(session_id)
                try:
                    return await work(request, key, use)
                finally:
                    use.release()
            except CallRefused as refusal:
                return self._refused(dialect, refusal, request, session_id)
            except LogError as error:
                self._parts.metrics.say("log", None, None, str(error))
                away = CallRefused(503, "the log is away: try again", kind="log_unavailable")
                return self._refused(dialect, away, request, session_id)

        return handle

    def _counts(self, dialect: CountingDialect) -> Handler:
        async def handle(
            request: web.Request, key: SessionKey, use: RequestUse
        ) -> web.StreamResponse:
            session = await self._session(key)
            try:
                call = await self._read(request, dialect, session.session_id, use)
                count = await count_of(call, session, self._parts)
            except ContextOverflow as overflow:
                count = overflow.prompt_tokens  # at least: it was not counted to its end
            body = dialect.count_body(count)
            return web.Response(body=body, content_type=dialect.BODY_TYPE)

        return self._keyed(dialect, handle)

    def _calls(self, dialect: Dialect) -> Handler:
        async def handle(
            request: web.Request, key: SessionKey, use: RequestUse
        ) -> web.StreamResponse:
            began_s = time.monotonic()
            session = await self._session(key)
            read = await self._read(request, dialect, session.session_id, use)
            call = told(read, request.headers)
            for name in call.ignored:
                self._parts.metrics.count(f"ignored:{name}")
            turn = self._begin(session, call, dialect)
            use.hold_until_done(turn.task)
            try:
                answer = self._stream if call.stream else self._whole
                response = await answer(request, dialect, turn)
            except BaseException:
                turn.client_gone()
                raise
            took_s = time.monotonic() - began_s
            if took_s > _SLOW_S:
                detail = f"{took_s:.0f} s, status {response.status}"
                self._parts.metrics.say("slow", session.session_id, turn.turn_id, detail)
            return response

        return self._keyed(dialect, handle)

    async def _read(
        self,
        request: web.Request,
        dialect: Dialect | CountingDialect,
        session_id: str,
        use: RequestUse,
    ) -> Call:
        """The call, if it is not far beyond what a prompt can be."""
        body = await self._bodies.read(request, use)
        if len(body) > _READ_AT_ONCE:
            await self._parts.loop_turns.next(session_id)
        call = dialect.read_call(body)
        if len(call.model) > _MODEL_CHARACTERS_MAX:
            raise refused("model", f"has more than {_MODEL_CHARACTERS_MAX} characters")
        most = self._parts.settings.gateway_messages_max
        if len(call.messages) > most:
            raise CallRefused(413, f"the request has {len(call.messages)} messages, at most {most}")
        window = self._parts.settings.gateway_context_tokens
        if is_long(len(body), window):  # each character is at least a byte of it
            check = functools.partial(self._parts.renderer.fitting.check, call, window)
            await self._parts.loop_turns.beside(session_id, check)
        return call

    def _begin(self, session: Session, call: Call, dialect: Dialect) -> RunningTurn:
        """Nothing is awaited from the checks to the turn's start: an end cannot come between."""
        self._admit(session)
        turn = RunningTurn(self._parts, session, call, dialect)
        self._turns.add(turn)
        session.work.hear(call)
        turn.task.add_done_callback(lambda _: self._turns.discard(turn))
        return turn

    def _read_key(self, request: web.Request, dialect: Dialect) -> SessionKey:
        """The key in the path; else the first in a header that is one."""
        in_path = request.match_info.get("key")
        texts = [request.headers.get(header, "") for header in dialect.KEY_HEADERS]
        reason = "none given"
        for text in [in_path] if in_path else [_bare(text) for text in texts if text]:
            try:
                return self._keys.read(text, int(time.time() * 1000))
            except BadKey as error:
                reason = error.reason
        self._parts.metrics.count("keys_refused")
        raise KeyRefused(reason)

    async def _session(self, key: SessionKey) -> Session:
        if self.draining:
            raise _going_down()
        await self._parts.weights.known()
        return await self._parts.sessions.get(key)

    def _admit(self, session: Session) -> None:
        if self.draining:
            raise _going_down()
        if session.sealed or session.ended is not None:
            raise ended_refusal()
        limit = self._parts.settings.gateway_turns_max
        budget = session.budget("turns")
        most = limit if budget is None else min(budget, limit)
        if session.calls >= most:
            detail = f"this session has used its {most} turns: end it"
            raise CallRefused(403, detail, kind="turn_limit", code="turn_limit")

    async def _whole(
        self, request: web.Request, dialect: Dialect, turn: RunningTurn
    ) -> web.StreamResponse:
        while True:
            out = await turn.out.get()
            if isinstance(out, CallRefused):
                return self._refused(dialect, out, request, turn=turn)
            if isinstance(out, Answer):
                body = dialect.answer_body(turn.call, out)
                response = web.Response(body=body, content_type=dialect.BODY_TYPE)
                await response.prepare(request)
                await response.write_eof()
                self._parts.metrics.count("answers:200")
                return response

    async def _stream(
        self, request: web.Request, dialect: Dialect, turn: RunningTurn
    ) -> web.StreamResponse:
        keep_alive_s = self._parts.settings.gateway_keep_alive_s
        stream = dialect.stream(turn.call, turn.names)
        response: web.StreamResponse | None = None
        while True:
            out = await _next(turn.out, keep_alive_s)
            if response is None:
                if isinstance(out, CallRefused) and not dialect.refuses_in_stream(out):
                    return self._refused(dialect, out, request, turn=turn)
                response = await _begun(request, dialect, stream)
            data = _event(stream, out)
            if isinstance(out, Answer | CallRefused):
                # In one go: a client that has seen the end may hang up at once.
                await response.write_eof(data)
                self._parts.metrics.count("answers:200")
                if isinstance(out, CallRefused):
                    self._say(out, request, turn.session_id, turn)
                return response
            if data:
                await response.write(data)

    def _refused(
        self,
        dialect: Dialect,
        refusal: CallRefused,
        request: web.Request,
        session_id: str | None = None,
        *,
        turn: RunningTurn | None = None,
    ) -> web.Response:
        self._say(refusal, request, turn.session_id if turn else session_id, turn)
        return self._refusal(dialect, refusal)

    def _refusal(self, dialect: Dialect, refusal: CallRefused) -> web.Response:
        self._parts.metrics.count(f"answers:{refusal.status}")
        headers = {}
        if refusal.status in _RETRY_STATUSES:
            headers["retry-after"] = str(self._parts.settings.gateway_retry_after_s)
        elif refusal.status in _FINAL_STATUSES:
            headers["x-should-retry"] = "false"
        return web.Response(
            status=refusal.status,
            body=dialect.error_body(refusal),
            content_type=dialect.BODY_TYPE,
            headers=headers,
        )

    def _say(
        self,
        refusal: CallRefused,
        request: web.Request,
        session_id: str | None,
        turn: RunningTurn | None,
    ) -> None:
        """The access log's line of an error; what the error says may repeat the conversation."""
        if request.method == "HEAD":
            return  # clients ask so whether a server is there
        detail = f"{refusal.status} {refusal.code or refusal.kind}"
        if isinstance(refusal, KeyRefused):
            detail += f": {refusal.reason}"
        self._parts.metrics.say_seldom(
            "refused",
            session_id,
            turn.turn_id if turn else None,
            detail=detail,
            path=_KEY.sub("...", _unkeyed(request.path))[:_PATH_CHARACTERS_MAX],
        )


class HttpProtocol(web.RequestHandler):
    """The HTTP server's end of a connection, which gives its own refusals the API's shape."""

    __slots__ = ("_unreadable",)

    def __init__(self, server: web.Server, unreadable: Unreadable, **options: Any) -> None:
        """`unreadable` makes the answer."""
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._unreadable = unreadable

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Log it, answer, and close the connection.

        Raises:
            ConnectionError: the answer had begun.
        """
        super().handle_error(request, status, exc, message)
        if exc is not None:
            # It leads to the frame that holds it, and with it 64 KB or more of what was received
            # would stay until the garbage collector comes by.
            exc.__traceback__ = None
        response = self._unreadable(request, status, message or "the gateway failed")
        response.force_close()
        return response


@web.middleware
async def expected(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what a client expects, unless it is to be told that its body may come."""
    expect = request.headers.get("expect", "").lower()
    if expect not in {"", _CONTINUE} and request.version == HttpVersion11:
        raise web.HTTPExpectationFailed(reason=f"`expect` can be `{_CONTINUE}` alone")
    return await handler(request)


def with_expected(routes: Iterable[web.RouteDef]) -> list[web.RouteDef]:
    """Routes that leave it to `expected` what is refused: the server would, as plain text."""
    return [
        web.route(each.method, each.path, each.handler, expect_handler=_say_continue)
        for each in routes
    ]


async def _say_continue(request: web.Request) -> None:
    writer = request.writer
    if request.headers["expect"].lower() == _CONTINUE and request.version == HttpVersion11:
        await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.output_size = 0  # the answer has not begun


class KeyRefused(CallRefused):
    """A key that opens nothing; the reason is for the log alone."""

    def __init__(self, reason: str) -> None:
        """In the words that all of them get."""
        kind, code = "authentication_error", "invalid_api_key"
        super().__init__(401, UNKNOWN_KEY, kind=kind, code=code)
        self.reason = reason


async def _next(
    out: "asyncio.Queue[Piece | Answer | CallRefused]", seconds: float
) -> Piece | Answer | CallRefused | None:
    """What comes next; None if nothing does for so long."""
    if not out.empty():
        return out.get_nowait()
    try:
        return await asyncio.wait_for(out.get(), seconds)
    except TimeoutError:
        return None


async def _begun(
    request: web.Request, dialect: Dialect, stream: AnswerStream
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"content-type": dialect.STREAM_TYPE, "cache-control": "no-store"}
    )
    await response.prepare(request)
    await response.write(stream.start())
    return response


def _event(stream: AnswerStream, out: Piece | Answer | CallRefused | None) -> bytes:
    match out:
        case None:
            return stream.keep_alive()
        case Answer():
            return stream.end(out)
        case CallRefused():
            return stream.error(out)
        case _:
            return stream.piece(out)


def _going_down() -> CallRefused:
    return CallRefused(503, GOING_DOWN, kind="unavailable")


def _bare(text: str) -> str:
    return text[7:].strip() if text[:7].lower() == "bearer " else text.strip()


def _unkeyed(path: str) -> str:
    """A path without the key that may stand before it."""
    return "/" + path.removeprefix(_KEYED).partition("/")[2] if path.startswith(_KEYED) else path


def _first_of(message: str) -> str:
    """Of what the HTTP server says, what is wrong; the head itself comes behind an empty line."""
    what = " ".join(message.partition("\n\n")[0].split()).rstrip(":.")
    return what[:_UNREADABLE_CHARACTERS_MAX]
