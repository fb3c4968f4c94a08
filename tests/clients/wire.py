"""The recorder between a client and the gateway: every byte both ways, and faults where wanted.

    client ──► Wire ──► gateway
                └ exchanges: request, response, times

It passes on what comes as it comes; path, query, headers and body stay as they are.

Invariant: an exchange holds exactly what the client sent, and what was sent to the client.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

BODY_BYTES_MAX = 64 * 2**20
HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te"}
CLIENT_GONE = 499
GATEWAY_GONE = "gateway gone"
NO_TIMEOUT = aiohttp.ClientTimeout(total=None)


@dataclass
class Exchange:
    """One request and what became of it."""

    number: int
    """Among all of its wire, from 0."""
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    began_s: float
    status: int = 0
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    """What the client was sent, with times."""
    ended: bool = False
    """Whether the response went out to its end."""
    fault: str | None = None

    @property
    def request(self) -> Any:
        """The body as JSON; None if it is empty."""
        return msgspec.json.decode(self.body) if self.body else None

    @property
    def response(self) -> bytes:
        return b"".join(data for _, data in self.chunks)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The data of the server-sent events that were sent whole."""
        found = []
        for block in self.response.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]:
            data = b"\n".join(
                line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")
            )
            if data and data != b"[DONE]":
                found.append(msgspec.json.decode(data))
        return found

    @property
    def text(self) -> str:
        """The words of the answer that were sent, in either API."""
        kinds = ("content_block_delta", "response.output_text.delta")
        deltas = [event["delta"] for event in self.events if event["type"] in kinds]
        return "".join(d if isinstance(d, str) else d.get("text", "") for d in deltas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, once."""

    on: Callable[[Exchange], bool]
    """Which request it hits; the first one."""
    status: int = 0
    """Answered instead of the gateway; 0: the gateway answers."""
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: Callable[[dict[str, Any]], bool] | None = None
    """The connection breaks right after the event of which this holds."""
    pause_s: float = 0.0
    """Silence before the break, for a client to act on what it has."""

    @property
    def name(self) -> str:
        return f"status {self.status}" if self.status else "cut"


class Wire:
    """Records what passes between one client and the gateway."""

    def __init__(self, gateway_url: str) -> None:
        """Of the gateway at that address."""
        self.gateway_url = gateway_url
        self._http: aiohttp.ClientSession
        self.exchanges: list[Exchange] = []
        self.faults: list[Fault] = []

    @contextlib.asynccontextmanager
    async def served(self, listener: socket.socket) -> AsyncIterator[None]:
        """While it takes requests from the socket."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        async with aiohttp.ClientSession(timeout=NO_TIMEOUT, auto_decompress=False) as self._http:
            await web.SockSite(runner, listener).start()
            try:
                yield
            finally:
                await runner.cleanup()

    @property
    def calls(self) -> list[Exchange]:
        """The model calls."""
        return [one for one in self.exchanges if one.method == "POST" and one.body]

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        exchange = Exchange(
            number=len(self.exchanges),
            method=request.method,
            path=request.raw_path,
            headers=dict(request.headers),
            body=await request.read(),
            began_s=time.monotonic(),
        )
        self.exchanges.append(exchange)
        fault = next((fault for fault in self.faults if fault.on(exchange)), None)
        if fault:
            self.faults.remove(fault)
            exchange.fault = fault.name
        if fault and fault.status:
            return await self._refuse(request, exchange, fault)
        try:
            return await self._ask(request, exchange, fault)
        except aiohttp.ClientError:
            # The gateway is away, or went: for the client, whose own connection breaks, no less.
            exchange.fault = GATEWAY_GONE
            _break(request)
            return web.Response(status=CLIENT_GONE)

    async def _ask(
        self, request: web.Request, exchange: Exchange, fault: Fault | None
    ) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_HEADERS}
        async with self._http.request(
            request.method,
            self.gateway_url + request.raw_path,
            headers=headers,
            data=exchange.body or None,
            allow_redirects=False,
        ) as answer:
            try:
                return await self._give(request, exchange, answer, fault)
            except ConnectionError as error:  # the client went away, as clients do
                if isinstance(error, aiohttp.ClientError):
                    raise
                return web.Response(status=CLIENT_GONE)

    async def _refuse(
        self, request: web.Request, exchange: Exchange, fault: Fault
    ) -> web.StreamResponse:
        exchange.status = fault.status
        data = msgspec.json.encode(fault.body)
        exchange.chunks.append((time.monotonic(), data))
        exchange.ended = True
        return web.Response(
            status=fault.status,
            body=data,
            headers={"content-type": "application/json", **fault.headers},
        )

    async def _give(
        self,
        request: web.Request,
        exchange: Exchange,
        answer: aiohttp.ClientResponse,
        fault: Fault | None,
    ) -> web.StreamResponse:
        exchange.status = answer.status
        headers = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_HEADERS}
        response = web.StreamResponse(status=answer.status, headers=headers)
        if request.method == "HEAD" or answer.content_length is not None:
            response.content_length = answer.content_length
        await response.prepare(request)
        held = b""
        async for data in answer.content.iter_any():
            if fault is None or fault.cut is None:
                await self._send(response, exchange, data)
                continue
            held += data
            *whole, held = held.split(b"\n\n")
            for block in whole:
                await self._send(response, exchange, block + b"\n\n")
                if _matches(block, fault.cut):
                    await asyncio.sleep(fault.pause_s)
                    _break(request)
                    return response
        if held:
            await self._send(response, exchange, held)
        exchange.ended = True  # before the last byte: who has seen the end asks at once
        await response.write_eof()
        return response

    async def _send(self, response: web.StreamResponse, exchange: Exchange, data: bytes) -> None:
        exchange.chunks.append((time.monotonic(), data))
        await response.write(data)


def _matches(block: bytes, cut: Callable[[dict[str, Any]], bool]) -> bool:
    lines = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
    data = b"\n".join(lines)
    return bool(data) and data != b"[DONE]" and cut(msgspec.json.decode(data))


def _break(request: web.Request) -> None:
    """End the connection without the end of the body; what was written before still arrives."""
    if request.transport is not None:
        request.transport.close()
