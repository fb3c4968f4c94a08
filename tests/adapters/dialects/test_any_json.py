"""Whatever a client sends, it gets a call or a refusal, and a call can be recorded."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.adapters.dialects import common
from streams.adapters.dialects.calls import Call, CallRefused
from tests.adapters.dialects import (
    test_anthropic_any_json,
    test_openai_chat_any_json,
    test_openai_responses_any_json,
)
from tests.adapters.dialects.any_json import ANYTHING, Reader, any_body, places

READERS = {
    "anthropic": test_anthropic_any_json.READER,
    "openai_chat": test_openai_chat_any_json.READER,
    "openai_responses": test_openai_responses_any_json.READER,
}
EACH = pytest.mark.parametrize("reader", READERS.values(), ids=READERS)


@EACH
@any_body
@given(value=ANYTHING)
def test_any_json_gives_a_call_or_a_refusal(reader: Reader, value: Any) -> None:
    reader.check(json.dumps(value).encode())


@EACH
@any_body
@given(data=st.data())
def test_a_request_that_is_right_is_a_call_unless_a_number_has_no_value(
    reader: Reader, data: st.DataObject
) -> None:
    body = json.dumps(data.draw(reader.requests)).encode()
    reader.check(body)
    if b"NaN" not in body and b"Infinity" not in body:
        assert isinstance(reader.outcome(body), Call)


@EACH
@any_body
@given(data=st.data())
def test_anything_in_any_place_gives_a_call_or_a_refusal(
    reader: Reader, data: st.DataObject
) -> None:
    value = data.draw(reader.requests)
    holder, key = data.draw(st.sampled_from(places(value)))
    holder[key] = data.draw(ANYTHING)
    reader.check(json.dumps(value).encode())


@EACH
@any_body
@given(body=st.binary(max_size=200))
def test_any_bytes_give_a_call_or_a_refusal(reader: Reader, body: bytes) -> None:
    reader.check(body)


@EACH
@any_body
@given(data=st.data())
def test_a_damaged_request_gives_a_call_or_a_refusal(reader: Reader, data: st.DataObject) -> None:
    body = bytearray(reader.whole)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    reader.check(bytes(body))


SPELLINGS = (r"\\", r"\ud83d", r"\uDE00", r"\uD83D", r"\u0041", "ud83d", "d83d", "a", r"\n", r"\"")


@given(st.lists(st.sampled_from(SPELLINGS), max_size=9).map("".join))
def test_only_halves_of_a_character_are_replaced_however_they_are_spelled(text: str) -> None:
    read = common.read_body(msgspec.json.Decoder(str), f'"{text}"'.encode())
    assert read == re.sub("[\ud800-\udfff]", "\ufffd", json.loads(f'"{text}"'))


@pytest.mark.parametrize("escape", [rb"\\", rb"\ud800", rb"\ud83d\ude00"], ids=repr)
def test_a_text_of_nothing_but_escapes_is_not_mended(escape: bytes) -> None:
    text = escape * (common.MENDED_ESCAPES_MAX + 1) + rb"\ud800"
    with pytest.raises(CallRefused, match="not JSON"):
        common.read_body(msgspec.json.Decoder(str), b'"' + text + b'"')


def test_a_text_with_a_zero_byte_is_not_made_into_json() -> None:
    with pytest.raises(CallRefused, match="not JSON"):
        common.read_body(msgspec.json.Decoder(str), b'"\0\0 \\ud800"')


def test_texts_that_end_an_answer_are_bounded() -> None:
    most = "x" * common.STOP_CHARACTERS_MAX
    assert common.read_stops([most], "stop") == (most,)
    with pytest.raises(CallRefused, match="characters, 16384 are allowed"):
        common.read_stops([most, "y"], "stop")
