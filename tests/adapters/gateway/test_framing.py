"""Where bodies end, however they arrive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.adapters.gateway.api.framing import (
    CHUNKS_MAX,
    LINE_BYTES_MAX,
    BadChunk,
    Chunked,
    Frame,
    Sized,
    TooManyChunks,
)

BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
PIECES = st.lists(st.integers(1, 30), min_size=1, max_size=60)
BEHIND = st.binary(max_size=30)


def fed(frame: Frame, sent: bytes, pieces: list[int]) -> tuple[bytes, bytes]:
    """What the HTTP server gets of what arrives in such pieces, and what is left."""
    received, passed, at = bytearray(), b"", 0
    for size in [*pieces, len(sent)]:
        received += sent[at : at + size]
        at += size
        passed += frame.cut(received)
    return passed, bytes(received)


def plain(chunks: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"


@given(st.binary(max_size=100), BEHIND, PIECES)
def test_a_body_of_a_length_ends_there(body: bytes, behind: bytes, pieces: list[int]) -> None:
    frame = Sized(len(body))
    assert fed(frame, body + behind, pieces) == (body, behind)
    assert frame.ended


@given(
    BODIES, BEHIND, PIECES, st.sampled_from([b"", b";", b";a=b", b" ; a=\x00"]), st.integers(0, 9)
)
def test_a_body_in_chunks_ends_behind_its_fields_and_is_passed_on_without_them(
    chunks: list[bytes], behind: bytes, pieces: list[int], extension: bytes, fields: int
) -> None:
    sent = b"".join(b"%04X%b\r\n%b\r\n" % (len(each), extension, each) for each in chunks)
    sent += b"00" + extension + b"\r\n" + b"x-more: y\r\n" * fields + b"\r\n"
    frame = Chunked()
    assert fed(frame, sent + behind, pieces) == (plain(chunks), behind)
    assert frame.ended


@given(BODIES, PIECES)
def test_a_body_in_chunks_does_not_end_before_its_last_byte(
    chunks: list[bytes], pieces: list[int]
) -> None:
    frame = Chunked()
    fed(frame, plain(chunks)[:-1], pieces)
    assert not frame.ended


BAD = {
    "no size": b"\r\n",
    "a size that is none": b"zz\r\n",
    "a negative size": b"-1\r\n",
    "a size with a prefix": b"0x1\r\na\r\n",
    "a size beyond all": b"1" + b"0" * 15 + b"\r\n",
    "more data than the size": b"1\r\nab\r\n",
    "a line without end": b"1;" + b"x" * LINE_BYTES_MAX,
    "a bare line end": b"1\na\n0\n\n\r\n",
}


@pytest.mark.parametrize("sent", BAD.values(), ids=BAD)
@pytest.mark.parametrize("pieces", [[], [1] * 20_000])
def test_what_is_no_chunk_is_refused(sent: bytes, pieces: list[int]) -> None:
    with pytest.raises(BadChunk):
        fed(Chunked(), sent, pieces)


@pytest.mark.parametrize("line", [b"1\r\na\r\n", b"0\r\n" + b"x: y\r\n" * 2_000])
def test_small_chunks_and_fields_are_counted(line: bytes) -> None:
    with pytest.raises(TooManyChunks):
        fed(Chunked(), line * (2 * CHUNKS_MAX), [])


@given(st.binary(max_size=200), PIECES)
def test_no_more_than_a_line_is_left_of_a_body(sent: bytes, pieces: list[int]) -> None:
    frame, received, at = Chunked(), bytearray(), 0
    for size in pieces:
        received += b"fff\r\n" * (at == 0) + sent[at : at + size]
        at += size
        frame.cut(received)
        assert not received or len(received) < LINE_BYTES_MAX
