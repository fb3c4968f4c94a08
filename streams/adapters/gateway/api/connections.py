"""Who is connected, for how long without a request, and who makes room when there are too many.

    connected ──► head of a request ──► request under way ──► idle ──► head of the next ...
       │ header_timeout_s │                                    │ idle_timeout_s
       └──────► closed ◄──┴────────────────────────────────────┘

    an answer that is not read  for idle_timeout_s: closed, and the turn counts as not delivered
    more than connections_max   the oldest without a request is closed, those that never had one
                                first; if there is none, the new one's request is answered 503
    more than RESERVE beyond    the oldest of those, too, else 503 before a request is read

Every connection is seen through a protocol of ours before the HTTP server's own, so nothing hangs
on how that one works. A middleware (`counted`) knows when a request begins and ends.

Invariant: connections without a request never keep out one with; /healthz is answered as long as
fewer than RESERVE connections beyond the limit ask for something else.
"""

import asyncio
import re
import resource
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web

from streams.adapters.gateway.metrics import Metrics
from streams.settings import Settings

RESERVE = 128
"""Connections beyond the limit whose request is read, so that it can be refused or is /healthz."""
GRACE_S = 0.25
"""A connection is not closed for another before; of many that come at once, all are answered."""
HEAD_BYTES_MAX = 65_536
"""Of a request's head; the server allows 8 KB a field."""
PIPELINED_BYTES_MAX = 262_144
"""Sent behind a request that is under way. Clients wait for its answer; this would be kept."""
CHUNKS_MAX, BYTES_A_CHUNK = 1_024, 256
"""Chunks of one request's body: so many, and one more for so many bytes. The server takes 7 us for
each, 0.3 s for 256 KB of the smallest, which come in one go, and it parses them before any key."""
HEALTH_PATH = "/healthz"
HEADER, IDLE, UNREAD = "header_timeout", "idle_timeout", "not_read"
_OTHER_FILES = 64
"""The log, its sockets, standard streams, the event loop's own."""
_LOOK_S = 0.25
_HEAD_END = b"\r\n\r\n"
_LINE_END = b"\r\n"
_CHUNK_OR_FIELD = re.compile(rb'\r\n[^\s"{}\[\]]')
"""Begins as a line of JSON that somebody printed does not."""
_LOOKED_AT = 16_384
_FULL = (
    b'{"type":"error","error":{"type":"overloaded_error","message":"too many connections: try '
    b'again"}}'
)
_FULL_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_FULL), _FULL)
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Connection(asyncio.Protocol):
    """One connection: passes everything on, and knows what it waits for."""

    __slots__ = (
        "_all",
        "_chunks_max",
        "_inner",
        "_seen",
        "_tail",
        "admitted",
        "before_head_end",
        "body_arrived",
        "had_request",
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
        self.under_way = False
        self.had_request = False
        self.body_arrived = False
        """All of the body of the request under way is there."""
        self.waits_since_s = 0.0
        """Since when the head of a request is awaited, or the first byte of it."""
        self.before_head_end = False
        """Some of a head is there, not all."""
        self.unread_since_s: float | None = None
        """Since when what was written waits for the client to read; None: it does not."""
        self._seen = 0
        self._tail = b""
        self._chunks_max: float = CHUNKS_MAX
        """How many more of the request there may be."""

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
        """Pass it on, unless it is more of a head than there may be."""
        if not self.admitted:
            return
        if self.under_way:
            self._seen += len(data) if self.body_arrived else 0
            excess = self._seen > PIPELINED_BYTES_MAX
        else:
            excess = self._in_head(data)
        if excess:
            self._all.close(self, "sent_too_much")
        elif self._in_small_chunks(data):
            self._all.close(self, "small_chunks")
        else:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self._inner.eof_received() if self.admitted else None

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._all.forget(self)
        if self.admitted:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self.unread_since_s = asyncio.get_running_loop().time()
        if self.admitted:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """It goes on."""
        self.unread_since_s = None
        if self.admitted:
            self._inner.resume_writing()

    def begin(self) -> None:
        """A request's head is there and it is handled."""
        self.under_way, self.had_request = True, True
        self.body_arrived, self._seen = False, 0

    def arrived(self) -> None:
        """The body is there: what is sent now belongs to another request."""
        self.body_arrived, self._seen = True, 0

    def end(self, *, body_arrived: bool) -> None:
        """It was handled; more of its body may come, which the server reads and drops."""
        self.under_way, self.before_head_end = False, False
        self._seen = 0 if body_arrived else -1
        self._tail = b""
        self._chunks_max = CHUNKS_MAX
        self.waits_since_s = asyncio.get_running_loop().time()

    def _in_small_chunks(self, data: bytes) -> bool:
        """Whether it has more chunks, or fields before or behind them, than there may be.

        Lines that begin as those do are counted, whatever they are: no other body has many.
        """
        self._chunks_max += len(data) / BYTES_A_CHUNK
        if data.count(_LINE_END) * BYTES_A_CHUNK > len(data):
            for at in range(0, len(data), _LOOKED_AT):  # the first mostly tells
                self._chunks_max -= len(_CHUNK_OR_FIELD.findall(data, at, at + _LOOKED_AT))
                if self._chunks_max < 0:
                    return True
        return False

    def _in_head(self, data: bytes) -> bool:
        """Whether this is more of a head than there may be."""
        if self._seen < 0:
            return False
        if not self.before_head_end and self.had_request:
            self.waits_since_s = asyncio.get_running_loop().time()
        if _HEAD_END in self._tail + data:
            self.before_head_end, self._seen = False, -1
            return False
        self.before_head_end = True
        self._seen += len(data)
        self._tail = (self._tail + data)[-len(_HEAD_END) :]
        return self._seen > HEAD_BYTES_MAX


class Connections:
    """All connections of one gateway's port."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """With as many as the settings and the system's limit of open files allow."""
        self._header_s = settings.gateway_header_timeout_s
        self._idle_s = settings.gateway_idle_timeout_s
        self._metrics = metrics
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        spare = RESERVE + settings.gateway_concurrency + _OTHER_FILES
        self.limit = settings.gateway_connections_max
        if files != resource.RLIM_INFINITY and files - spare < self.limit:
            self.limit = max(1, files - spare)
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
        connection.begin()
        if connection in self._excess and self._has_room():
            self._excess.discard(connection)
        excess = connection in self._excess
        try:
            if excess and request.path != HEALTH_PATH:
                self._refuse()
                raise web.HTTPServiceUnavailable(reason="too many connections: try again")
            return await handler(request)
        finally:
            connection.end(body_arrived=request.content.is_eof())
            if self._of(request) is connection:
                (self._waiting_excess if excess else self._waiting_next)[connection] = None

    def body_arrived(self, request: web.Request) -> None:
        """All of a request's body is there."""
        connection = self._of(request)
        if connection is not None:
            connection.arrived()

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

    def _of(self, request: web.Request) -> Connection | None:
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
            limit_s = self._header_s if one.before_head_end else self._idle_s
            if one.waits_since_s < now_s - limit_s:
                self.close(one, HEADER if one.before_head_end else IDLE)
        for one in list(self._open.values()):
            if one.unread_since_s is not None and one.unread_since_s < now_s - self._idle_s:
                self.close(one, UNREAD)
