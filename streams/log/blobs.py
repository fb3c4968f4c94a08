"""Large channels beside the log: a folder or any fsspec URL, one blob per content.

    turn  channels {"routing": data 4 MB}      put aside       <blob_url>/ab/ab31...  4 MB
          channels {"routing": blob ab31...}   published
    sample  channel_blobs [tokens 40-90: blob ab31...]      `whole` reads them into their places

A blob's name is the digest of its content. Writing twice is writing once, and a name cannot point
outside of the store, whoever wrote the event.

Invariant: a blob is there before the event that names it; what is read is what was written, or
is reported missing. A missing blob costs the channel, never the sample.
"""

import asyncio
import hashlib
import math
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import fsspec
import msgspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem

from schemas.events import Channel, Turn
from schemas.record import Octets
from schemas.samples import ChannelBlob, Sample
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
        given = turn.channels or {}
        aside = {name: await self.put(channel) for name, channel in given.items()}
        moved = any(aside[name] is not channel for name, channel in given.items())
        return msgspec.structs.replace(turn, channels=aside) if moved else turn

    async def put(self, channel: Channel) -> Channel:
        """The channel, its content in a blob if it is large.

        Raises:
            LogError: the blob could not be written.
        """
        small = channel.data is None or len(channel.data) <= self._threshold_bytes
        return channel if small else await self._stored(channel)

    async def whole(self, sample: Sample) -> Sample:
        """The sample with the rows of its blobs in their places.

        A channel of which a blob cannot be had, or does not fit, is left out and counted in
        `channels_missing`.
        """
        if not sample.channel_blobs:
            return sample
        read = [(part, await self.read(part.channel)) for part in sample.channel_blobs]
        return with_rows(sample, read)

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


def with_rows(sample: Sample, read: Sequence[tuple[ChannelBlob, bytes | MissingBlob]]) -> Sample:
    """The sample with what was read of its blobs."""
    arrays: dict[str, Any] = {}
    lost: list[str] = []
    for part, data in read:
        array = _array_of(sample, arrays, part)
        channel = part.channel
        dtype, rows = np.dtype(channel.dtype), part.end - part.start
        size = math.prod(channel.shape) * dtype.itemsize
        if isinstance(data, MissingBlob) or array is None or len(data) != size:
            lost.append(part.name)
            continue
        values = np.frombuffer(data, dtype).reshape(channel.shape)
        array[part.start : part.end] = values[:rows]
    channels = dict(sample.channels or {})
    for name, array in arrays.items():
        channels[name] = Channel(
            dtype=str(array.dtype),  # type: ignore[arg-type]  # came in as one of the literals
            shape=list(array.shape),
            data=Octets(array.tobytes()),
        )
    kept = {name: channel for name, channel in channels.items() if name not in lost}
    return msgspec.structs.replace(
        sample,
        channels=kept or None,
        channel_blobs=None,
        channels_missing=sample.channels_missing + len(lost),
    )


def _array_of(sample: Sample, arrays: dict[str, Any], part: ChannelBlob) -> Any:
    """The channel over the whole sample; None if these rows are of another kind."""
    dtype = np.dtype(part.channel.dtype)
    shape = (len(sample.tokens), *part.channel.shape[1:])
    if part.name not in arrays:
        given = (sample.channels or {}).get(part.name)
        if given is None or given.data is None:
            arrays[part.name] = np.zeros(shape, dtype)
        else:
            told = np.frombuffer(given.data, np.dtype(given.dtype)).reshape(given.shape)
            arrays[part.name] = told.copy()
    array = arrays[part.name]
    return array if array.shape == shape and array.dtype == dtype else None


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
