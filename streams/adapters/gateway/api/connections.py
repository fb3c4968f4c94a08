"""Who is connected, for how long without a request, and who makes room when there are too many.

    state   what the client is doing                bounded in bytes by    and in time by
    HEAD    nothing                                                        idle_timeout_s (*)
            sends a request's head                  HEAD_BYTES_MAX         header_timeout_s
    HANDED  waits until a handler begins            PIPELINED_BYTES_MAX    header_timeout_s
    BODY    sends the body                          the body's own length  the request's deadlines
            the same, but was answered before       the body's own length  header_timeout_s
    DONE    waits for the answer                    PIPELINED_BYTES_MAX    the request's deadlines
    BROKEN  has sent what is no request, or no body nothing more is kept   as BODY

    (*) header_timeout_s before the first request

    HEAD ──whole head──► HANDED ──begin()──► BODY ──all there──► DONE ──end()──► HEAD
                                               └──end(), the rest is dropped──────►

    an answer that is not read  for idle_timeout_s: closed, and the turn counts as not delivered
    more than connections_max   the oldest without a request is closed, those that never had one
                                first; if there is none, the new one's request is answered 503
    more than RESERVE beyond    the oldest of those, too, else 503 before a request is read

Every connection is seen through a protocol of ours before the HTTP server's own. That one is given
a head when it is whole, the body once a handler has it, and nothing behind the body before the
request is handled: so it keeps no more than one request, it refuses a request before anything
follows, and where a request ends is decided here. A middleware (`counted`) knows when a request
begins and ends.

Invariant: connections without a request never keep out one with; /healthz is answered as long as
fewer than RESERVE connections beyond the limit ask for something else. Every byte that a client
sends belongs to one of the states above.
"""

import asyncio
import re
import resource
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import cast

from aiohttp import StreamReader, web

from streams.adapters.gateway.api.framing import (
    BadChunk,
    Chunked,
    Frame,
    Sized,
    TooManyChunks,
)
from streams.adapters.gateway.metrics import Metrics
from streams.errors import BadSetting
from streams.settings import Settings

RESERVE = 128
"""Connections beyond the limit whose request is read, so that it can be refused or is /healthz."""
FEWEST = 64
"""Connections, or all that the settings want: with fewer, a gateway does not start."""
GRACE_S = 0.25
"""A connection is not closed for another before; of many that come at once, all are answered."""
HEAD_BYTES_MAX = 65_536
"""Of a request's head; the server allows 8 KB a field."""
PIPELINED_BYTES_MAX = 262_144
"""Sent behind a request that is under way. Clients wait for its answer; this would be kept. It is
also what is received at a time, so a body that comes with its head is not too much."""
HEALTH_PATH = "/healthz"
HEADER, IDLE, UNREAD = "header_timeout", "idle_timeout", "not_read"
_OTHER_FILES = 64
"""The log, its sockets, standard streams, the event loop's own."""
_LOOK_S = 0.25
_HEAD_END = b"\r\n\r\n"
_BLANK = b"\r\n"
_BEGINS = re.compile(rb"(?!PRI )[A-Z-]{1,32}(?: |\Z)")
"""As a request does, or as the part of it that is there. `PRI` begins HTTP/2."""
_BARE_LINE_END = re.compile(rb"(?<!\r)\n")
_NO_REQUEST_BYTES = 256
"""Of what is no request: enough for the HTTP server to refuse it."""
_FULL = (
    b'{"type":"error","error":{"type":"overloaded_error","message":"too many connections: try '
    b'again"}}'
)
_FULL_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_FULL), _FULL)
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class State(Enum):
    """Of a connection: what the next byte belongs to; the module's docstring has the drawing."""

    HEAD = "a request's head, kept here until it is whole"
    HANDED = "what follows a head that the HTTP server has, but no handler"
    BODY = "the body of a request that is, or was, handled"
    DONE = "what follows the whole body of a request that is being handled"
    BROKEN = "nothing: what came is no request, or no body"


class Connection(asyncio.Protocol):
    """One connection: passes on what is its turn, and knows what it waits for."""

    __slots__ = (
        "_all",
        "_content",
        "_frame",
        "_head_bytes",
        "_inner",
        "_kept",
        "_searched",
        "admitted",
        "had_request",
        "path",
        "state",
        "transport",
        "under_way",
        "unread_since_s",
        "waits_since_s",
    )

    def __init__(self, everyone: "Connections", inner: asyncio.Protocol) -> None:
        """`inner` is the HTTP server's."""
        self._all = everyone
        self._inner = inner
        self.transport: asyncio.Transport | None = None
        self.admitted = False
        """The HTTP server knows it."""
        self.state = State.HEAD
        self.under_way = False
        """A request is being handled."""
        self.had_request = False
        self.path = ""
        """Of the last request whose head was whole, as it was sent."""
        self.waits_since_s = 0.0
        """Since when the head of a request is awaited, or the end of it, or the request's begin."""
        self.unread_since_s: float | None = None
        """Since when what was written waits for the client to read; None: it does not."""
        self._kept = bytearray()
        """Received, and not yet the HTTP server's."""
        self._head_bytes = 0
        """Received of the next head, and of blank lines before it."""
        self._searched = 0
        """How much of what is kept has no end of a head."""
        self._content: StreamReader | None = None
        """The body as the handler gets it."""
        self._frame: Frame = Sized(0)

    @property
    def idle(self) -> bool:
        """Nothing came since the last answer."""
        return self.state is State.HEAD and not self._head_bytes

    @property
    def waits_for_answer_read(self) -> bool:
        """Its next request begins once the client has read the last answer."""
        return self.state is State.HANDED and self.unread_since_s is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it in, or turn it away."""
        self.transport = cast("asyncio.Transport", transport)
        self.admitted = self._all.admit(self)
        if self.admitted:
            self._inner.connection_made(transport)
        else:
            self.transport.write(_FULL_ANSWER)
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Pass on what is its turn; keep the rest, if it is no more than there may be."""
        if not self.admitted or self._closing or self.state is State.BROKEN:
            return
        self._kept += data
        if self.state is State.HEAD:
            self._note_head(len(data))
        self._pass_on()

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self._inner.eof_received() if self.admitted else None

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._all.forget(self)
        self._kept.clear()
        if self.admitted:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self.unread_since_s = asyncio.get_running_loop().time()
        if self.admitted:
            self._inner.pause_writing()
        self._check_kept()

    def resume_writing(self) -> None:
        """It goes on."""
        self.unread_since_s = None
        if self.admitted:
            self._inner.resume_writing()

    def begin(self, request: web.Request) -> None:
        """A request's head is there and it is handled."""
        self.under_way, self.had_request = True, True
        self._content = request.content
        self._frame = _frame_of(request)
        self.state = State.BODY
        if self.transport is not None and not self._closing:
            self.transport.resume_reading()
            self._pass_on()

    def end(self) -> None:
        """It was handled; more of its body may come, which the server reads and drops."""
        self.under_way, self._content = False, None
        self.waits_since_s = asyncio.get_running_loop().time()
        if self.state is State.DONE and not self._closing:
            self._await_head()
            self._pass_on()

    @property
    def _closing(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def _pass_on(self) -> None:
        if self.state is State.BODY:
            self._pass_body()
        if self.state is State.HEAD:
            self._pass_head()
        self._check_kept()

    def _check_kept(self) -> None:
        """Close it if more is kept than may be."""
        beyond_head = self.state is not State.HEAD and self.unread_since_s is None
        most = PIPELINED_BYTES_MAX if beyond_head else HEAD_BYTES_MAX
        head_bytes = self._head_bytes if self.state is State.HEAD else 0
        if max(len(self._kept), head_bytes) > most:
            self._close("sent_too_much")

    def _await_head(self) -> None:
        self.state = State.HEAD
        if self._kept:
            self._note_head(len(self._kept))

    def _note_head(self, count: int) -> None:
        if not self._head_bytes and self.had_request:
            self.waits_since_s = asyncio.get_running_loop().time()
        self._head_bytes += count

    def _pass_head(self) -> None:
        """Hand over a head that is whole, or what the HTTP server should refuse."""
        kept = self._kept
        if not self._searched:
            del kept[: len(kept) - len(kept.lstrip(_BLANK))]
        end = kept.find(_HEAD_END, max(0, self._searched - len(_HEAD_END)))
        if not kept:
            return
        if not _BEGINS.match(kept):
            self._have_refused(_NO_REQUEST_BYTES)
        elif end >= 0:
            self._hand_over(end + len(_HEAD_END))
        elif bare := _BARE_LINE_END.search(kept, max(0, self._searched - 1)):
            self._have_refused(bare.end())
        else:
            self._searched = len(kept)

    def _have_refused(self, count: int) -> None:
        """Give the HTTP server as much as shows that it is no request, and read no more."""
        del self._kept[count:]
        self._hand_over(len(self._kept))
        self.state = State.BROKEN

    def _hand_over(self, count: int) -> None:
        """Give the HTTP server so much, and read no more before it begins with that."""
        head = bytes(self._kept[:count])
        del self._kept[:count]
        self._head_bytes = self._searched = 0
        if count > HEAD_BYTES_MAX:
            self._close("sent_too_much")
            return
        self.path = _path_in(head)
        self.state = State.HANDED
        self.waits_since_s = asyncio.get_running_loop().time()
        if self.transport is not None:
            self.transport.pause_reading()
        self._inner.data_received(head)

    def _pass_body(self) -> None:
        try:
            part = self._frame.cut(self._kept)
        except TooManyChunks:
            self._close("small_chunks")
        except BadChunk as error:
            self._break(str(error))
        else:
            if part:
                self._inner.data_received(part)
            if self._frame.ended and self.under_way:
                self.state = State.DONE
            elif self._frame.ended:
                self._await_head()

    def _break(self, why: str) -> None:
        """Tell the handler that the body is none, and read no more of it."""
        self.state = State.BROKEN
        self._kept.clear()
        if self._content is not None:
            self._content.set_exception(web.RequestPayloadError(why))

    def _close(self, why: str) -> None:
        self._kept.clear()
        self._head_bytes = 0
        self._all.close(self, why)


def _frame_of(request: web.Request) -> Frame:
    """Of the body that follows its head, as the HTTP server reads that."""
    if request.content.is_eof():
        return Sized(0)
    length = request.content_length
    return Chunked() if length is None else Sized(length)


def _path_in(head: bytes) -> str:
    target = head.partition(_BLANK)[0].split(b" ", 2)[1:2]
    return b"".join(target).partition(b"?")[0].decode("latin-1")


class Connections:
    """All connections of one gateway's port."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """With as many as the settings and the system's limit of open files allow.

        Raises:
            BadSetting: the system allows too few open files.
        """
        self._header_s = settings.gateway_header_timeout_s
        self._idle_s = settings.gateway_idle_timeout_s
        self._metrics = metrics
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        spare = RESERVE + settings.gateway_concurrency + _OTHER_FILES
        self.limit = settings.gateway_connections_max
        if files != resource.RLIM_INFINITY and files - spare < self.limit:
            fewest = min(FEWEST, self.limit)
            if files - spare < fewest:
                raise BadSetting(_too_few_files(files, spare + fewest))
            self.limit = files - spare
            detail = f"at most {self.limit}: this process may have {files} files open"
            metrics.say("connections", None, None, detail)
        self._open: dict[asyncio.BaseTransport, Connection] = {}
        self._waiting_first: dict[Connection, None] = {}
        """Without a request so far, the oldest first."""
        self._waiting_next: dict[Connection, None] = {}
        """Between two requests, the oldest first."""
        self._excess: set[Connection] = set()
        """Beyond the limit: of their requests only /healthz is answered."""
        self._waiting_excess: dict[Connection, None] = {}
        """Those of them without a request, the oldest first."""
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def before(self, make_inner: Callable[[], asyncio.Protocol]) -> Callable[[], Connection]:
        """A server's protocol factory, given that of the HTTP server."""
        return lambda: Connection(self, make_inner())

    def start(self) -> None:
        """Close those that wait for too long, from now on."""
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Close no more of them."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    @web.middleware
    async def counted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Know which connections have a request; refuse that of one too many."""
        connection = self._of(request)
        if connection is None:
            return await handler(request)
        self._wait_no_more(connection)
        connection.begin(request)
        if connection in self._excess and self._has_room():
            self._excess.discard(connection)
        excess = connection in self._excess
        try:
            if excess and request.path != HEALTH_PATH:
                self._refuse()
                raise web.HTTPServiceUnavailable(reason="too many connections: try again")
            return await handler(request)
        finally:
            connection.end()
            if self._of(request) is connection:
                (self._waiting_excess if excess else self._waiting_next)[connection] = None

    def path_of(self, request: web.BaseRequest) -> str:
        """The path that a request's connection asked for last; "" if it is gone."""
        connection = self._of(request)
        return connection.path if connection is not None else ""

    def admit(self, connection: Connection) -> bool:
        """Whether there is room, made if need be."""
        assert connection.transport is not None
        excess = not self._has_room()
        if excess and len(self._excess) >= RESERVE:
            self._close_oldest(self._waiting_excess)
        if excess and len(self._excess) >= RESERVE:
            self._refuse()
            return False
        connection.waits_since_s = asyncio.get_running_loop().time()
        self._open[connection.transport] = connection
        (self._waiting_excess if excess else self._waiting_first)[connection] = None
        if excess:
            self._excess.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        """It is gone."""
        self._wait_no_more(connection)
        self._excess.discard(connection)
        if connection.transport is not None:
            self._open.pop(connection.transport, None)

    def close(self, connection: Connection, why: str) -> None:
        """End it; the HTTP server sees a client that goes away."""
        self.forget(connection)
        self._metrics.count(f"connections_closed:{why}")
        if why != IDLE:
            self._metrics.say_seldom("connections", detail=f"closed: {why}; {len(self)} are open")
        if connection.transport is not None:
            connection.transport.abort()

    def _of(self, request: web.BaseRequest) -> Connection | None:
        transport = request.transport
        return self._open.get(transport) if transport is not None else None

    def _has_room(self) -> bool:
        """Whether one more is within the limit, made so if need be."""
        if len(self) - len(self._excess) >= self.limit:
            self._close_oldest(self._waiting_first or self._waiting_next)
        return len(self) - len(self._excess) < self.limit

    def _wait_no_more(self, connection: Connection) -> None:
        for waiting in (self._waiting_first, self._waiting_next, self._waiting_excess):
            waiting.pop(connection, None)

    def _close_oldest(self, waiting: dict[Connection, None]) -> None:
        oldest = next(iter(waiting), None)
        latest_s = asyncio.get_running_loop().time() - GRACE_S
        if oldest is not None and oldest.waits_since_s < latest_s:
            self.close(oldest, "made_room")

    def _refuse(self) -> None:
        self._metrics.count("connections_refused")
        detail = f"refused: {len(self)} are open with requests, the limit is {self.limit}"
        self._metrics.say_seldom("connections", detail=detail)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._close_late(asyncio.get_running_loop().time())
            self._metrics.say_omitted()

    def _close_late(self, now_s: float) -> None:
        for one in [*self._waiting_first, *self._waiting_excess]:
            if one.waits_since_s < now_s - self._header_s:
                self.close(one, HEADER)
        for one in list(self._waiting_next):
            limit_s = self._idle_s if one.idle else self._header_s
            if one.waits_since_s < now_s - limit_s and not one.waits_for_answer_read:
                self.close(one, IDLE if one.idle else HEADER)
        for one in list(self._open.values()):
            if one.unread_since_s is not None and one.unread_since_s < now_s - self._idle_s:
                self.close(one, UNREAD)


def _too_few_files(files: int, needed: int) -> str:
    return (
        f"this process may have {files} files open, and with this TURNSTREAM_GATEWAY_CONCURRENCY "
        f"a gateway needs {needed}: raise the limit (as root `ulimit -n 4096`; `LimitNOFILE=` of "
        "systemd; `ulimits: nofile` of compose)"
    )
