"""Attacks on the gateway: by a client without a key, and by the holder of one session's key.

Each is done to a real process over real sockets, while /healthz is asked all the time.
"""

import asyncio
import contextlib
import gzip
import json
import math
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import cramjam

from streams.settings import Settings
from tests.attack.gateway_process import (
    Victim,
    Watched,
    files_at_most,
    hang_up,
    head,
    status_of,
    victim,
)
from tests.attack.scenario import Bound, scenario, scenarios_in

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
BOMB = gzip.compress(b" " * 31_000_000)
"""31 KB."""
LOOP_STALL_S_MAX = 1.5
"""Quiet machines show a fifth of it."""
CLOSED_S_MAX = 120.0
"""A time limit of 5 s, on a machine that may be ten times slower; without one it is never."""


@contextlib.asynccontextmanager
async def connected(
    port: int, count: int
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """So many connections, closed with the block."""
    pairs = []
    try:
        for _ in range(count):
            pairs.append(await asyncio.open_connection("127.0.0.1", port))
        yield pairs
    finally:
        await hang_up(*(writer for _, writer in pairs))


def healthy(watched: Watched) -> Iterator[Bound]:
    """That /healthz was answered all the time."""
    yield Bound("looks at /healthz", watched.looks, at_least=3)
    yield Bound("failed looks at /healthz", watched.failed, at_most=0)
    yield Bound("slowest /healthz", watched.slowest_s, at_most=LOOP_STALL_S_MAX, unit="s")


@scenario(quick=True)
def unfinished_gzip_bodies(folder: Path) -> Iterator[Bound]:
    """40 connections send 31 KB of gzip each, which is 31 MB, and never the end."""
    with victim(folder, TURNSTREAM_GATEWAY_BODY_TIMEOUT_S="5") as gateway:
        watched, statuses, took_s = asyncio.run(_unfinished(gateway))
    yield Bound("until they were answered", took_s, at_most=CLOSED_S_MAX, unit="s")
    yield Bound("memory growth", watched.grown_mb, at_most=100, unit="MB")
    yield Bound("connections that were answered 408", statuses.count(408), at_least=40)
    yield from healthy(watched)


async def _unfinished(gateway: Victim) -> tuple[Watched, list[int], float]:
    key = await asyncio.to_thread(gateway.open_session)
    async with gateway.watched() as watched, connected(gateway.port, 40) as pairs:
        for _, writer in pairs:
            fields = ("content-encoding: gzip", f"content-length: {len(BOMB) + 1}")
            writer.write(head("POST", CHAT, key, *fields) + BOMB)
            await writer.drain()
        began_s = time.monotonic()
        ends = await asyncio.gather(*(_end(reader) for reader, _ in pairs))
        return watched, ends, time.monotonic() - began_s


async def _end(reader: asyncio.StreamReader) -> int:
    """The status, or 0 if there was none in time."""
    try:
        return await status_of(reader)
    except (TimeoutError, ValueError, OSError):
        return 0


@scenario(quick=True)
def gzip_bombs(folder: Path) -> Iterator[Bound]:
    """40 whole bodies of 31 KB of gzip, which are 31 MB each."""
    with victim(folder) as gateway:
        watched, statuses = asyncio.run(_bombs(gateway))
    yield Bound("memory growth", watched.grown_mb, at_most=300, unit="MB")
    yield Bound("answers", sum(status > 0 for status in statuses), at_least=40)
    yield from healthy(watched)


async def _bombs(gateway: Victim) -> tuple[Watched, list[int]]:
    key = await asyncio.to_thread(gateway.open_session)
    async with gateway.watched() as watched, connected(gateway.port, 40) as pairs:
        for _, writer in pairs:
            fields = ("content-encoding: gzip", f"content-length: {len(BOMB)}")
            writer.write(head("POST", CHAT, key, *fields) + BOMB)
        return watched, list(await asyncio.gather(*(_end(reader) for reader, _ in pairs)))


@scenario(quick=True)
def bombs_one_after_another(folder: Path) -> Iterator[Bound]:
    """A body that is too much once it is unpacked or counted, 20 times in each way."""
    with victim(folder) as gateway:
        watched, statuses = asyncio.run(_one_after_another(gateway))
    yield Bound("memory growth", watched.grown_mb, at_most=250, unit="MB")
    yield Bound("requests refused with 413", statuses.count(413), at_least=len(statuses))
    yield from healthy(watched)


async def _one_after_another(gateway: Victim) -> tuple[Watched, list[int]]:
    key = await asyncio.to_thread(gateway.open_session)
    spaces, most = b" " * 60_000_000, Settings().gateway_body_bytes_max
    bodies = [
        ("br", bytes(cramjam.brotli.compress(spaces))),
        ("zstd", bytes(cramjam.zstd.compress(spaces))),
        ("gzip", gzip.compress(spaces)),
        ("gzip", gzip.compress(b"," * most)),
    ]
    statuses: list[int] = []
    async with gateway.watched() as watched:
        for name, body in bodies * 20:
            async with connected(gateway.port, 1) as [(reader, writer)]:
                fields = (f"content-encoding: {name}", f"content-length: {len(body)}")
                writer.write(head("POST", CHAT, key, *fields) + body)
                statuses.append(await _end(reader))
    return watched, statuses


@scenario(quick=False)
def parallel_calls_of_one_key(folder: Path) -> Iterator[Bound]:
    """150 calls of one session at a time, with prompts of 300 KB."""
    with victim(folder) as gateway:
        watched, statuses, other = asyncio.run(_parallel(gateway))
    most = Settings().gateway_session_calls_max
    yield Bound("memory growth", watched.grown_mb, at_most=250, unit="MB")
    yield Bound("calls answered 200", statuses.count(200), at_least=1, at_most=most)
    yield Bound("calls answered 429", statuses.count(429), at_least=150 - most)
    yield Bound("another session's call", other, at_most=30, unit="s")
    yield from healthy(watched)


async def _parallel(gateway: Victim) -> tuple[Watched, list[int], float]:
    key = await asyncio.to_thread(gateway.open_session)
    other = await asyncio.to_thread(gateway.open_session)
    bodies = [_body("word " * 60_000 + str(number)) for number in range(150)]
    async with gateway.watched() as watched:
        calls = asyncio.gather(*(gateway.asked(CHAT, key, body) for body in bodies))
        await asyncio.sleep(0.5)
        stopwatch = gateway.stopwatch()
        assert await gateway.asked(CHAT, other, _body("Hi")) == 200
        took_s = stopwatch()
        return watched, await calls, took_s


def _body(text: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


@scenario(quick=True)
def a_million_empty_messages(folder: Path) -> Iterator[Bound]:
    """1.1 million empty messages, and as many empty parts, in each API."""
    with victim(folder) as gateway:
        watched, statuses = asyncio.run(_messages(gateway))
    yield Bound("requests refused with 413", statuses.count(413), at_least=len(statuses))
    yield Bound("memory growth", watched.grown_mb, at_most=300, unit="MB")
    yield from healthy(watched)


async def _messages(gateway: Victim) -> tuple[Watched, list[int]]:
    key = await asyncio.to_thread(gateway.open_session)
    empty = ",".join(['{"role":"user","content":""}'] * 1_100_000)
    parts = ",".join(['{"type":"text","text":""}'] * 1_100_000)
    in_parts = f'{{"role":"user","content":[{parts}]}}'
    asked = [
        (path, f'{{"model":"m","max_tokens":9,"{field}":[{messages}]}}'.encode())
        for path, field in ((CHAT, "messages"), (MESSAGES, "messages"), (RESPONSES, "input"))
        for messages in (empty, in_parts)
    ]
    async with gateway.watched() as watched:
        return watched, [await gateway.asked(path, key, body) for path, body in asked]


@scenario(quick=False)
def as_many_foreign_messages_as_are_allowed(folder: Path) -> Iterator[Bound]:
    """64 conversations of 4,096 messages, half of them answers that were never recorded."""
    with victim(folder) as gateway:
        watched, statuses = asyncio.run(_foreign(gateway))
    yield Bound("answers", statuses.count(200), at_least=len(statuses))
    yield Bound("memory growth", watched.grown_mb, at_most=500, unit="MB")
    yield from healthy(watched)


async def _foreign(gateway: Victim) -> tuple[Watched, list[int]]:
    key = await asyncio.to_thread(gateway.open_session)
    count = Settings().gateway_messages_max
    roles = ("user", "assistant")
    async with gateway.watched() as watched:
        calls = []
        for number in range(Settings().gateway_session_calls_max):
            messages = [{"role": roles[n % 2], "content": f"{number}"} for n in range(count - 1)]
            calls.append(
                gateway.asked(CHAT, key, json.dumps({"model": "m", "messages": messages}).encode())
            )
        return watched, list(await asyncio.gather(*calls))


@scenario(quick=True)
def half_heads(folder: Path) -> Iterator[Bound]:
    """4,500 connections send half a request's head and wait."""
    timeout = {"TURNSTREAM_GATEWAY_HEADER_TIMEOUT_S": "5"}
    with files_at_most(1_024), victim(folder, **timeout) as gateway, files_at_most(10_000):
        files = gateway.files_max()
        watched, took_s = asyncio.run(_half_heads(gateway))
        lines = gateway.running.said.count('"what": "connections"')
    yield Bound("files that it may open, started with 1,024", files, at_least=1_025)
    yield Bound("until they were closed", took_s, at_most=CLOSED_S_MAX, unit="s")
    yield Bound("lines in the log about it", lines, at_least=1, at_most=20)
    yield Bound("memory growth", watched.grown_mb, at_most=250, unit="MB")
    yield from healthy(watched)


async def _half_heads(gateway: Victim) -> tuple[Watched, float]:
    before = gateway.descriptors()
    async with gateway.watched() as watched, connected(gateway.port, 4_500) as pairs:
        for _, writer in pairs:
            writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: gateway\r\nx-half: ")
        began_s = time.monotonic()
        for _ in range(1_500):
            if gateway.descriptors() <= before + 50:
                return watched, time.monotonic() - began_s
            await asyncio.sleep(0.2)
        return watched, math.inf


HEALTH = b"GET /healthz HTTP/1.1\r\nhost: gateway\r\n\r\n"
ENDLESS = b"POST /v1/messages HTTP/1.1\r\n" + b"".join(
    b"x-%d: %b\r\n" % (number, b"y" * 8_000) for number in range(120)
)
"""960 KB of a head."""
CLIENTS = 300


@scenario(quick=True)
def heads_without_end_behind_empty_lines(folder: Path) -> Iterator[Bound]:
    """300 clients without a key send a request, empty lines, and 960 KB of a head."""
    yield from _sent_without_key(folder, HEALTH, b"\r\n\r\n" + ENDLESS)


@scenario(quick=True)
def heads_without_end_behind_a_late_body(folder: Path) -> Iterator[Bound]:
    """300 clients with bad keys send a body after its answer, and 960 KB of a head."""
    asking = head("POST", MESSAGES, "bad", "content-length: 5")
    yield from _sent_without_key(folder, asking, b"12345", ENDLESS)


@scenario(quick=True)
def no_requests_behind_empty_lines(folder: Path) -> Iterator[Bound]:
    """300 clients without a key send empty lines and 1 MB that is no request."""
    yield from _sent_without_key(folder, b"\r\n\r\n" + b"x" * 250_000, b"x" * 750_000)


def _sent_without_key(folder: Path, *parts: bytes) -> Iterator[Bound]:
    """By 300 clients at a time, a part after the other, until the gateway closes."""
    with (
        files_at_most(10_000),
        victim(folder, TURNSTREAM_GATEWAY_HEADER_TIMEOUT_S="5") as gateway,
    ):
        watched, closed, took_s = asyncio.run(_send(gateway, parts))
        lines = len(gateway.running.said.splitlines())
    yield Bound("connections closed by the gateway", closed, at_least=CLIENTS)
    yield Bound("until they were closed", took_s, at_most=CLOSED_S_MAX, unit="s")
    yield Bound("memory growth", watched.grown_mb, at_most=150, unit="MB")
    yield Bound("lines in the log", lines, at_least=1, at_most=60)
    yield from healthy(watched)


async def _send(gateway: Victim, parts: tuple[bytes, ...]) -> tuple[Watched, int, float]:
    async with gateway.watched() as watched, connected(gateway.port, CLIENTS) as pairs:
        for part in parts:
            for _, writer in pairs:
                writer.write(part)
            await asyncio.sleep(1)
        began_s = time.monotonic()
        ends = await asyncio.gather(*(_closed(reader) for reader, _ in pairs))
        return watched, sum(ends), time.monotonic() - began_s


async def _closed(reader: asyncio.StreamReader) -> bool:
    """Whether the gateway closes it in time, whatever it says before."""
    try:
        async with asyncio.timeout(60):
            while await reader.read(65_536):
                pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@scenario(quick=True)
def chunks_of_a_byte(folder: Path) -> Iterator[Bound]:
    """40 clients without a key send bodies in chunks of one byte, again and again."""
    with victim(folder) as gateway:
        watched, took_s = asyncio.run(_chunks(gateway))
        lines = gateway.running.said.count('"what": "connections"')
    yield Bound("a call meanwhile", took_s, at_most=5, unit="s")
    yield Bound("lines in the log about it", lines, at_least=1, at_most=20)
    yield Bound("memory growth", watched.grown_mb, at_most=100, unit="MB")
    yield from healthy(watched)


async def _chunks(gateway: Victim) -> tuple[Watched, float]:
    key = await asyncio.to_thread(gateway.open_session)
    chunks = b"1\r\na\r\n" * 40_000

    async def again_and_again() -> None:
        while True:
            with contextlib.suppress(OSError):
                async with connected(gateway.port, 1) as [(_, writer)]:
                    writer.write(head("POST", CHAT, "none", "transfer-encoding: chunked"))
                    while True:
                        writer.write(chunks)
                        await writer.drain()

    async with gateway.watched() as watched:
        attacks = [asyncio.create_task(again_and_again()) for _ in range(40)]
        await asyncio.sleep(3)
        stopwatch = gateway.stopwatch()
        assert await gateway.asked(CHAT, key, _body("Hi")) == 200
        took_s = stopwatch()
        for attack in attacks:
            attack.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)
    return watched, took_s


@scenario(quick=True)
def bodies_of_nothing_but_escapes(folder: Path) -> Iterator[Bound]:
    """32 MB of escapes with half a character behind them, and 24 MB of stop texts."""
    with victim(folder) as gateway:
        watched, statuses = asyncio.run(_escapes(gateway))
    yield Bound("requests refused with 400", statuses.count(400), at_least=len(statuses))
    yield Bound("memory growth", watched.grown_mb, at_most=200, unit="MB")
    yield from healthy(watched)


async def _escapes(gateway: Victim) -> tuple[Watched, list[int]]:
    key = await asyncio.to_thread(gateway.open_session)
    texts = [b"\\\\" * 16_000_000, b"\\ud800" * 5_000_000, b"\\ud83d\\ude00" * 2_500_000]
    bodies = [_body("TEXT").replace(b"TEXT", text + b"\\ud800") for text in texts]
    stops = ["x" * 400_000 + str(number) for number in range(60)]
    bodies.append(json.dumps({**json.loads(_body("Hi")), "stop": stops}).encode())
    async with gateway.watched() as watched:
        return watched, [await gateway.asked(CHAT, key, body) for body in bodies]


@scenario(quick=True)
def many_tools_at_a_time(folder: Path) -> Iterator[Bound]:
    """40 calls of one session at a time, with 6,000 tools each."""
    with victim(folder) as gateway:
        watched, statuses = asyncio.run(_tools(gateway))
    yield Bound("calls refused with 400", statuses.count(400), at_least=40)
    yield Bound("memory growth", watched.grown_mb, at_most=250, unit="MB")
    yield from healthy(watched)


async def _tools(gateway: Victim) -> tuple[Watched, list[int]]:
    key = await asyncio.to_thread(gateway.open_session)
    tools = [
        {"type": "function", "function": {"name": f"f{n}", "parameters": {}}} for n in range(6_000)
    ]
    body = json.dumps({**json.loads(_body("Hi")), "tools": tools}).encode()
    async with gateway.watched() as watched:
        calls = (gateway.asked(CHAT, key, body) for _ in range(40))
        return watched, list(await asyncio.gather(*calls))


@scenario(quick=True)
def bad_keys(folder: Path) -> Iterator[Bound]:
    """579 calls with keys that open nothing."""
    with victim(folder) as gateway:
        before = len(gateway.running.said.splitlines())
        watched, statuses = asyncio.run(_bad_keys(gateway))
        lines = len(gateway.running.said.splitlines()) - before
    yield Bound("answers 401", statuses.count(401), at_least=579)
    yield Bound("lines in the log", lines, at_least=1, at_most=60)
    yield from healthy(watched)


async def _bad_keys(gateway: Victim) -> tuple[Watched, list[int]]:
    async with gateway.watched() as watched:
        return watched, [await gateway.asked(CHAT, f"ts-{n}", b"{}") for n in range(579)]


@scenario(quick=True)
def names_and_numbers_beyond_the_window(folder: Path) -> Iterator[Bound]:
    """A tool, and the arguments of a call, with a name of 30 MB; a tool with 250,000 values."""
    with victim(folder) as gateway:
        watched, statuses = asyncio.run(_beyond(gateway))
    yield Bound("requests refused with 400", statuses.count(400), at_least=len(statuses))
    yield Bound("memory growth", watched.grown_mb, at_most=300, unit="MB")
    yield from healthy(watched)


async def _beyond(gateway: Victim) -> tuple[Watched, list[int]]:
    key = await asyncio.to_thread(gateway.open_session)
    long_name: dict[str, Any] = {"word " * 6_000_000: {}}
    numbers = list(range(10**17, 10**17 + 250_000))
    made = {"name": "f", "arguments": json.dumps(long_name)}
    said = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": made}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "y"}
    asked = json.loads(_body("Hi"))
    bodies = [
        (CHAT, {**asked, "messages": [*asked["messages"], said, result]}),
        (CHAT, {**asked, "tools": [_tool(properties=long_name)]}),
        (CHAT, {**asked, "tools": [_tool(enum=numbers)]}),
        (CHAT, {**asked, "tools": [_tool(enum=[[1]] * 80_000)]}),
        (RESPONSES, {"model": "m", "input": "Hi", "tools": [_flat(_tool(enum=numbers))]}),
    ]
    async with gateway.watched() as watched:
        encoded = [(path, json.dumps(body).encode()) for path, body in bodies]
        return watched, [await gateway.asked(path, key, body) for path, body in encoded]


def _tool(**parameters: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    """As the Responses API has it."""
    return {"type": "function", **tool["function"]}


SCENARIOS = scenarios_in(globals())
