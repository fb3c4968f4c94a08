"""A client's process reaches the recorder and nothing else, and leaves nothing behind."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from tests.clients.running import BASE_URL, Ran, run
from tests.clients.wire import Fault, Wire

LOOKING = """
import json, pathlib, socket, sys, urllib.request
def reach(host, port):
    try:
        socket.create_connection((host, port), 2).close()
    except OSError as error:
        return type(error).__name__
    return "reached"
said = urllib.request.urlopen(sys.argv[1] + "/s/key/v1/x?beta=true", b"asked").read().decode()
lines = pathlib.Path("/proc/net/dev").read_text().splitlines()[2:]
print(json.dumps({
    "said": said,
    "networks": [line.split(":")[0].strip() for line in lines],
    "outside": reach("192.0.2.1", 80),
    "gateway": reach("127.0.0.1", int(sys.argv[2])),
    "home": sorted(__import__("os").environ),
    "stdin": sys.stdin.read(),
}))
"""
STREAM = [b'data: {"n": %d}\n\n' % n for n in range(4)]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def echo(request: web.Request) -> web.StreamResponse:
    return web.Response(text=f"{request.raw_path} {(await request.read()).decode()}")


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for event in STREAM:
        await response.write(event)
    await response.write_eof()
    return response


def ran(script: str, handler: Handler, folder: Path, *faults: Fault) -> tuple[Ran, Wire, int]:
    """A Python program as the client of a server of ours."""

    async def whole() -> tuple[Ran, Wire, int]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port: int = runner.addresses[0][1]
        wire = Wire(f"http://127.0.0.1:{port}")
        wire.faults += faults
        command = [sys.executable, "-c", script, BASE_URL, str(port)]
        try:
            return await run(command, wire, cwd=folder, environment={}), wire, port
        finally:
            await runner.cleanup()

    return asyncio.run(whole())


def test_a_client_reaches_the_recorder_and_nothing_else(tmp_path: Path) -> None:
    told, wire, _ = ran(LOOKING, echo, tmp_path)
    seen = json.loads(told.assert_ok().stdout)
    assert seen["said"] == "/s/key/v1/x?beta=true asked"
    assert seen["networks"] == ["lo"]
    assert seen["outside"] == "OSError"
    assert seen["gateway"] == "ConnectionRefusedError"
    assert {"HOME", "USER", "HTTPS_PROXY"}.isdisjoint(seen["home"])
    assert seen["stdin"] == ""
    (exchange,) = wire.exchanges
    assert (exchange.body, exchange.response, exchange.ended) == (
        b"asked",
        seen["said"].encode(),
        True,
    )


def test_what_a_client_leaves_running_ends_with_it(tmp_path: Path) -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    told, _, _ = ran(script, echo, tmp_path)
    (number,) = told.assert_ok().stdout.split()
    deadline_s = time.monotonic() + 5
    while Path(f"/proc/{number}/stat").exists() and not _zombie(number):
        assert time.monotonic() < deadline_s, f"{number} lives"
        time.sleep(0.01)


def test_a_cut_stream_ends_with_the_event_named(tmp_path: Path) -> None:
    script = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], b'x').read())"
    told, wire, _ = ran(
        script, stream, tmp_path, Fault(on=lambda one: True, cut=lambda event: event["n"] == 1)
    )
    assert told.code != 0
    assert "IncompleteRead" in told.stderr
    (exchange,) = wire.exchanges
    assert [event["n"] for event in exchange.events] == [0, 1]
    assert (exchange.fault, exchange.ended) == ("cut", False)


def test_without_a_fault_a_stream_passes_whole(tmp_path: Path) -> None:
    script = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], b'x').read())"
    told, wire, _ = ran(script, stream, tmp_path)
    assert told.assert_ok().stdout.strip() == str(b"".join(STREAM))
    assert wire.exchanges[0].ended


def test_a_refusal_is_answered_once_instead_of_the_gateway(tmp_path: Path) -> None:
    script = """
import sys, urllib.error, urllib.request as u
try:
    u.urlopen(sys.argv[1], b"x")
except urllib.error.HTTPError as error:
    print(error.code, error.headers["retry-after"], error.read().decode())
print(u.urlopen(sys.argv[1], b"x").status)
"""
    fault = Fault(on=lambda _: True, status=429, body={"no": 1}, headers={"retry-after": "2"})
    told, wire, _ = ran(script, echo, tmp_path, fault)
    assert told.assert_ok().stdout.splitlines() == ['429 2 {"no":1}', "200"]
    assert [one.fault for one in wire.exchanges] == ["status 429", None]


def test_a_client_that_does_not_end_is_ended(tmp_path: Path) -> None:
    async def whole() -> None:
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        wire = Wire("http://127.0.0.1:9")
        await run(command, wire, cwd=tmp_path, environment={}, seconds_max=0.5)

    with pytest.raises(TimeoutError):
        asyncio.run(whole())


def _zombie(number: str) -> bool:
    """Ended, but nobody has asked how: in a container the first process may not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return os.getpid() != int(number)
