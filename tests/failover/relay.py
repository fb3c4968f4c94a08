"""One address before several gateways: a session stays with one of them while that one lives.

    client ──► relay ──► the gateway of its key; if nobody listens there, the next

A connection goes to one gateway and breaks with it, as behind any balancer that keeps sessions
together: by the key in the request's head, which it does not understand otherwise.

Invariant: it repeats nothing and changes nothing; what breaks on one side breaks on the other.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b

HEAD_BYTES_MAX = 65_536
CONNECT_S = 1.0
_KEYS = (
    re.compile(rb"\r\nauthorization:\s*bearer\s+(\S+)", re.IGNORECASE),
    re.compile(rb"\r\nx-api-key:\s*(\S+)", re.IGNORECASE),
)


class Relay:
    """A listener and the gateways behind it."""

    def __init__(self, ports: Sequence[int]) -> None:
        """Nothing is listened to yet."""
        self._ports = ports
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.url = ""
        self.at: dict[str, int] = {}
        """The port where the newest connection of a key went."""

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["Relay"]:
        server = await asyncio.start_server(self._take, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()
            if self._open:
                await asyncio.wait(self._open)

    def cut(self) -> int:
        """Break every connection there is; how many there were."""
        for writer in self._open.values():
            writer.transport.abort()
        return len(self._open)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            await self._pass_on(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open.pop(task, None)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = _key_in(head)
        there, back = await self._connected(key)
        try:
            back.write(head)
            ways = {_copied(reader, back), _copied(there, writer)}
            tasks = [asyncio.create_task(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            back.transport.abort()

    async def _connected(self, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for port in sorted(self._ports, key=lambda port: _rank(key, port)):
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    found = await asyncio.open_connection("127.0.0.1", port)
                self.at[key] = port
                return found
        raise ConnectionRefusedError("no gateway listens")


def _key_in(head: bytes) -> str:
    found = (pattern.search(head) for pattern in _KEYS)
    return next((match[1].decode("latin-1") for match in found if match), "")


def _rank(key: str, port: int) -> bytes:
    return blake2b(f"{key} {port}".encode(), digest_size=8).digest()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(HEAD_BYTES_MAX):
        writer.write(data)
        await writer.drain()
    # The other side has ended: what was copied is still to arrive before this one breaks.
    with contextlib.suppress(OSError):
        await writer.drain()
        writer.write_eof()
