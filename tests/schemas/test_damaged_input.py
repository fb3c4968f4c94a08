"""Random damage: a reader refuses with `BadRecord` or returns a record that is whole.

Whole means: it can be written in both spellings, and reads back from them as itself. Nothing
but `BadRecord` is ever raised.
"""

import json
from collections.abc import Callable
from typing import Any, get_args

import msgpack
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.codec import BadRecord, from_json, from_msgpack, to_json, to_msgpack
from schemas.dead_letters import Code
from schemas.record import Record
from tests.schemas.records import FULL, MINIMAL

CODES = frozenset(get_args(Code))
LINES = tuple(to_json(record) for record in FULL + MINIMAL)
WIRE = tuple(to_msgpack(record) for record in FULL + MINIMAL)
some_damage = settings(max_examples=600, deadline=None, derandomize=True, database=None)

# Pieces that mean something to a reader, so that damage gets past its first look.
PIECES = (
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\u", b"\\ud800", b"\xff", b"\xc3\xa9"),
    *(b"null", b"true", b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 30, b"\n", b" ", b"\x00"),
    *(b'"reward":', b'"v":2,', b'"type":"turn",', b'"session_id":"x",', b'"logprobs":[],'),
)


@st.composite
def damaged(draw: st.DrawFn, originals: tuple[bytes, ...]) -> bytes:
    """A valid record with a few cuts, copies and insertions."""
    data = draw(st.sampled_from(originals))
    for _ in range(draw(st.integers(min_value=1, max_value=4))):
        start = draw(st.integers(min_value=0, max_value=len(data)))
        end = min(len(data), start + draw(st.integers(min_value=0, max_value=12)))
        inserted = draw(
            st.sampled_from(PIECES) | st.binary(max_size=4) | st.just(data[start:end] * 2)
        )
        data = data[:start] + inserted + data[end:]
    return data


def refused_or_whole(read: Callable[[bytes], Record], data: bytes) -> None:
    try:
        record = read(data)
    except BadRecord as error:
        refused = error
    else:
        check_whole(record)
        return
    assert refused.code in CODES
    assert refused.detail


def check_whole(record: Record) -> None:
    line, wire = to_json(record), to_msgpack(record)
    assert b"\n" not in line
    # Compared as values: blanks around a payload belong to nobody.
    assert json.loads(to_json(from_json(line))) == json.loads(line)
    assert to_msgpack(from_msgpack(wire)) == wire


@some_damage
@given(damaged(LINES))
@example(b'{"type":"session_opened","session_id":"s","metadata":{"a":"\xff"}}')
@example(b'{"type":"session_opened","session_id":"s","metadata":"\xed\xa0\x80"}')
@example(b'{"type":"turn","session_id":"s","turn_id":"t","prompt_messages":[1e999],"prompt_ids":[')
def test_a_damaged_json_line_is_refused_or_whole(data: bytes) -> None:
    refused_or_whole(from_json, data)


@some_damage
@given(damaged(WIRE))
@example(msgpack.packb({"type": "session_opened", "session_id": "s", "metadata": ""}))
@example(msgpack.packb({"type": "session_opened", "session_id": "s", "metadata": "null"}))
@example(msgpack.packb({"type": "session_opened", "session_id": "s", "metadata": "{} {}"}))
def test_damaged_wire_bytes_are_refused_or_whole(data: bytes) -> None:
    refused_or_whole(from_msgpack, data)


@some_damage
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_whole(data: bytes) -> None:
    refused_or_whole(from_json, data)
    refused_or_whole(from_msgpack, data)


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@some_damage
@given(data=st.data(), line=st.sampled_from(LINES))
def test_a_field_with_any_other_value_is_refused_or_whole(data: st.DataObject, line: bytes) -> None:
    fields: dict[str, Any] = json.loads(line)
    name = data.draw(st.sampled_from(sorted(fields)))
    value = data.draw(any_json)
    refused_or_whole(from_json, json.dumps(fields | {name: value}).encode())


@some_damage
@given(data=st.data(), wire=st.sampled_from(WIRE))
def test_a_wire_field_with_any_other_value_is_refused_or_whole(
    data: st.DataObject, wire: bytes
) -> None:
    fields: dict[str, Any] = msgpack.unpackb(wire)
    name = data.draw(st.sampled_from(sorted(fields)))
    in_64_bits = st.integers(min_value=-(2**63), max_value=2**64 - 1)
    value = data.draw(
        st.none() | st.booleans() | in_64_bits | st.floats() | st.text() | st.binary()
    )
    refused_or_whole(from_msgpack, msgpack.packb(fields | {name: value}))
