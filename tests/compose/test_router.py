"""The router as the compose file runs it: the real program with the real file, before two servers.

The servers only say who they are and what they were asked; what gateways do behind it is told in
`test_two_gateways`.
"""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from streams.settings import Settings
from tests.compose.compose_file import Service
from tests.compose.dockerfile import Stage
from tests.compose.stand_in import StandIn
from tests.compose.table import ROUTER, filled

SECONDS_MAX = 90.0
KEYS = [f"ts-{letter * 40}" for letter in "abcdefgh"]
LIMIT_BYTES = Settings().gateway_body_bytes_max


@dataclass
class Backend:
    """A server in the place of a gateway."""

    port: int
    draining: bool = False
    asked: list[str] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=LIMIT_BYTES)
        app.router.add_get("/healthz", self._health)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True, "draining": self.draining, "admission": None})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        body = await request.read()
        if "x-stream" not in request.headers:
            headers = {name.lower(): value for name, value in request.headers.items()}
            told = {"port": self.port, "bytes": len(body), "headers": headers}
            return web.json_response(told, headers={"x-from-the-gateway": "kept"})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            await response.write(b"data: first\n\n")
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.hung_up.set()
            raise
        await response.write_eof(b"data: last\n\n")
        return response


@dataclass
class Before:
    """The router, and what is behind it."""

    url: str
    http: aiohttp.ClientSession
    backends: list[Backend]
    stack: StandIn

    async def ask(
        self, path: str = "/v1/messages", *, tries: int = 1, **headers: str
    ) -> dict[str, Any]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        for _ in range(tries):
            async with self.http.post(self.url + path, headers=given, data=b"{}") as reply:
                text = await reply.read()
            if reply.status != 503:
                break
            await asyncio.sleep(int(reply.headers["retry-after"]))
        assert reply.status == 200, text
        told: dict[str, Any] = json.loads(text)
        return told

    async def places(self, *, tries: int = 1, **headers: str) -> list[int]:
        """Who answers each key, with the key in a header."""
        ((name, value),) = headers.items()
        told = [await self.ask(tries=tries, **{name: value.format(key)}) for key in KEYS]
        return [answer["port"] for answer in told]


Story = Callable[[Before], Awaitable[None]]


@pytest.fixture
def play(
    services: dict[str, Service], image: Stage, tmp_path: Path, ports: dict[str, int]
) -> Callable[[Story], None]:
    """Run a story before a router with two servers behind it."""
    alone = {"router": replace(services["router"], depends_on={}, profiles=[])}

    @contextlib.asynccontextmanager
    async def started() -> AsyncIterator[Before]:
        backends = [Backend(ports["gateway_1"]), Backend(ports["gateway_2"])]
        for backend in backends:
            await backend.start()
        table = lambda name: filled(tmp_path, ports, name)  # noqa: E731
        try:
            with StandIn(alone, image, tmp_path, table, ROUTER) as stack:
                await asyncio.to_thread(stack.up, {})
                async with aiohttp.ClientSession() as http:
                    yield Before(f"http://127.0.0.1:{ports['router']}", http, backends, stack)
                await asyncio.to_thread(stack.down)
        finally:
            for backend in backends:
                await backend.stop()

    def run(story: Story) -> None:
        async def whole() -> None:
            async with asyncio.timeout(SECONDS_MAX), started() as before:
                await story(before)

        asyncio.run(whole())

    return run


def test_a_session_is_at_one_gateway_wherever_its_key_stands(play: Callable[[Story], None]) -> None:
    async def story(before: Before) -> None:
        places = await before.places(authorization="Bearer {}")
        assert set(places) == {backend.port for backend in before.backends}
        assert await before.places(authorization="bearer  {}") == places
        assert await before.places(x_api_key="{}") == places
        assert await before.places(turnstream_session="{}") == places
        for key, place in zip(KEYS, places, strict=True):
            assert (await before.ask(f"/s/{key}/v1/responses"))["port"] == place
            # The key in the path is the one that counts, as it is for the gateways.
            assert (await before.ask(f"/s/{key}/v1/x", x_api_key=KEYS[0]))["port"] == place
            control = await before.ask(
                "/control/sessions/s/end",
                authorization="Bearer tc-control",
                turnstream_session=key,
            )
            assert control["port"] == place
        # Those that name no session are for any of them.
        opened = [(await before.ask(authorization="Bearer tc-x"))["port"] for _ in range(4)]
        assert len(set(opened)) == 2

    play(story)


def test_what_is_sent_and_answered_passes_as_it_is(play: Callable[[Story], None]) -> None:
    async def story(before: Before) -> None:
        told = await before.ask(authorization=f"Bearer {KEYS[0]}", anthropic_beta="a,b")
        assert told["headers"]["authorization"] == f"Bearer {KEYS[0]}"
        assert told["headers"]["anthropic-beta"] == "a,b"
        bearer = {"authorization": f"Bearer {KEYS[0]}"}
        async with before.http.get(before.url + "/v1/models", headers=bearer) as reply:
            assert reply.headers["x-from-the-gateway"] == "kept"
        for size, status in ((LIMIT_BYTES, 200), (LIMIT_BYTES + 1, 413)):
            body = io.BytesIO(bytes(size))
            async with before.http.post(
                before.url + "/v1/messages", data=body, headers=bearer
            ) as reply:
                assert reply.status == status

    play(story)


def test_what_is_not_for_agents_is_not_passed_on(play: Callable[[Story], None]) -> None:
    async def story(before: Before) -> None:
        for path in ("/metrics", "/readyz", "/", "/s", "/v1", "/debug/v1/messages"):
            async with before.http.get(before.url + path, headers={"x-api-key": KEYS[0]}) as reply:
                assert reply.status == 404
                assert (await reply.json(content_type=None))["error"]["type"] == "not_found_error"
        assert not [path for backend in before.backends for path in backend.asked]
        async with before.http.get(before.url + "/healthz") as reply:
            assert reply.status == 200

    play(story)


def test_a_stream_is_passed_on_as_it_comes_and_so_is_a_hang_up(
    play: Callable[[Story], None],
) -> None:
    async def story(before: Before) -> None:
        words = {"x-stream": "1", "x-api-key": KEYS[0]}
        async with before.http.post(before.url + "/v1/messages", headers=words) as reply:
            # The server says no more before this was read here.
            assert await reply.content.readuntil(b"\n\n") == b"data: first\n\n"
            for backend in before.backends:
                backend.go_on.set()
            assert await reply.content.read() == b"data: last\n\n"
        for backend in before.backends:
            backend.go_on.clear()
        async with before.http.post(before.url + "/v1/messages", headers=words) as reply:
            await reply.content.readuntil(b"\n\n")
            reply.close()
        gone = [asyncio.ensure_future(backend.hung_up.wait()) for backend in before.backends]
        await asyncio.wait(gone, return_when=asyncio.FIRST_COMPLETED)
        for waiting in gone:
            waiting.cancel()

    play(story)


def test_the_sessions_of_a_gateway_that_is_gone_are_at_the_other(
    play: Callable[[Story], None],
) -> None:
    async def story(before: Before) -> None:
        first, second = before.backends
        places = await before.places(x_api_key="{}")
        await first.stop()
        # A call put on a connection that was just closed had begun: the client's to send again.
        gone = await before.places(x_api_key="{}", tries=2)
        assert gone == [second.port] * len(KEYS)
        await first.start()
        await until(lambda: before.places(x_api_key="{}"), places)

    play(story)


def test_a_gateway_that_drains_gets_no_new_calls(play: Callable[[Story], None]) -> None:
    async def story(before: Before) -> None:
        first, second = before.backends
        first.draining = True
        await until(lambda: before.places(x_api_key="{}"), [second.port] * len(KEYS))

    play(story)


def test_without_a_gateway_a_client_is_told_to_try_again(play: Callable[[Story], None]) -> None:
    async def story(before: Before) -> None:
        for backend in before.backends:
            await backend.stop()
        keyed, told = f"/s/{KEYS[0]}/v1/messages", "no gateway answers: try again"
        for path, where in (("/control/sessions", None), (keyed, "message")):
            async with before.http.post(before.url + path, headers={"x-api-key": KEYS[1]}) as reply:
                assert (reply.status, reply.headers["retry-after"]) == (503, "1")
                assert reply.content_type == "application/json"
                error = (await reply.json())["error"]
                assert (error if where is None else error[where]) == told
        (container,) = before.stack.containers["router"]
        assert "connection refused" in container.said
        assert "ts-" not in container.said

    play(story)


async def until(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Wait for an answer; the story's own time is the bound."""
    found: object = None
    while found != wanted:
        await asyncio.sleep(0.1)
        found = await ask()
