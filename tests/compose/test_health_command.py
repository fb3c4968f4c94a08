"""`turnstream health` says what the worker says, and never more."""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from streams.processor.health import Progress, serve
from streams.settings import Settings
from tests.cli.command import COMMAND, SECONDS_MAX, Ran
from tests.kafka.broker import free_port

WELL = Progress(partitions=5, lag=7, sessions_open=3, in_flight=0, ready=True, trouble=None)
STUCK = WELL._replace(trouble="partition 4 is 7 events behind and does not move")


async def health(**variables: str) -> Ran:
    given = {f"TURNSTREAM_{name.upper()}": value for name, value in variables.items()}
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        "health",
        env={**os.environ, "http_proxy": "http://127.0.0.1:9", **given},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    return Ran(process.returncode or 0, out.decode(), err.decode())


async def beside(progress: Progress, host: str = "127.0.0.1") -> Ran:
    """The command beside a worker's own server that tells of this progress."""
    port = free_port()
    settings = Settings(metrics_host=host, metrics_port=port)
    runner = await serve(settings, Counter(), lambda: progress)
    try:
        return await health(metrics_host=host, metrics_port=str(port))
    finally:
        await runner.cleanup()


async def foreign() -> Ran:
    """Somebody else's server, which knows nothing of health."""
    runner, port = web.AppRunner(web.Application()), free_port()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        return await health(metrics_port=str(port))
    finally:
        await runner.cleanup()


async def mute() -> Ran:
    """A server that takes the question and never answers."""
    port, over = free_port(), asyncio.Event()

    async def listen(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", port):
        ran = await health(metrics_port=str(port))
        over.set()
    return ran


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_worker_that_moves_is_healthy(host: str) -> None:
    ran = asyncio.run(beside(WELL, host))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "healthy: 5 partitions, 7 events behind, 3 sessions open\n"


def test_a_worker_that_is_stuck_is_not_and_says_why() -> None:
    ran = asyncio.run(beside(STUCK))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.endswith(": partition 4 is 7 events behind and does not move\n")


UNKNOWN: dict[str, tuple[Callable[[], Awaitable[Ran]], str]] = {
    "nobody is there": (lambda: health(metrics_port=str(free_port())), "no answer: Connection"),
    "somebody else is there": (foreign, "status 404, but this is no service of ours"),
    "nobody answers": (mute, "no answer: TimeoutError"),
    "the port is not known": (lambda: health(metrics_port="0"), "TURNSTREAM_METRICS_PORT=0: "),
    "a setting is wrong": (lambda: health(metrics_port="x"), "TURNSTREAM_METRICS_PORT=x: give a"),
}


@pytest.mark.parametrize(("ask", "told"), UNKNOWN.values(), ids=UNKNOWN)
def test_without_the_word_of_a_worker_nothing_is_healthy(
    ask: Callable[[], Awaitable[Ran]], told: str
) -> None:
    async def asked() -> Ran:
        return await ask()

    ran = asyncio.run(asked())
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("turnstream: ")
    assert told in ran.err
    assert ran.err.count("\n") == 1
