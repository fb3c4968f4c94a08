"""HTTP/1.1 as the load generator and the mock engine speak it: little, so that it costs little.

Bodies have a `content-length`, connections are kept, one message at a time: what aiohttp sends
when it is given whole bodies. Anything else is an error.

Invariant: a message is handed on whole and once, however its bytes were divided.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"
ANSWER_S_MAX = 60.0


class Messages(asyncio.Protocol):
    """Takes heads and bodies out of what arrives."""

    def __init__(self) -> None:
        """Nothing has arrived."""
        self.transport: asyncio.Transport | None = None
        self._held = bytearray()
        self._ends: tuple[int, int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's has all of it and is no subclass.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._held += data
        while self._held:
            self._ends = self._ends or self._find_ends()
            if self._ends is None or len(self._held) < self._ends[1]:
                return
            (head_end, end), self._ends = self._ends, None
            head, message = bytes(self._held[:head_end]), bytes(self._held[head_end:end])
            del self._held[:end]
            self.arrived(head, message)

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

    def arrived(self, head: bytes, body: bytes) -> None:
        raise NotImplementedError


class Connection(Messages):
    """A client's connection: one request, its answer, the next."""

    def __init__(self) -> None:
        """Not connected."""
        super().__init__()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    async def exchange(self, parts: Sequence[bytes]) -> tuple[int, bytes]:
        """Status and body of the answer to a request."""
        assert self.transport is not None, "it is connected"
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.writelines(parts)
        return await asyncio.wait_for(self._answer, ANSWER_S_MAX)

    def arrived(self, head: bytes, body: bytes) -> None:
        assert self._answer is not None, "an answer was asked for"
        self._answer.set_result((int(head[9:12]), body))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("the server hung up"))


class Serving(Messages):
    """A server's side of a connection; `answer` is given head and body and gives the body."""

    def __init__(self, answer: Callable[[bytes, bytes], bytes]) -> None:
        """For one connection."""
        super().__init__()
        self._give = answer

    def arrived(self, head: bytes, body: bytes) -> None:
        assert self.transport is not None, "it is connected"
        given = self._give(head, body)
        lines = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:"
        self.transport.writelines([f"{lines} {len(given)}\r\n\r\n".encode(), given])


def request(path: str, headers: dict[str, str], size: int) -> bytes:
    """The head of a request."""
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append(f"content-length: {size}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def header(head: bytes, name: bytes) -> str:
    """A header's value; empty if it is not there."""
    at = head.lower().find(b"\r\n" + name + b":")
    if at < 0:
        return ""
    return head[at + len(name) + 3 : head.index(b"\r\n", at + 2)].strip().decode()
