"""Record batches are decompressed up to a limit; one that would grow beyond it is left out whole.

A broker counts bytes after compression, so a few kilobytes can stand for gigabytes. aiokafka
decompresses whatever comes, all batches of an answer one after the other. For consumers
with a `value_limit` it does so within limits:

    a batch over 64 MiB      one entry without a key in its stead, at the batch's last offset,
    or 100,000 records or    whose value is a `Withheld` with the reason
    headers
    a value over the limit   kept as a `Withheld`, its bytes dropped at once
    an answer over 64 MiB    what is left of it is fetched once more

What a header says of the size is not trusted: decompression writes into a buffer of a given size
and fails where that ends. Other consumers of the same process are left as they are.

Readers see a `Withheld` as a value that they cannot decode; the processor makes it a dead letter.

Invariant: of one partition an answer gives no more than 128 MiB before it is asked for again.
"""

import functools
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cramjam
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import PartitionRecords

from streams.log.withheld import Withheld

BATCH_BYTES_MAX = 64 << 20
_BATCH_RECORDS_MAX = 100_000
"""A record of seven bytes takes hundreds as an object; batches of ours have a few thousand."""
_RECORD_BYTES = 500
_BATCH_HEADERS_MAX = 100_000
"""Two bytes of a header take a hundred as an object, and nothing of ours has any."""
_MORE = 0x80
"""Another byte of the same number follows."""
_FEW_BYTES = 1 << 20
"""A batch that holds less is not worth looking for headers."""
_CODECS = ("gzip", "snappy", "lz4", "zstd")
_GUESS_BYTES_MIN = 64 << 10
_GUESSED_RATIO = 6
_CHUNK_BYTES = 1 << 20
_TOO_SMALL = ("whole buffer", "output buffer")
"""What cramjam says when the output has no room left."""


class BatchTooLarge(Exception):  # never leaves this module
    """A batch would decompress to more than it may."""


class ValueLimit:
    """A deserializer of values, which also marks the consumers that are bounded."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` is the limit of one value."""
        self._bytes_max = bytes_max

    def __call__(self, value: bytes | None) -> bytes | None:
        """The value as it is, unless it is too large."""
        if value is None or len(value) <= self._bytes_max or isinstance(value, Withheld):
            return value
        return Withheld.because(f"{len(value)} bytes, the limit is {self._bytes_max}")


@dataclass(slots=True)
class _Stead:
    """The one record that stands for a batch; as aiokafka wants it."""

    offset: int
    timestamp: int
    timestamp_type: int
    value: Withheld
    key: None = None
    checksum: None = None
    headers: tuple[()] = ()


class _Batch:
    """A batch whose records come within the limit."""

    def __init__(self, batch: Any, spend: Callable[[int], None]) -> None:
        self._batch = batch
        self._spend = spend

    def __iter__(self) -> Iterator[Any]:
        batch = self._batch
        count = batch.next_offset - batch.base_offset
        _decompressed.bytes, _decompressed.bounded = 0, True
        try:
            if count > _BATCH_RECORDS_MAX:
                raise BatchTooLarge(f"a record batch of {count} records")
            return iter(batch)
        except BatchTooLarge as error:
            return iter([self._stead(error)])
        finally:
            _decompressed.bounded = False
            self._spend(_decompressed.bytes + count * _RECORD_BYTES)

    def _stead(self, error: BatchTooLarge) -> _Stead:
        batch = self._batch
        first, last = batch.base_offset, batch.next_offset - 1
        detail = (
            f"offsets {first} to {last}: {error}; the batch is left out whole: publish its events "
            "again, in smaller batches"
        )
        withheld = Withheld.because(detail, first)
        return _Stead(last, batch.max_timestamp, batch.timestamp_type, withheld)

    def __next__(self) -> Any:
        return next(self._batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)


class _Batches:
    """The batches of one answer, until together they are too large."""

    def __init__(self, records: Any) -> None:
        self._records = records
        self._left = BATCH_BYTES_MAX

    def has_next(self) -> bool:
        return self._left > 0 and bool(self._records.has_next())

    def next_batch(self) -> Any:
        return _Batch(self._records.next_batch(), self._spend)

    def _spend(self, size: int) -> None:
        self._left -= size


class _BoundedPartitionRecords(PartitionRecords):  # type: ignore[misc]  # aiokafka has no types
    """The records of one partition in an answer."""

    def __init__(self, tp: Any, records: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tp, records, *args, **kwargs)
        if isinstance(self._value_deserializer, ValueLimit):
            self._records = _Batches(records)


class _Decompressed(threading.local):
    """Of the batch that this thread is about to read."""

    bounded = False
    bytes = 0


_decompressed = _Decompressed()


def value_limit(bytes_max: int) -> ValueLimit:
    """What a consumer takes as `value_deserializer` to be bounded."""
    _install()
    return ValueLimit(bytes_max)


def bounded_decode(codec: str, payload: Any) -> bytes:
    """The decompressed bytes.

    Raises:
        BatchTooLarge: they are more than 64 MiB.
    """
    data = bytes(payload)
    if codec == "gzip":
        return _gunzip(data)
    if codec == "snappy":
        return _unsnappy(data)
    return _within_limit(getattr(cramjam, codec).decompress_into, data)


def _within_limit(decompress_into: Callable[[bytes, bytearray], int], data: bytes) -> bytes:
    """Decompress into a buffer that grows up to the limit."""
    size = max(_GUESS_BYTES_MIN, _GUESSED_RATIO * len(data))
    while True:
        size = min(size, BATCH_BYTES_MAX)
        # Its pages take memory only once they are written to.
        output = bytearray(size)
        try:
            written = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if not any(text in str(error) for text in _TOO_SMALL):
                raise
            if size == BATCH_BYTES_MAX:
                raise _too_large(data) from None
            size *= 8
            continue
        return bytes(memoryview(output)[:written])


def _gunzip(data: bytes) -> bytes:
    parts: list[bytes] = []
    size = 0
    while data:
        member = zlib.decompressobj(wbits=31)
        rest = data
        while not member.eof:
            part = member.decompress(rest, _CHUNK_BYTES)
            if not part and not member.eof:
                raise zlib.error("the gzip stream is cut short")
            size += len(part)
            if size > BATCH_BYTES_MAX:
                raise _too_large(data)
            parts.append(part)
            rest = member.unconsumed_tail
        data = member.unused_data
    return b"".join(parts)


def _unsnappy(data: bytes) -> bytes:
    """A block says its size first, and gives no more than that."""
    if not data.startswith(_XERIAL):
        if cramjam.snappy.decompress_raw_len(data) > BATCH_BYTES_MAX:
            raise _too_large(data)
        return bytes(cramjam.snappy.decompress_raw(data))
    parts: list[bytes] = []
    size, at = 0, _XERIAL_BYTES
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4])
        block = data[at + 4 : end]
        size += cramjam.snappy.decompress_raw_len(block)
        if size > BATCH_BYTES_MAX:
            raise _too_large(data)
        parts.append(bytes(cramjam.snappy.decompress_raw(block)))
        at = end
    return b"".join(parts)


_XERIAL = b"\x82SNAPPY\0"
_XERIAL_BYTES = 16


def _too_large(data: bytes) -> BatchTooLarge:
    limit = BATCH_BYTES_MAX >> 20
    return BatchTooLarge(f"a record batch of {len(data)} bytes decompresses to over {limit} MiB")


def _header_count(data: bytes) -> int:
    """How many headers the records of a batch have, up to where they cannot be read."""
    count = at = 0
    try:
        while at < len(data):
            size, at = _varint(data, at)
            end = at + size
            at += 1  # attributes
            _, at = _varint(data, at)  # time
            _, at = _varint(data, at)  # offset
            for _ in ("key", "value"):
                size, at = _varint(data, at)
                at += max(size, 0)
            headers, _ = _varint(data, at)
            count += headers
            at = max(end, at)
    except IndexError:
        pass  # aiokafka says what is wrong
    return count


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number as records have it, and where the next one begins."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & ~_MORE) << shift
        if not byte & _MORE:
            return value >> 1 ^ -(value & 1), at
        shift += 7


def _decode(codec: str, usual: Callable[[Any], bytes], payload: Any) -> bytes:
    if not _decompressed.bounded:
        return usual(payload)
    decoded = bounded_decode(codec, payload)
    if len(decoded) > _FEW_BYTES and (headers := _header_count(decoded)) > _BATCH_HEADERS_MAX:
        raise BatchTooLarge(f"a record batch with {headers} headers of records")
    _decompressed.bytes += len(decoded)
    return decoded


@functools.cache
def _install() -> None:
    """Put the bounds into aiokafka; they concern marked consumers alone."""
    for module in [m for name, m in sys.modules.items() if name.startswith("aiokafka.record.")]:
        for codec in _CODECS:
            usual = getattr(module, f"{codec}_decode", None)
            if usual is not None:
                setattr(module, f"{codec}_decode", functools.partial(_decode, codec, usual))
    fetcher.PartitionRecords = _BoundedPartitionRecords
