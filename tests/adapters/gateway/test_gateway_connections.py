"""Connections: how many, how long without a request, and what the log says of those refused."""

import asyncio
import contextlib
import gc
import json
import re
import resource
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.http_exceptions import HttpProcessingError

from streams.adapters.engines.scripted import Rule
from streams.adapters.gateway.api.connections import (
    GRACE_S,
    HEAD_BYTES_MAX,
    PIPELINED_BYTES_MAX,
    RESERVE,
    Connections,
)
from streams.adapters.gateway.api.framing import BYTES_A_CHUNK, CHUNKS_MAX
from streams.adapters.gateway.metrics import SELDOM_LINES, Metrics
from streams.cli.serving import _OPEN_FILES_MAX
from streams.errors import BadSetting
from streams.settings import Settings
from tests.adapters.gateway.agents import user
from tests.adapters.gateway.world import World, play, played
from tests.attack.gateway_process import files_at_most, victim

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


HEALTH = b"GET /healthz HTTP/1.1\r\nhost: g\r\n\r\n"
REFUSED = b"POST /v1/messages HTTP/1.1\r\nhost: g\r\ncontent-length: 5\r\n"
UPGRADE = b"GET /healthz HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: "
FIELDS = b"x-more: " + b"x" * 8_000 + b"\r\n"
AFTER_A_REQUEST = {
    "nothing": [HEALTH],
    "an empty line": [HEALTH, b"\r\n"],
    "two empty lines": [HEALTH, b"\r\n\r\n"],
    "empty lines without end": [HEALTH, b"\r\n\r\n" * 100],
    "an empty line before the first request": [b"\r\n\r\n"],
    "a body that comes after the answer": [REFUSED + b"\r\n", b"12345"],
    "a body that comes with its head": [REFUSED + b"\r\n12345"],
    "a body that was waited for": [REFUSED + b"expect: 100-continue\r\n\r\n", b"12345"],
    "a body in chunks with fields behind": [chunked("none"), b"5\r\n12345\r\n0\r\nx: y\r\n\r\n"],
    "two requests at once": [HEALTH + HEALTH],
    "a refused upgrade": [UPGRADE + b"websocket\r\n\r\n"],
    "a refused upgrade to HTTP/2": [UPGRADE + b"h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n"],
    "a refused tunnel": [b"CONNECT g:80 HTTP/1.1\r\nhost: g\r\n\r\n"],
}
"""What a client sends before a head that does not end, piece by piece."""


@pytest.mark.parametrize("before", AFTER_A_REQUEST.values(), ids=AFTER_A_REQUEST)
def test_the_next_head_is_bounded_in_bytes_and_in_time_whatever_came_before_it(
    tmp_path: Any, before: list[bytes]
) -> None:
    async def story(world: World) -> None:
        for fields, why in ((20 * FIELDS, "sent_too_much"), (FIELDS, "header_timeout")):
            async with connected(world, 1) as [(reader, writer)]:
                for part in before:
                    writer.write(part)
                    await asyncio.sleep(0.2)
                writer.write(b"POST /v1/messages HTTP/1.1\r\n" + fields)
                await until_closed(reader)
            assert world.gateway.metrics.counts[f"connections_closed:{why}"] == 1
        assert world.gateway.metrics.counts["connections_closed:idle_timeout"] == 0

    play(tmp_path, story, [ANY], gateway_header_timeout_s=1.5)


NO_REQUESTS = {
    "no method": b"x" * 100,
    "no method behind an empty line": b"\r\n\r\n" + b"x" * 100,
    "a method without end": b"X" * 100,
    "TLS": b"\x16\x03\x01" + b"x" * 100,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "lines that end otherwise": b"GET / HTTP/1.1\nhost: g\n\n",
}


@pytest.mark.parametrize("sent", NO_REQUESTS.values(), ids=NO_REQUESTS)
def test_what_is_no_request_is_refused_once_and_nothing_behind_it_is_read(
    tmp_path: Any, sent: bytes
) -> None:
    async def story(world: World) -> None:
        async with connected(world, 1, sent + b"x" * 250_000) as [(reader, writer)]:
            for _ in range(20):
                writer.write(b"x" * 50_000)
            said = await until_closed(reader)
        assert said.count(b" 400 ") <= 1  # it is lost where the client still sends
        assert len(said) < 1_000
        async with connected(world, 1, sent) as [(reader, _)]:
            assert (await until_closed(reader)).startswith(b"HTTP/1.0 400 ")
        counts = world.gateway.metrics.counts
        assert sum(counts[name] for name in counts if name.startswith("connections_closed")) == 0

    play(tmp_path, story, gateway_header_timeout_s=20.0)


@played(otherwise=ANY)
async def test_what_the_http_server_could_not_read_is_let_go_without_the_garbage_collector(
    world: World,
) -> None:
    bad = b"GET /v1/models HTTP/1.1\r\nhost: g\r\n" + 7 * FIELDS + b"content-length: x\r\n\r\n"
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            async with connected(world, 1, bad) as [(reader, _)]:
                assert b" 400 " in await until_closed(reader)
        await asyncio.sleep(0.1)
        kept = [each for each in gc.get_objects() if isinstance(each, HttpProcessingError)]
        assert kept == []
    finally:
        gc.enable()


@played(otherwise=ANY, gateway_header_timeout_s=1.0)
async def test_a_refused_request_whose_body_does_not_come_is_closed(world: World) -> None:
    async with connected(world, 1, REFUSED + b"\r\n") as [(reader, _)]:
        assert (await until_closed(reader)).startswith(b"HTTP/1.1 401")
    assert world.gateway.metrics.counts["connections_closed:header_timeout"] == 1


@played(otherwise=ANY)
async def test_requests_that_come_at_once_are_answered_in_order(world: World) -> None:
    agent = await world.open()
    body = call(agent.key).partition(b"\r\n\r\n")[2]
    in_parts = chunked(agent.key, in_chunks(body, 20)[:-2] + b"x: y\r\n\r\n")
    sent = HEALTH + call(agent.key) + b"\r\n" + in_parts + REFUSED + b"\r\n12345" + HEALTH
    for size in (len(sent), 100, 1):
        async with connected(world, 1) as [(reader, writer)]:
            for at in range(0, len(sent), size):
                writer.write(sent[at : at + size])
                await asyncio.sleep(0)
            for status in (200, 200, 200, 401, 200):
                assert (await reader.readline()).split()[1] == str(status).encode()
                head = await reader.readuntil(b"\r\n\r\n")
                (length,) = [line for line in head.lower().split(b"\r\n") if b"-length" in line]
                await reader.readexactly(int(length.partition(b":")[2]))


@played(otherwise=SLOW, gateway_drain_timeout_s=0.2)
async def test_who_sends_requests_and_reads_no_answer_is_closed(world: World) -> None:
    host, port = world.gateway.base_url.removeprefix("http://").split(":")
    lines = REFUSED.replace(b"content-length: 5\r\n", b"") + b"\r\n"
    with socket.socket() as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        unread.connect((host, int(port)))
        unread.setblocking(False)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                while True:
                    await loop.sock_sendall(unread, lines * 2_000)
    assert world.gateway.metrics.counts["connections_closed:sent_too_much"] == 1


PATHS = {
    "/v1/chat/completions": {"error"},
    "/v1/responses": {"error"},
    "/v1/messages": {"type", "error"},
    "/v1/messages/count_tokens": {"type", "error"},
    "/s/KEY/v1/messages": {"type", "error"},
    "/control/sessions": {"error"},
}
BAD = {
    "a length that is none": (400, b"content-length: five\r\n\r\n"),
    "a field that is too long": (400, b"x-more: " + b"x" * 9_000 + b"\r\n\r\n"),
    "too many fields": (400, b"".join(b"x-%d: y\r\n" % n for n in range(200)) + b"\r\n"),
    "two lengths": (400, b"content-length: 5\r\ncontent-length: 6\r\n\r\n"),
    "an expectation": (417, b"expect: foo\r\n\r\n"),
    "a chunk without a size": (400, b"transfer-encoding: chunked\r\n\r\nzz\r\n"),
    "a chunk that goes on": (400, b"transfer-encoding: chunked\r\n\r\n1\r\nab\r\n"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_what_the_http_server_refuses_has_the_shape_of_its_path(
    tmp_path: Any, bad: tuple[int, bytes]
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        for path, names in PATHS.items():
            key = world.gateway.keys.control_key if "control" in path else agent.key
            start = f"POST {path.replace('KEY', agent.key)} HTTP/1.1\r\nhost: g\r\n"
            asking = f"{start}authorization: Bearer {key}\r\n".encode() + bad[1]
            async with connected(world, 1, asking) as [(reader, _)]:
                assert int((await reader.readline()).split()[1]) == bad[0]
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head.lower())
                assert length is not None
                told = json.loads(await reader.readexactly(int(length[1])))
            assert b"content-type: application/json" in head.lower()
            assert told.keys() == names
            error = told["error"]
            assert 0 < len(error if "control" in path else error["message"]) < 300
            assert "control" in path or error["type"] == "invalid_request_error"

    play(tmp_path, story, [ANY])


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


def test_a_gateway_raises_its_limit_of_open_files_as_far_as_it_may(tmp_path: Any) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with files_at_most(512), victim(tmp_path) as gateway:
        wanted = _OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES_MAX)
        assert gateway.files_max() == wanted > 512


@pytest.mark.parametrize(("allowed", "room"), [(4_096, 3_648), (512, 64)])
def test_fewer_open_files_are_fewer_connections(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], allowed: int, room: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    assert Connections(Settings(), Metrics(dict)).limit == room
    (line,) = lines(capfd.readouterr().err)
    assert line["detail"] == f"at most {room}: this process may have {allowed} files open"


@pytest.mark.parametrize("allowed", [300, 511])
def test_a_gateway_without_files_for_connections_does_not_start(
    monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    with pytest.raises(BadSetting, match=f"{allowed} files open.*needs 512.*ulimit -n") as refused:
        Connections(Settings(), Metrics(dict))
    assert "\n" not in str(refused.value)
    wanted = Settings(gateway_concurrency=allowed - RESERVE - 64 - 1, gateway_connections_max=1)
    assert Connections(wanted, Metrics(dict)).limit == 1
