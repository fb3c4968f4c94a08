"""A peer's web application, served from inside the peer's own environment.

Invariant: this module needs the standard library alone, until it serves: uvicorn is the peer's.
"""

import asyncio
import contextlib
import importlib
import socket
from collections.abc import AsyncIterator
from typing import Any

_START_S_MAX = 30.0


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    """The port that it answers at, for the length of the block."""
    uvicorn: Any = importlib.import_module("uvicorn")
    # With its protocol named, or asyncio leaves Nagle's algorithm on: 40 ms before some writes.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    async with asyncio.timeout(_START_S_MAX):
        while not server.started:  # noqa: ASYNC110  # it has no event for it
            await asyncio.sleep(0.01)
    yield listening.getsockname()[1]
    server.should_exit = True
    await serving
