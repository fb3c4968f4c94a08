"""HTTP/1.1 as the load generator and the mock engine speak it: little, so that it costs little.

Requests have a `content-length`, streamed answers come in chunks, connections are kept, one
exchange at a time: what aiohttp, httpx and uvicorn send here. Anything else is an error.

Invariant: a request is handed over whole and once, an answer when all of it is there, however
the bytes were divided.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
"""JSON has no carriage return, so this ends an answer and stands nowhere else in it."""
FIRST_TOKEN = re.compile(
    rb'"(?:content|reasoning|reasoning_content|text|thinking)": ?"[^"]|"(?:output|token)_ids":\[\d'
)
"""Text in an event of an agent's API, or ids in one of an engine."""
_TOKEN_BYTES_MAX = 64
"""More than what the pattern above matches."""
ANSWER_S_MAX = 120.0
SESSION_HEADER = "x-session"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came."""

    status: int
    body: bytes
    """With the sizes of its chunks, if it came in chunks."""
    first_token_s: float | None
    """When the first bytes with a token in them came, by `time.perf_counter`."""


class Connection(asyncio.Protocol):
    """A client's connection: one request, its answer, the next."""

    def __init__(self) -> None:
        """Not connected."""
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Reply] | None = None
        self._held = bytearray()
        self._head_end = 0
        self._end: int | None = None
        """Of the body; None: it comes in chunks."""
        self._searched = 0
        self._first_token_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's has all of it and is no subclass.
        self._transport = cast("asyncio.Transport", transport)

    async def exchange(self, parts: Sequence[bytes]) -> Reply:
        """The answer to a request."""
        assert self._transport is not None, "it is connected"
        self._held.clear()
        self._head_end, self._searched, self._first_token_s = 0, 0, None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.writelines(parts)
        async with asyncio.timeout(ANSWER_S_MAX):
            return await self._answer

    def data_received(self, data: bytes) -> None:
        self._held += data
        if not self._head_end and not self._read_head():
            return
        if self._first_token_s is None:
            if FIRST_TOKEN.search(self._held, self._searched):
                self._first_token_s = time.perf_counter()
            self._searched = max(self._head_end, len(self._held) - _TOKEN_BYTES_MAX)
        whole = (
            self._held.endswith(_LAST_CHUNK) if self._end is None else len(self._held) >= self._end
        )
        if whole:
            assert self._answer is not None, "an answer was asked for"
            body = bytes(self._held[self._head_end :])
            self._answer.set_result(Reply(int(self._held[9:12]), body, self._first_token_s))

    def _read_head(self) -> bool:
        at = self._held.find(_END)
        if at < 0:
            return False
        self._head_end = self._searched = at + len(_END)
        length = _LENGTH.search(self._held, 0, self._head_end)
        if length is None and not _CHUNKED.search(self._held, 0, self._head_end):
            raise ValueError(f"neither chunks nor content-length: {bytes(self._held[:200])!r}")
        self._end = self._head_end + int(length[1]) if length else None
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("the server hung up"))


class Serving(asyncio.Protocol):
    """A server's side of a connection; `answer` is given its transport, head and body."""

    def __init__(self, answer: Callable[[asyncio.Transport, bytes, bytes], None]) -> None:
        """For one connection."""
        self._give = answer
        self._held = bytearray()
        self._ends: tuple[int, int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._held += data
        while self._held:
            self._ends = self._ends or self._find_ends()
            if self._ends is None or len(self._held) < self._ends[1]:
                return
            (head_end, end), self._ends = self._ends, None
            head, body = bytes(self._held[:head_end]), bytes(self._held[head_end:end])
            del self._held[:end]
            self._give(self._transport, head, body)

    def _find_ends(self) -> tuple[int, int] | None:
        """Where head and body end."""
        at = self._held.find(_END)
        if at < 0:
            return None
        head_end = at + len(_END)
        length = _LENGTH.search(self._held, 0, head_end)
        if length is None and not self._held.startswith(b"GET "):
            raise ValueError(f"no content-length: {bytes(self._held[:200])!r}")
        return head_end, head_end + (int(length[1]) if length else 0)


def request(path: str, headers: dict[str, str], size: int) -> bytes:
    """The head of a request."""
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append(f"content-length: {size}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(body: bytes) -> bytes:
    """An answer in one piece."""
    lines = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:"
    return f"{lines} {len(body)}\r\n\r\n".encode() + body


def header(head: bytes, name: bytes) -> str:
    """A header's value; empty if it is not there."""
    at = head.lower().find(b"\r\n" + name + b":")
    if at < 0:
        return ""
    return head[at + len(name) + 3 : head.index(b"\r\n", at + 2)].strip().decode()
