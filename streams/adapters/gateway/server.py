"""A gateway put together, served, and taken down without losing a turn.

Invariant: it listens only when everything behind it works, and stops listening before it stops
recording.
"""

import asyncio
import errno
import logging
import sys
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from streams.adapters.engines.interface import Engine, Learns
from streams.adapters.gateway.access.admission import Admission
from streams.adapters.gateway.access.keys import KeyRing
from streams.adapters.gateway.access.minted import Minter
from streams.adapters.gateway.access.secret import Secrets
from streams.adapters.gateway.answers.grammar import Grammar
from streams.adapters.gateway.api.app import Api, HttpProtocol, expected, with_expected
from streams.adapters.gateway.api.bodies import Bodies
from streams.adapters.gateway.api.connections import HEALTH_PATH, Connections
from streams.adapters.gateway.api.control import Control
from streams.adapters.gateway.api.control_weights import WeightControl
from streams.adapters.gateway.metrics import Metrics
from streams.adapters.gateway.parts import Parts
from streams.adapters.gateway.prompts.near_misses import UnknownAnswers
from streams.adapters.gateway.publishing import Publisher
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.sampling.limits import FairGate, LoopTurns
from streams.adapters.gateway.sampling.weights import Weights
from streams.adapters.gateway.sessions.served import Sessions
from streams.errors import TurnstreamError
from streams.log.interface import Log
from streams.operations.pages import Facts, Pages
from streams.settings import Settings

_PORT_TRIES = 20
_PORT_WAIT_S = 0.25
_HANDLERS_S = 2.0
"""For what is still being written to clients when every turn has ended."""
_READY_S = 10.0
_READ_BYTES = 65_536
"""Kept of a body before its reader is asked to take it."""
_BACKLOG = 1_024
"""Connections that wait to be accepted; a burst of agents, not a flood."""


class PortTaken(TurnstreamError):
    """Somebody else listens there."""


class Gateway:
    """One gateway process's HTTP server and what is behind it."""

    def __init__(
        self,
        settings: Settings,
        log: Log,
        engine: Engine,
        renderer: Renderer,
        secrets: Secrets,
    ) -> None:
        """Nothing is served yet."""
        self._settings = settings
        self.keys = KeyRing(secrets, settings.gateway_control_key)
        self.metrics = Metrics(self._gauges)
        minter = Minter(secrets)
        self.sessions = Sessions(settings, log, minter, renderer.fingerprint, self.metrics)
        source = f"gateway-{uuid.uuid4().hex[:12]}"
        self.publisher = Publisher(settings, log, source, self.metrics)
        self.gate = FairGate(settings.gateway_concurrency)
        self.weights = Weights(settings, log)
        self.engine = engine
        self._log = log
        family = renderer.family_renderer
        parts = Parts(
            settings=settings,
            engine=engine,
            renderer=renderer,
            grammar=Grammar.of(renderer.backend, family, renderer.stop_ids),
            minter=minter,
            sessions=self.sessions,
            publisher=self.publisher,
            gate=self.gate,
            loop_turns=LoopTurns(),
            weights=self.weights,
            metrics=self.metrics,
            unknown_answers=UnknownAnswers(settings, self.metrics),
        )
        self.connections = Connections(settings, self.metrics)
        bodies = Bodies(settings)
        self.limits = bodies.limits
        self.api = Api(parts, self.keys, [settings.gateway_model], bodies)
        self.admission = Admission(settings, log, self.metrics)
        self.control = Control(parts, self.keys, self.admission, bodies)
        self._weight_control = WeightControl(self.weights, self.api, self.control)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self.local_url = ""
        """Where this machine reaches it."""
        self.base_url = ""
        """Where agents reach it, which may be by another name."""

    async def __aenter__(self) -> Self:
        """Serve.

        Raises:
            PortTaken: the port stays in use.
        """
        app = web.Application(middlewares=[self.api.shaped, self.connections.counted, expected])
        routes = [
            *self.api.routes(),
            *self.control.routes(),
            *self._weight_control.routes(),
            web.post("/control/drain", self.control.guarded(self._drain)),
            web.get(HEALTH_PATH, self._alive),
        ]
        app.add_routes(with_expected(routes))
        # A client that hangs up cancels its handler; the turn itself runs on.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_HANDLERS_S)
        await self._runner.setup()
        try:
            self._server = await self._listen(self._runner)
        except BaseException:
            await self._runner.cleanup()
            raise
        self.connections.start()
        self.sessions.follow()
        self.weights.follow()
        host, port = self._server.sockets[0].getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        shown = f"[{shown}]" if ":" in shown else shown
        self.local_url = f"http://{shown}:{port}"
        self.base_url = (self._settings.gateway_url or self.local_url).rstrip("/")
        self.control.base_url = self.base_url
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let calls under way end, stop those that do not, say what is left, then let go."""
        drain_s = self._settings.gateway_drain_timeout_s
        if await self.api.drain(drain_s):
            await self.api.stop(drain_s)
        await self.publisher.close(drain_s)
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        await self.connections.stop()
        await self.admission.close()
        await self.sessions.close()
        await self.weights.close()

    async def _listen(self, runner: web.AppRunner) -> asyncio.Server:
        protocol = self.connections.before(self._protocols(runner))
        host, port = self._settings.gateway_host, self._settings.gateway_port
        for tried in range(_PORT_TRIES):
            try:
                return await asyncio.get_running_loop().create_server(
                    protocol, host, port, backlog=_BACKLOG
                )
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise PortTaken(f"{host}:{port}: {error}") from error
                if not tried:
                    wait_s = _PORT_TRIES * _PORT_WAIT_S
                    said = f"turnstream: {host}:{port} is in use; trying again for {wait_s:g} s\n"
                    sys.stderr.write(said)
                await asyncio.sleep(_PORT_WAIT_S)
        raise PortTaken(
            f"{host}:{port} is in use: end what listens there, or set TURNSTREAM_GATEWAY_PORT"
        )

    def _protocols(self, runner: web.AppRunner) -> Callable[[], HttpProtocol]:
        """Makes the HTTP server's end of a connection."""
        server = runner.server
        assert server is not None
        logger = _server_logger(self.metrics)

        def unreadable(request: web.BaseRequest, status: int, message: str) -> web.Response:
            return self.api.unreadable(self.connections.path_of(request), status, message)

        # Bodies are unpacked by `Bodies`, within bounds.
        return lambda: HttpProtocol(
            server,
            unreadable,
            access_log=None,
            auto_decompress=False,
            read_bufsize=_READ_BYTES,
            logger=logger,
        )

    async def _drain(self, _: web.Request) -> dict[str, object]:
        left = await self.api.drain(self._settings.gateway_drain_timeout_s)
        return {"draining": True, "in_flight": left}

    async def _alive(self, _: web.Request) -> web.Response:
        """For whoever reaches the agents' port: nothing about anybody else."""
        return web.json_response({"ok": True, "draining": self.api.draining})

    @property
    def pages(self) -> Pages:
        """What it says of itself to operators."""
        return Pages(healthz=self._health, readyz=self._ready, metrics=self.metrics.text)

    async def _health(self) -> Facts:
        learned = not isinstance(self.engine, Learns) or self.engine.learned
        logprobs = self.engine.logprobs if learned or self.engine.logprobs == "raw" else "unknown"
        return {
            "service": "gateway",
            "trouble": None,
            "draining": self.api.draining,
            "admission": self.admission.told,
            "logprobs": logprobs,
        }

    async def _ready(self) -> Facts:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(_READY_S):
                await self._log.end_positions(self._settings.turns_topic)
                await self.weights.known()
                await self.engine.require_ready()
            trouble = None
        except TurnstreamError as error:
            trouble = str(error)
        except TimeoutError:
            trouble = f"log or engine did not answer in {_READY_S:g} s"
        if self.api.draining:
            trouble = "draining"
        return {
            "service": "gateway",
            "ready": trouble is None,
            "trouble": trouble,
            "admission": self.admission.told,
            "s": time.monotonic() - began_s,
        }

    def _gauges(self) -> dict[str, float]:
        return {
            "sessions_held": len(self.sessions),
            "sessions_open": len(self.sessions.places.taken),
            "turns_in_flight": self.api.in_flight,
            "calls_running": self.gate.running,
            "calls_waiting": self.gate.waiting,
            "repairs_under_way": self.publisher.repairing,
            "connections_open": len(self.connections),
            "body_bytes_under_way": self.limits.bytes,
            **self.admission.gauges,
            "runs_paused": self.weights.paused,
            "engine_logprobs_raw": self.engine.logprobs == "raw",
        }


class _ServerLog(logging.Handler):
    """What the HTTP server has to say: requests that are not HTTP, and failures of ours."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(logging.WARNING)
        self._metrics = metrics

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or isinstance(error, HttpProcessingError):
            self._metrics.count("bad_requests")
            kind = type(error).__name__ if error is not None else record.getMessage()
            self._metrics.say_seldom("http", detail=f"no HTTP request: {kind}")
        else:
            self._metrics.failure(None, None, error)


def _server_logger(metrics: Metrics) -> logging.Logger:
    """One of this gateway alone: the server prints a traceback for whatever a client sends."""
    # Not by name: several gateways of one process would share it.
    logger = logging.Logger("turnstream.gateway.http")  # noqa: LOG001
    logger.addHandler(_ServerLog(metrics))
    return logger
