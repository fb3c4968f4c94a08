"""A request's body: in time, within the bounds, unpacked.

    too long by its head           413 at once
    not there in time              408
    more than may be under way     429 for the session, 503 for the gateway (see `under_way`)
    packed as nobody here unpacks  415
    more than may be, unpacked     413
    too much JSON                  413, before it is decoded

The server does not unpack: it would do so as bytes arrive, 30 MB from 30 KB, for requests that
never end. Here a whole body is unpacked, into no more than may be, one of a session at a time.

Invariant: no body costs more memory than `gateway_body_bytes_max`, a second copy while it is
joined, and what counts as under way.
"""

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np
from aiohttp import web

from streams.adapters.dialects.calls import CallRefused
from streams.adapters.gateway.access.under_way import RequestLimits, RequestUse
from streams.adapters.gateway.api.json_size import has_more_objects, values_at_most
from streams.settings import Settings

_THREADS = 2
"""At a time, each with a whole body; more would only wait for the processor."""
_COUNTED_IN_THREAD = 1_048_576
_TOO_LARGE_FOR_BUFFER = "failed to write whole buffer"
"""What cramjam says of an output that is too small, and of nothing else."""


_MEMBERS_MAX = 16
"""Of one gzip body: each copies what follows it, and clients send one."""


class _Oversize(Exception):
    """It unpacks to more than may be."""


class Bodies:
    """Reads the bodies of one gateway's requests."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is read yet."""
        self._settings = settings
        self.limits = RequestLimits(settings)
        self._threads = asyncio.Semaphore(_THREADS)

    async def read(self, request: web.Request, use: RequestUse) -> bytes:
        """The body as it was before it was packed.

        Raises:
            CallRefused: it is too much, too slow, or not what its headers say.
        """
        unpack = _unpacker(request.headers.get("content-encoding", ""))
        if (request.content_length or 0) > self._settings.gateway_body_bytes_max:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._settings.gateway_body_timeout_s):
                body = await self._arrived(request, use)
        except TimeoutError:
            seconds = self._settings.gateway_body_timeout_s
            raise CallRefused(408, f"the body did not come in {seconds:g} s") from None
        except web.RequestPayloadError:
            raise CallRefused(400, "the body does not end as its headers say") from None
        if unpack is None and len(body) <= _COUNTED_IN_THREAD:
            self._check_json(body)
            return body
        # A thread does not stop for a client that hangs up, so what it holds counts until it ends.
        working = asyncio.create_task(self._in_thread(body, unpack, use))
        use.hold_until_done(working)
        try:
            return await asyncio.shield(working)
        finally:
            # What it raises leads to this frame; led this back to it, all that its frames hold,
            # tens of megabytes, would stay until the garbage collector comes by.
            del working

    async def _arrived(self, request: web.Request, use: RequestUse) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while chunk := await request.content.readany():
            size += len(chunk)
            if size > self._settings.gateway_body_bytes_max:
                raise self._too_large()
            use.take(len(chunk))
            chunks.append(chunk)
        return b"".join(chunks)

    async def _in_thread(self, body: bytes, unpack: "Unpack | None", use: RequestUse) -> bytes:
        """What takes longer than streams should wait: one body of a session at a time."""
        most = self._settings.gateway_body_bytes_max
        async with use.in_thread, self._threads:
            try:
                if unpack is not None:
                    packed, body = body, await asyncio.to_thread(unpack, body, most)
                    use.take(len(body) - len(packed))
                await asyncio.to_thread(self._check_json, body)
            except _Oversize:
                raise self._too_large() from None
            except (zlib.error, cramjam.DecompressionError):
                detail = "the body is not encoded as its headers say"
                raise CallRefused(400, detail) from None
        return body

    def _check_json(self, body: bytes) -> None:
        values, objects = (
            self._settings.gateway_json_values_max,
            self._settings.gateway_json_objects_max,
        )
        if values_at_most(body) > values:
            raise CallRefused(413, f"the body has more than {values} JSON values")
        if has_more_objects(body, objects):
            detail = f"the body has more than {objects} messages, parts and other objects"
            raise CallRefused(413, detail)

    def _too_large(self) -> CallRefused:
        most = self._settings.gateway_body_bytes_max
        return CallRefused(413, f"the body is too large: at most {most} bytes, unpacked")


Unpack = Callable[[bytes, int], bytes]


def _unpacker(encoding: str) -> Unpack | None:
    """What undoes a content encoding; None for one that does nothing.

    Raises:
        CallRefused: nothing here does.
    """
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return None
    if name not in _UNPACKERS:
        known = ", ".join(sorted(_UNPACKERS))
        detail = f"`content-encoding: {name:.40}` is not supported: send one of {known}, or none"
        raise CallRefused(415, detail, param="content-encoding")
    return _UNPACKERS[name]


def _gzip(packed: bytes, most: int) -> bytes:
    """One or more members, one after the other."""
    found: list[bytes] = []
    while packed or not found:
        if len(found) == _MEMBERS_MAX:
            raise zlib.error("too many members")
        one = zlib.decompressobj(16 + zlib.MAX_WBITS)
        found.append(_inflated(one, packed, most - sum(map(len, found))))
        packed = one.unused_data
    return b"".join(found)  # of one, it is that one


def _deflate(packed: bytes, most: int) -> bytes:
    """With the head that belongs to it, or without, as some clients send it."""
    try:
        return _inflated(zlib.decompressobj(), packed, most)
    except zlib.error:
        return _inflated(zlib.decompressobj(-zlib.MAX_WBITS), packed, most)


def _inflated(one: "zlib._Decompress", packed: bytes, most: int) -> bytes:
    body = one.decompress(packed, most + 1)
    if len(body) > most:
        raise _Oversize
    if not one.eof:
        raise zlib.error("it does not end")
    return body


def _brotli(packed: bytes, most: int) -> bytes:
    return _into_buffer(cramjam.brotli.decompress_into, packed, most)


def _zstd(packed: bytes, most: int) -> bytes:
    return _into_buffer(cramjam.zstd.decompress_into, packed, most)


def _into_buffer(decompress_into: Callable[[Any, Any], int], packed: bytes, most: int) -> bytes:
    # The system gives pages when they are written, so a small body costs what it is.
    room = np.empty(most, np.uint8)
    try:
        return room[: decompress_into(packed, room)].tobytes()
    except cramjam.DecompressionError as error:
        if _TOO_LARGE_FOR_BUFFER in str(error):
            raise _Oversize from None
        raise


_UNPACKERS: dict[str, Unpack] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
