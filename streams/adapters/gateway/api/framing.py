"""Where a request's body ends, by the length its head names or by the chunks it comes in.

    size [;extension] CRLF   data CRLF   ...   0 CRLF   [field CRLF ...]   CRLF

What is cut off here is given to the HTTP server. Of chunks it gets sizes and data alone: no
extensions, which it would have to parse, and no fields, which it would have to keep.

Invariant: a frame takes nothing that follows its body, and leaves at most `LINE_BYTES_MAX` of it.
Pure: no clock, no I/O.
"""

import re
from enum import Enum
from typing import Protocol

CHUNKS_MAX, BYTES_A_CHUNK = 1_024, 256
"""Chunks of one request's body: so many, and one more for so many bytes. The server takes 7 us for
each, 0.3 s for 256 KB of the smallest, which come in one go, and it parses them before any key."""
LINE_BYTES_MAX = 8_192
"""Of a chunk's size, or a field behind the last chunk."""
_LINE_END = b"\r\n"
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")


class BadChunk(Exception):
    """The body is not framed as bodies in chunks are."""


class TooManyChunks(Exception):
    """Chunks, or fields behind them, beyond what a body of this length may have."""


class Frame(Protocol):
    """What knows where one body ends."""

    @property
    def ended(self) -> bool:
        """Whether all of the body was cut off."""

    def cut(self, received: bytearray) -> bytes:
        """Remove what belongs to the body; return what the HTTP server is given for it."""


class Sized:
    """A body of so many bytes."""

    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        """0: there is none."""
        self._left = size

    @property
    def ended(self) -> bool:
        """Whether all of the body was cut off."""
        return self._left == 0

    def cut(self, received: bytearray) -> bytes:
        """Remove what belongs to the body and return it."""
        part = bytes(received[: self._left])
        del received[: len(part)]
        self._left -= len(part)
        return part


class _Line(Enum):
    SIZE = "of the next chunk"
    END = "the empty one behind a chunk's data"
    FIELD = "behind the last chunk"


class Chunked:
    """A body in chunks."""

    __slots__ = ("_chunks_left", "_data_left", "_next", "ended")

    def __init__(self) -> None:
        """Nothing has come."""
        self.ended = False
        self._next = _Line.SIZE
        self._data_left = 0
        self._chunks_left: float = CHUNKS_MAX

    def cut(self, received: bytearray) -> bytes:
        """Remove what belongs to the body; return it without extensions and fields.

        Raises:
            BadChunk: a line is not what it has to be.
            TooManyChunks: there are more than there may be.
        """
        parts: list[bytes] = []
        at = 0
        while not self.ended and at < len(received):
            if self._data_left:
                parts.append(bytes(received[at : at + self._data_left]))
                at += self._took_data(len(parts[-1]))
                continue
            end = received.find(_LINE_END, at, at + LINE_BYTES_MAX)
            if end < 0:
                break
            parts.append(self._took_line(bytes(received[at:end])))
            at = end + len(_LINE_END)
        del received[:at]
        if not self.ended and len(received) >= LINE_BYTES_MAX:
            raise BadChunk("a line does not end")
        return b"".join(parts)

    def _took_data(self, count: int) -> int:
        self._data_left -= count
        self._chunks_left += count / BYTES_A_CHUNK
        return count

    def _took_line(self, line: bytes) -> bytes:
        """What the HTTP server is given for it."""
        if self._next is _Line.END:
            if line:
                raise BadChunk("data goes on behind its chunk's size")
            self._next = _Line.SIZE
            return _LINE_END
        if self._next is _Line.FIELD:
            self.ended = not line
            self._count()
            return _LINE_END if self.ended else b""
        return self._took_size(line)

    def _took_size(self, line: bytes) -> bytes:
        found = _SIZE.fullmatch(line)
        if found is None:
            raise BadChunk("a chunk without a size")
        self._count()
        self._data_left = int(found[1], 16)
        self._next = _Line.END if self._data_left else _Line.FIELD
        return b"%x\r\n" % self._data_left

    def _count(self) -> None:
        self._chunks_left -= 1
        if self._chunks_left < 0:
            raise TooManyChunks
