"""The pages about a service, on the metrics port: `/healthz`, `/readyz`, `/metrics`.

    healthz   does it make progress?      200, or 503 and why, as `trouble`
    readyz    can it do its work now?     the same
    metrics   its counts, as Prometheus reads them

They name runs, groups and what is wrong, so they are for operators: never on a port that agents
reach.

Invariant: a service of ours says `trouble`, null if there is none; the address is loopback unless
the settings say otherwise.
"""

import contextlib
import errno
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from streams.settings import Settings

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What one service says of itself."""

    healthz: Callable[[], Awaitable[Facts]]
    """With `trouble`; it is healthy if that is None."""
    readyz: Callable[[], Awaitable[Facts]]
    """With `ready`."""
    metrics: Callable[[], bytes]


async def serve_pages(settings: Settings, pages: Pages, who: str) -> web.AppRunner:
    """Answer on the settings' address until the runner is cleaned up."""

    async def healthz(_: web.Request) -> web.Response:
        facts = await pages.healthz()
        return web.json_response(facts, status=200 if facts["trouble"] is None else 503)

    async def readyz(_: web.Request) -> web.Response:
        facts = await pages.readyz()
        return web.json_response(facts, status=200 if facts["ready"] else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=pages.metrics(), content_type="text/plain")

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.metrics_host, settings.metrics_port).start()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        # Several services on one machine: the first has the port, the others say where they are.
        await web.TCPSite(runner, settings.metrics_host, 0).start()
    host, port = runner.addresses[0][:2]
    sys.stderr.write(f"{who}: health and metrics on http://{host}:{port}\n")
    return runner


@contextlib.asynccontextmanager
async def served_pages(settings: Settings, pages: Pages, who: str) -> AsyncIterator[None]:
    """Answer on the settings' address while the block runs."""
    runner = await serve_pages(settings, pages, who)
    try:
        yield
    finally:
        await runner.cleanup()


def both(worker: Pages, gateway: Pages) -> Pages:
    """The pages of two services in one process: the second's facts stand below `gateway`."""

    async def healthz() -> Facts:
        facts, other = await worker.healthz(), await gateway.healthz()
        return {**facts, "trouble": facts["trouble"] or other["trouble"], "gateway": other}

    async def readyz() -> Facts:
        facts, other = await worker.readyz(), await gateway.readyz()
        return {
            **facts,
            "trouble": facts["trouble"] or other["trouble"],
            "ready": facts["ready"] and other["ready"],
            "gateway": other,
        }

    return Pages(
        healthz=healthz, readyz=readyz, metrics=lambda: worker.metrics() + gateway.metrics()
    )
