"""Large channels beside the log: a folder or any fsspec URL, one blob per content.

    turn  channels {"routing": data 4 MB}      put aside       <blob_url>/ab/ab31...  4 MB
          channels {"routing": blob ab31...}   published

A blob's name is the digest of its content. Writing twice is writing once, and a name cannot point
outside of the store, whoever wrote the event.

Invariant: a blob is there before the event that names it; what is read is what was written, or
is reported missing. A missing blob costs the channel, never the sample.
"""

import asyncio
import hashlib
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import fsspec
import msgspec
from fsspec.implementations.local import LocalFileSystem

from schemas.events import Channel, Turn
from schemas.record import Octets
from streams.errors import BadSetting, LogAway, LogError
from streams.settings import Settings

DIGEST_BYTES = 16
_NAME = re.compile(rf"[0-9a-f]{{{DIGEST_BYTES * 2}}}")

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class MissingBlob:
    """Why a channel's content cannot be had."""

    name: str
    why: Literal["absent", "damaged", "unreachable"]
    detail: str


class Blobs:
    """The store that `blob_url` names."""

    def __init__(self, settings: Settings) -> None:
        """Find the file system; nothing is written yet."""
        if settings.blob_url is None:
            raise BadSetting("TURNSTREAM_BLOB_URL: not set, so there is nowhere to keep blobs")
        self._url = settings.blob_url
        self._threshold_bytes = settings.blob_threshold_bytes
        self._timeout_s = settings.blob_timeout_s
        try:
            self._files, self._root = fsspec.core.url_to_fs(settings.blob_url)
        except (ValueError, ImportError) as error:
            raise BadSetting(f"TURNSTREAM_BLOB_URL={settings.blob_url}: {error}") from None

    async def put_aside(self, turn: Turn) -> Turn:
        """The turn with its large channels as blobs; publish this one instead.

        Raises:
            LogError: a blob could not be written.
        """
        large = {
            name: channel
            for name, channel in (turn.channels or {}).items()
            if channel.data is not None and len(channel.data) > self._threshold_bytes
        }
        if not large:
            return turn
        aside = {name: await self._stored(channel) for name, channel in large.items()}
        return msgspec.structs.replace(turn, channels=(turn.channels or {}) | aside)

    async def read(self, channel: Channel) -> bytes | MissingBlob:
        """A channel's content, from the event or from its blob."""
        if channel.data is not None:
            return bytes(channel.data)
        name = channel.blob or ""
        if not _NAME.fullmatch(name):
            return MissingBlob(name, "absent", "not the name of a blob")
        try:
            data = await self._bounded(lambda: bytes(self._files.cat_file(self._path(name))))
        except FileNotFoundError:
            return MissingBlob(name, "absent", f"not in {self._url}")
        except TimeoutError:
            return MissingBlob(name, "unreachable", f"no answer in {self._timeout_s:g} s")
        except Exception as error:  # every store has errors of its own
            return MissingBlob(name, "unreachable", f"{error!r:.300}")
        return _checked(channel, name, data)

    async def _stored(self, channel: Channel) -> Channel:
        data = bytes(channel.data or b"")
        digest = _digest(data)
        name = digest.hex()
        try:
            await self._bounded(lambda: self._write(self._path(name), data))
        except TimeoutError:
            detail = f"blob {name} was not written to {self._url} in {self._timeout_s:g} s"
            raise LogAway(detail) from None
        except Exception as error:  # every store has errors of its own
            raise LogError(f"blob {name} was not written to {self._url}: {error!r:.300}") from error
        return msgspec.structs.replace(
            channel, data=None, blob=name, digest=Octets(digest), length=len(data)
        )

    def _write(self, path: str, data: bytes) -> None:
        if self._files.exists(path) and self._files.size(path) == len(data):
            return
        if not isinstance(self._files, LocalFileSystem):
            self._files.pipe_file(path, data)  # object stores show a whole object or none
            return
        part = f"{path}.{uuid.uuid4().hex}.part"
        self._files.makedirs(self._files._parent(path), exist_ok=True)
        self._files.pipe_file(part, data)
        self._files.mv(part, path)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name[:2]}/{name}"

    async def _bounded(self, work: Callable[[], Result]) -> Result:
        return await asyncio.wait_for(asyncio.to_thread(work), self._timeout_s)


def _checked(channel: Channel, name: str, data: bytes) -> bytes | MissingBlob:
    if channel.length is not None and len(data) != channel.length:
        detail = f"{len(data)} bytes, the event says {channel.length}"
        return MissingBlob(name, "damaged", detail)
    digest = _digest(data)
    if digest.hex() != name or (channel.digest is not None and digest != channel.digest):
        return MissingBlob(name, "damaged", f"the content has digest {digest.hex()}")
    return data


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def blobs_from(settings: Settings) -> Blobs | None:
    """The store, if one is set."""
    return Blobs(settings) if settings.blob_url is not None else None
