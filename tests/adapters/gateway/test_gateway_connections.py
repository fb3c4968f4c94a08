"""Connections: how many, how long without a request, and what the log says of those refused."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streams.adapters.engines.scripted import Rule
from streams.adapters.gateway.api.connections import (
    BYTES_A_CHUNK,
    CHUNKS_MAX,
    GRACE_S,
    HEAD_BYTES_MAX,
    PIPELINED_BYTES_MAX,
    RESERVE,
)
from streams.adapters.gateway.metrics import SELDOM_LINES
from tests.adapters.gateway.agents import user
from tests.adapters.gateway.world import World, play, played

ANY = Rule(text="Yes.", times=None)
SLOW = Rule(text="Yes.", times=None, delay_ms=30_000)
HALF = b"POST /v1/messages HTTP/1.1\r\nhost: gateway\r\nx-half: "
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def connected(world: World, count: int, data: bytes = b"") -> AsyncIterator[list[Pair]]:
    """So many connections that have sent this."""
    port = int(world.gateway.base_url.rpartition(":")[2])
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    for _, writer in pairs:
        writer.write(data)
    try:
        yield pairs
    finally:
        for _, writer in pairs:
            writer.close()


def call(key: str, text: str = "Hi", **more: Any) -> bytes:
    body = json.dumps({"model": "m", "messages": [user(text)], **more}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def closed(reader: asyncio.StreamReader, within_s: float = 20.0) -> float:
    """Seconds until the gateway closed it without a word."""
    began_s = time.monotonic()
    async with asyncio.timeout(within_s):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    return time.monotonic() - began_s


async def health(world: World) -> int:
    async with world.http.get(f"{world.gateway.base_url}/healthz") as reply:
        return reply.status


@played(otherwise=ANY, gateway_header_timeout_s=0.5)
async def test_a_head_that_does_not_come_in_time_is_closed(world: World) -> None:
    agent = await world.open()
    async with connected(world, 1) as [(silent, _)], connected(world, 1, HALF) as [(half, _)]:
        await closed(silent)
        await closed(half)
    async with connected(world, 1, call(agent.key)) as [(reader, writer)]:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await reader.readuntil(b"}]")
        await asyncio.sleep(1.0)  # between two requests it may take longer
        writer.write(call(agent.key))
        await reader.readuntil(b"HTTP/1.1 200")
        await reader.readuntil(b"}]")
        writer.write(HALF)
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
    counts = world.gateway.metrics.counts
    assert counts["connections_closed:header_timeout"] == 3
    assert len(world.gateway.connections) <= 1  # the world's own


@played(otherwise=ANY, gateway_idle_timeout_s=0.5)
async def test_a_connection_without_another_request_is_closed(world: World) -> None:
    async with connected(world, 1, b"GET /healthz HTTP/1.1\r\nhost: g\r\n\r\n") as [(reader, _)]:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
    assert world.gateway.metrics.counts["connections_closed:idle_timeout"] >= 1


@played(otherwise=ANY, gateway_connections_max=10, gateway_header_timeout_s=600.0)
async def test_half_heads_keep_nobody_out(world: World) -> None:
    agent = await world.open()
    for _ in range(3):
        async with connected(world, 50, HALF):
            await asyncio.sleep(2 * GRACE_S)
            assert (await agent.ask(user("Hi")))["content"] == "Yes."
            assert await health(world) == 200
            assert len(world.gateway.connections) <= 10 + RESERVE
    assert world.gateway.metrics.counts["connections_closed:made_room"] > 0


@played(otherwise=SLOW, gateway_connections_max=3, gateway_drain_timeout_s=0.2)
async def test_when_all_have_a_request_a_new_one_is_refused_in_the_apis_shape_but_health_is_not(
    world: World,
) -> None:
    agent = await world.open()
    await world.http.connector.close()  # type: ignore[union-attr]  # it holds a connection
    async with connected(world, 3, call(agent.key)):
        await world.asked(3)
        async with connected(world, 1, call(agent.key)) as [(reader, _)]:
            assert (await reader.readline()).startswith(b"HTTP/1.1 503")
            told = await reader.readuntil(b"}}")
            assert b"retry-after: 1" in told.lower()
            assert b'"error"' in told
        asking = b"GET /healthz HTTP/1.1\r\nhost: g\r\n\r\n"
        async with connected(world, 1, asking) as [(reader, _)]:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert world.gateway.metrics.counts["connections_refused"] == 1


@played(otherwise=SLOW, gateway_connections_max=1, gateway_drain_timeout_s=0.2)
async def test_a_flood_is_refused_connection_by_connection(world: World) -> None:
    agent = await world.open()
    await world.http.connector.close()  # type: ignore[union-attr]  # it holds a connection
    asking = b"GET /healthz HTTP/1.1\r\nhost: g\r\n\r\n"
    async with connected(world, 1, call(agent.key)), connected(world, 2 * RESERVE, HALF):
        await world.asked(1)
        assert len(world.gateway.connections) <= 1 + RESERVE
        await asyncio.sleep(2 * GRACE_S)
        async with connected(world, 1, asking) as [(reader, _)]:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    port = int(world.gateway.base_url.rpartition(":")[2])

    async def status() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(call(agent.key))
        try:
            return (await reader.readline())[:12]
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async with connected(world, 1, call(agent.key)):
        await world.asked(2)
        await asyncio.sleep(2 * GRACE_S)
        statuses = await asyncio.gather(*(status() for _ in range(2 * RESERVE)))
        # Who sends while it is being refused may find the connection reset.
        assert set(statuses) <= {b"HTTP/1.1 503", b""}
        assert statuses.count(b"HTTP/1.1 503") > RESERVE
    assert world.gateway.metrics.counts["connections_refused"] > RESERVE


@played(otherwise=SLOW, gateway_drain_timeout_s=0.2)
async def test_what_is_sent_without_end_is_not_kept(world: World) -> None:
    agent = await world.open()
    async with connected(world, 1, b"GET /v1/models HTTP/1.1\r\n") as [(reader, writer)]:
        for _ in range(2 + HEAD_BYTES_MAX // 8_000):
            writer.write(b"x-more: " + b"x" * 8_000 + b"\r\n")
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
    async with connected(world, 1, call(agent.key)) as [(reader, writer)]:
        await world.asked(1)
        for _ in range(2 + PIPELINED_BYTES_MAX // 20_000):
            writer.write(call(agent.key, "x" * 20_000))
        assert await closed(reader) < 20
    assert world.gateway.metrics.counts["connections_closed:sent_too_much"] == 2
    assert len(world.engine.journal) == 1


def chunked(key: str, chunks: bytes = b"") -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n"
    return f"{head}transfer-encoding: chunked\r\n\r\n".encode() + chunks


def in_chunks(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in [*parts, b""])


@pytest.mark.parametrize("lead", [b"", b"GET /healthz HTTP/1.1\r\nhost: g\r\n\r\n"])
@pytest.mark.parametrize("keyed", [True, False])
def test_a_body_in_chunks_of_a_byte_is_cut_off_before_it_is_parsed(
    tmp_path: Any, keyed: bool, lead: bytes
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        key = agent.key if keyed else "ts-none"
        many = b"1\r\na\r\n" * (2 * CHUNKS_MAX)
        async with connected(world, 1, lead + chunked(key, many)) as [(reader, _)]:
            assert b" 408 " not in await until_closed(reader)
        async with connected(world, 1, lead + chunked(key)) as [(reader, writer)]:
            for at in range(0, len(many), 60):
                writer.write(many[at : at + 60])
                await writer.drain()
            assert b" 408 " not in await until_closed(reader)
        assert world.gateway.metrics.counts["connections_closed:small_chunks"] == 2

    play(tmp_path, story, [ANY], gateway_body_timeout_s=20.0)


@played(otherwise=ANY, gateway_body_timeout_s=20.0)
async def test_fields_behind_a_body_are_cut_off_before_they_are_parsed(world: World) -> None:
    agent = await world.open()
    fields = b"0\r\n" + b"z:1\r\n" * (2 * CHUNKS_MAX)
    async with connected(world, 1, chunked(agent.key, fields)) as [(reader, _)]:
        assert await until_closed(reader) == b""
    assert world.gateway.metrics.counts["connections_closed:small_chunks"] == 1


@played(otherwise=ANY)
async def test_a_body_of_many_short_lines_is_read(world: World) -> None:
    agent = await world.open()
    messages = [user("Hi") for _ in range(2 * CHUNKS_MAX)]
    printed = json.dumps({"model": "m", "messages": messages}, indent=1).replace("\n", "\r\n")
    data = chunked(agent.key, in_chunks(printed.encode(), 65_536))
    async with connected(world, 1, data) as [(reader, _)]:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What was said until the gateway closed it."""
    said = b""
    async with asyncio.timeout(15):
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(4_096):
                said += data
    return said


@played(otherwise=ANY)
async def test_a_body_in_chunks_as_clients_send_them_is_read(world: World) -> None:
    agent = await world.open()
    body = call(agent.key, "word " * 80_000).partition(b"\r\n\r\n")[2]
    for size in (2 * BYTES_A_CHUNK, 65_536):
        data = chunked(agent.key, in_chunks(body, size))
        async with connected(world, 1, data) as [(reader, _)]:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    small = call(agent.key).partition(b"\r\n\r\n")[2]
    async with connected(world, 1, chunked(agent.key, in_chunks(small, 1))) as [(reader, _)]:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")


LONG = Rule(text="word " * 12_000, times=None)
LONG_NAME = "m" * 256
"""It stands in every event: the answer is more than the system takes for a client."""


@played(
    otherwise=LONG,
    gateway_idle_timeout_s=1.0,
    gateway_max_new_tokens=20_000,
    gateway_keep_alive_s=60.0,
)
async def test_a_stream_that_nobody_reads_is_closed_and_its_turn_is_not_delivered(
    world: World,
) -> None:
    agent = await world.open()
    host, port = world.gateway.base_url.removeprefix("http://").split(":")
    with socket.socket() as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        unread.connect((host, int(port)))
        unread.sendall(call(agent.key, stream=True, model=LONG_NAME))
        await world.told(agent.session_id)
    assert world.gateway.metrics.counts["connections_closed:not_read"] == 1
    assert world.gateway.api.in_flight == 0


def lines(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_bad_keys_leave_a_few_lines_and_none_has_a_key_in_it(
    tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        url = world.gateway.base_url
        for number in range(40):
            bad = {"authorization": f"Bearer ts-{number}"}
            async with world.http.post(f"{url}/v1/messages", headers=bad) as reply:
                assert reply.status == 401
        for _ in range(40):
            assert (await world.control("sessions", {}, key=agent.key))[0] == 401
        for method in ("HEAD", "GET"):
            async with world.http.request(method, f"{url}/s/{agent.key}/v1/nothing") as reply:
                assert reply.status == 404
        headers = {"authorization": f"Bearer {agent.key}"}
        async with world.http.post(f"{url}/v1/responses", data=b"{", headers=headers) as reply:
            assert reply.status == 400
        async with connected(world, 1, b"GET /\x1b[2J HTTP/1.1\r\n\r\n") as [(reader, _)]:
            assert b" 400 " in await reader.readline()
        named.append(agent.session_id)
        secrets.append(agent.key)

    named: list[str] = []
    secrets: list[str] = []
    play(tmp_path, story, gateway_header_timeout_s=1.0)
    said = capfd.readouterr().err
    refused = [line for line in lines(said) if line["what"] == "refused"]
    anonymous = [line for line in refused if "session" not in line]
    (of_session,) = [line for line in refused if "session" in line]
    at_control = [line for line in lines(said) if line["what"] == "refused_control"]
    assert len(at_control) == SELDOM_LINES
    assert len(anonymous) == SELDOM_LINES
    assert anonymous[0]["path"] == "/v1/messages"
    assert anonymous[0]["detail"] == "401 invalid_api_key: not base64"
    assert of_session["session"] == named[0]
    assert of_session["path"] == "/v1/responses"
    (bad,) = [line for line in lines(said) if line["what"] == "http"]
    assert "no HTTP request" in bad["detail"]
    assert secrets[0] not in said
    assert "Traceback" not in said
