"""What the servers that stand in for real engines share: an address, faults, and a stream.

    POST generate ──► read strictly ──► a model samples ──► events, as the real server writes them

Invariant: a field that the real server does not know is refused; each fault is off unless a test
switches it on.
"""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from aiohttp import web

from streams.adapters.engines.interface import Engine, EngineError, Generation, Tokens

BODY_BYTES_MAX = 64 * 1024 * 1024


@dataclass
class Faults:
    """What goes wrong; counts are of requests or tokens."""

    refuses: int | None = None
    """The status of every request."""
    resets: int = 0
    """So many connections break before an answer begins."""
    resets_begun: int = 0
    """So many break after its first bytes, before a token."""
    breaks_after: int | None = None
    """The connection breaks after so many tokens."""
    ends_after: int | None = None
    """The answer ends well formed, but without a finish."""
    fails_after: int | None = None
    fails_with: int = 500
    garbage_after: int | None = None
    hangs_after: int | None = None
    aborts_with: int | None = None
    """The engine gives up a request with that status."""
    drops_logprob: bool = False
    others_logprobs: bool = False
    """They are of other ids."""
    null_logprob: bool = False
    adds_token: bool = False
    """Before the prompt."""
    trims_stop: bool = False
    ignores_abort: bool = False
    lingers_s: float = 0.0
    """Between the last token and the end of the answer."""
    no_version: bool = False
    experts: tuple[int, int] | None = None
    """Layers and choices, if it tells of them."""
    experts_short: bool = False
    away: bool = False
    """It is up, but not ready."""


class Stream(Protocol):
    """Writes one answer."""

    def event(self, tokens: Tokens) -> dict[str, Any]: ...

    def failure(self, message: str, status: int) -> dict[str, Any]: ...


class StandIn:
    """A server with a model behind it."""

    def __init__(self, model: Engine) -> None:
        self.model = model
        self.faults = Faults()
        self.bodies: list[dict[str, Any]] = []
        """Of every request to generate, also of those that broke."""
        self.headers: list[dict[str, str]] = []
        self.aborted: list[str] = []
        self.peers: set[Any] = set()
        """Connections that were used."""
        self.api_key: str | None = None
        """As it is started."""
        self.basic: str | None = None
        """User and password that a proxy before it asks for."""

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    def guards(self, path: str) -> bool:
        """Whether a path needs the key."""
        raise NotImplementedError

    def entered(self, request: web.Request) -> bool:
        if self.basic is not None:
            wanted = base64.b64encode(self.basic.encode()).decode()
            return request.headers.get("authorization") == f"Basic {wanted}"
        if self.api_key is None or not self.guards(request.path):
            return True
        return request.headers.get("authorization") == f"Bearer {self.api_key}"

    def read(self, body: bytes) -> tuple[Generation, Stream]:
        """Read a request.

        Raises:
            msgspec.ValidationError: the real server would refuse it.
        """
        raise NotImplementedError

    def refusal(self, message: str, status: int) -> web.Response:
        return web.json_response(self.failed(message, status), status=status)

    def failed(self, message: str, status: int) -> dict[str, Any]:
        return {"error": {"message": message, "code": status}}

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body, faults = await request.read(), self.faults
        self.bodies.append(msgspec.json.decode(body))
        self.headers.append(dict(request.headers))
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        if faults.resets:
            faults.resets -= 1
            request.transport.abort()
            return web.Response()
        if faults.refuses is not None:
            return self.refusal("the server refuses", faults.refuses)
        try:
            generation, stream = self.read(body)
        except msgspec.ValidationError as error:
            return self.refusal(str(error), 400)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if faults.resets_begun:
            faults.resets_begun -= 1
            await response.write(b": hello\n\n")
            request.transport.abort()
            return response
        await self._answer(request, response, generation, stream)
        return response

    async def _answer(
        self,
        request: web.Request,
        response: web.StreamResponse,
        generation: Generation,
        stream: Stream,
    ) -> None:
        given, faults = 0, self.faults
        answer: Any = self.model.generate(generation)
        async with contextlib.aclosing(answer):
            try:
                async for tokens in answer:
                    if given == faults.breaks_after:
                        assert request.transport is not None
                        request.transport.abort()
                        return
                    if given == faults.ends_after:
                        return
                    if given == faults.hangs_after:
                        await asyncio.sleep(3600)
                    if given == faults.garbage_after:
                        await response.write(b"data: {oops\n\n")
                        return
                    if given == faults.fails_after:
                        await _write(response, stream.failure("out of memory", faults.fails_with))
                        return
                    given += len(tokens.ids)
                    await _write(response, stream.event(tokens))
            except EngineError as error:
                status = 500 if error.retryable else 400
                await _write(response, stream.failure(str(error), status))
        await asyncio.sleep(faults.lingers_s)
        await response.write(b"data: [DONE]\n\n")

    async def stop(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if not self.faults.ignores_abort:
            await self.model.abort(request_id)


async def _write(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(b"data: " + msgspec.json.encode(event) + b"\n\n")


def _door(server: StandIn) -> Any:
    @web.middleware
    async def enter(request: web.Request, handler: Any) -> web.StreamResponse:
        if not server.entered(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    return enter


@contextlib.asynccontextmanager
async def standing(
    *servers: StandIn, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[tuple[str, ...]]:
    """Their addresses; each has a port of its own unless one is named."""
    runners: list[web.AppRunner] = []
    urls: list[str] = []
    try:
        for server in servers:
            app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_door(server)])
            app.add_routes(server.routes())
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
            runners.append(runner)
            await runner.setup()
            site = web.TCPSite(runner, host, port)
            await site.start()
            at, its = runner.addresses[0][:2]
            urls.append(f"http://{at}:{its}")
        yield tuple(urls)
    finally:
        for runner in runners:
            await runner.cleanup()
