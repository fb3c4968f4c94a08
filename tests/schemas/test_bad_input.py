"""What cannot be used: each kind of bad input by its code, with session and turn if readable."""

import json
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from schemas.codec import BadRecord, from_json, from_msgpack, to_json, to_msgpack
from schemas.record import Record
from tests.schemas.records import FULL

Json = dict[str, Any]

TURN: Json = {
    "type": "turn",
    "session_id": "s",
    "turn_id": "t1",
    "prompt_messages": [{"role": "user", "content": "u"}],
    "prompt_ids": [1, 2],
    "output_ids": [3, 4],
}
CHANNEL: Json = {"dtype": "float32", "shape": [2], "data": "0000803f0000003f"}


def turn(**fields: Any) -> Json:
    return TURN | fields


def without(name: str) -> Json:
    return {key: value for key, value in TURN.items() if key != name}


def channel(**fields: Any) -> Json:
    return turn(channels={"c": CHANNEL | fields})


def event(kind: str, **fields: Any) -> Json:
    return {"type": kind, "session_id": "s"} | fields


def nested(depth: int) -> bytes:
    head = b'{"type":"turn","session_id":"s","turn_id":"t1","metadata":'
    return head + b"[" * depth + b"]" * depth + b"}"


def ids_of(data: Json | bytes) -> tuple[Any, Any]:
    """The session and turn that a person can read in the input."""
    if isinstance(data, bytes):
        return ("s" if b'"session_id":"s"' in data else None, "t1" if b'"t1"' in data else None)
    return data.get("session_id"), data.get("turn_id")


# Lines that are no JSON object, or not text.
UNDECODABLE: dict[str, bytes] = {
    "nothing": b"",
    "half a line": b'{"type":"turn","session_id":"s","turn_id":"t1","prompt_m',
    "two objects on a line": b'{"type":"purge","floor":1}{"type":"purge","floor":1}',
    "a list": b'[{"type":"purge","floor":1}]',
    "a string": b'"turn"',
    "null": b"null",
    "a number": b"17",
    "a trailing comma": b'{"type":"purge","floor":1,}',
    "single quotes": b"{'type':'purge','floor':1}",
    "a comment": b'{"type":"purge","floor":1} // why',
    "a raw control character in a string": b'{"type":"reward","session_id":"s","reward_id":"\x01"}',
    "an unknown escape": b'{"type":"reward","session_id":"s","reward_id":"\\x"}',
    "bytes that are no UTF-8": b'{"type":"reward","session_id":"s","reward_id":"\xff"}',
    "bytes that are no UTF-8, in a payload": (
        b'{"type":"session_opened","session_id":"s","metadata":{"a":"\xff"}}'
    ),
    "a surrogate as UTF-8 bytes, in a payload": (
        b'{"type":"session_opened","session_id":"s","metadata":{"a":"\xed\xa0\x80"}}'
    ),
    "a lone surrogate in a field": (
        b'{"type":"reward","session_id":"s","reward":1,"reward_id":"\\ud800"}'
    ),
    "a lone surrogate in a message": (
        b'{"type":"turn","session_id":"s","turn_id":"t1","prompt_messages":[{"content":"\\udc00"}]'
        b',"prompt_ids":[],"output_ids":[]}'
    ),
    "a lone surrogate in metadata": (
        b'{"type":"session_opened","session_id":"s","metadata":["\\ud83d"]}'
    ),
    "a lone surrogate in a reward": (
        b'{"type":"reward","session_id":"s","reward":{"score":1,"why":"\\ud83d"}}'
    ),
    "a lone surrogate as a key": b'{"type":"reward","session_id":"s","reward":1,"\\ud800":1}',
    "UTF-16": '{"type":"purge","floor":1}'.encode("utf-16"),
    "UTF-32": '{"type":"purge","floor":1}'.encode("utf-32"),
    "MessagePack": to_msgpack(FULL[0]),
    "101 nested brackets": nested(101),
    "5,000 nested brackets": nested(5_000),
    "200,000 nested brackets": nested(200_000),
    "5,000 brackets that never close": b"[" * 5_000,
    "5,000 objects that never close": b'{"a":' * 5_000,
}


@pytest.mark.parametrize("data", UNDECODABLE.values(), ids=UNDECODABLE)
def test_a_line_that_is_no_json_object_is_undecodable(data: bytes) -> None:
    with pytest.raises(BadRecord) as refused:
        from_json(data)
    assert refused.value.code == "undecodable"
    assert (refused.value.session_id, refused.value.turn_id) == ids_of(data)


def test_brackets_in_a_string_nest_nothing() -> None:
    for content in ("[" * 5_000, '\\"[' * 5_000, "\\\\" + "{" * 5_000, '"' + "[" * 5_000):
        data = json.dumps(turn(response_message={"role": "assistant", "content": content}))
        assert to_json(from_json(data.encode()))


# Events that decode but cannot be true; what the refusal must mention is the third column.
INVALID: dict[str, tuple[Json, str, str]] = {
    **{
        f"a turn without {name}": (without(name), "invalid_field", name)
        for name in ("session_id", "turn_id", "prompt_messages", "prompt_ids", "output_ids")
    },
    "required null": (turn(prompt_ids=None), "invalid_field", "prompt_ids"),
    "an end without a status": (event("session_ended"), "invalid_field", "end_status"),
    "an end with an unknown status": (
        event("session_ended", end_status="failed"),
        "invalid_field",
        "end_status",
    ),
    "a purge without a floor": ({"type": "purge"}, "invalid_field", "floor"),
    "a reward without a reward": (event("reward"), "invalid_field", "reward"),
    "a payload without a score": (
        event("reward", reward={"points": 1}),
        "invalid_field",
        "score",
    ),
    "a score that is text": (event("reward", reward={"score": "1"}), "invalid_field", "score"),
    "a score that is true": (event("reward", reward={"score": True}), "invalid_field", "score"),
    "a score that is null": (event("reward", reward={"score": None}), "invalid_field", "score"),
    "a reward that is true": (event("reward", reward=True), "invalid_field", "reward"),
    "a reward that is a list": (event("reward", reward=[1.0]), "invalid_field", "reward"),
    "empty messages": (turn(prompt_messages=[]), "invalid_field", "prompt_messages"),
    "messages that are an object": (turn(prompt_messages={}), "invalid_field", "prompt_messages"),
    "messages that are text": (turn(prompt_messages="u"), "invalid_field", "prompt_messages"),
    "logprobs shorter than the output": (turn(logprobs=[-1.0]), "length_mismatch", "1 logprobs"),
    "logprobs longer than the output": (turn(logprobs=[-1.0] * 3), "length_mismatch", "3 logprobs"),
    "logprobs without output": (
        turn(output_ids=[], logprobs=[-1.0]),
        "length_mismatch",
        "1 logprobs",
    ),
    "a logprob that is infinite as float32": (
        turn(logprobs=[-1.0, 1e39]),
        "invalid_field",
        "logprobs",
    ),
    "a logprob that is text": (turn(logprobs=[-1.0, "0"]), "invalid_field", "logprobs"),
    "a logprob that is null": (turn(logprobs=[-1.0, None]), "invalid_field", "logprobs"),
    "a negative id": (turn(prompt_ids=[1, -1]), "invalid_field", "prompt_ids"),
    "a negative output id": (turn(output_ids=[-1]), "invalid_field", "output_ids"),
    "an id over 2^31-1": (turn(prompt_ids=[2**31]), "invalid_field", "prompt_ids"),
    "an id over 2^64": (turn(output_ids=[2**70]), "invalid_field", "output_ids"),
    "an id that is a float": (turn(prompt_ids=[1.0]), "invalid_field", "prompt_ids"),
    "an id that is true": (turn(prompt_ids=[True]), "invalid_field", "prompt_ids"),
    "an id that is text": (turn(prompt_ids=["1"]), "invalid_field", "prompt_ids"),
    "ids that are text": (turn(prompt_ids="12"), "invalid_field", "prompt_ids"),
    "ids that are a list of lists": (turn(prompt_ids=[[1]]), "invalid_field", "prompt_ids"),
    "an empty session id": (turn(session_id=""), "invalid_field", "session_id"),
    "a session id with a blank": (turn(session_id="a b"), "invalid_field", "session_id"),
    "a session id with a newline": (turn(session_id="a\n"), "invalid_field", "session_id"),
    "a session id with a slash": (turn(session_id="a/b"), "invalid_field", "session_id"),
    "a session id with an umlaut": (turn(session_id="ä"), "invalid_field", "session_id"),
    "a session id of 201": (turn(session_id="a" * 201), "invalid_field", "session_id"),
    "an empty turn id": (turn(turn_id=""), "invalid_field", "turn_id"),
    "a seq of 0": (turn(source="a", seq=0), "invalid_field", "seq"),
    "a seq that is a float": (turn(source="a", seq=1.5), "invalid_field", "seq"),
    "a group of 0": (turn(group_size=0), "invalid_field", "group_size"),
    "an unknown split": (turn(split="test"), "invalid_field", "split"),
    "an unknown request class": (turn(request_class="side"), "invalid_field", "request_class"),
    "a flag that is a number": (turn(trainable=1), "invalid_field", "trainable"),
    "a temperature that is text": (
        turn(sampling={"temperature": "hot"}),
        "invalid_field",
        "temperature",
    ),
    "versions that cover less": (turn(weight_versions=[[1, 1]]), "length_mismatch", "cover 1"),
    "versions that cover more": (turn(weight_versions=[[1, 3]]), "length_mismatch", "cover 3"),
    "a run outside the output": (turn(untrained_runs=[[0, 3, "x"]]), "invalid_field", "[0, 3)"),
    "a join outside the output": (turn(continued_at=[[3, True]]), "invalid_field", "continued_at"),
    "a run that ends before it starts": (
        turn(untrained_runs=[[2, 1, "x"]]),
        "invalid_field",
        "[2, 1)",
    ),
    "kept messages without a base": (turn(kept_messages=1), "invalid_field", "base_turn_id"),
    "kept ids without a base": (turn(kept_ids=1), "invalid_field", "base_turn_id"),
    "a digest that is no hex": (turn(prompt_digest="zz"), "invalid_field", "prompt_digest"),
    "a digest of 8 bytes": (turn(prompt_digest="00" * 8), "invalid_field", "prompt_digest"),
    "a channel of another length": (channel(shape=[3]), "length_mismatch", "`c`"),
    "a channel with fewer bytes": (channel(data="00"), "length_mismatch", "`c`"),
    "a channel without a shape": (channel(shape=[]), "length_mismatch", "`c`"),
    "a channel with NaN": (channel(data="0000c07f0000003f"), "invalid_field", "`c`"),
    "a channel with infinity": (channel(data="0000807f0000003f"), "invalid_field", "`c`"),
    "a channel of an unknown dtype": (channel(dtype="object"), "invalid_field", "dtype"),
    "a channel without data or blob": (channel(data=None), "invalid_field", "`c`"),
    "an expiry with an unknown cause": (
        event("session_expired", cause="bored"),
        "invalid_field",
        "cause",
    ),
    "a negative floor": ({"type": "purge", "floor": -1}, "invalid_field", "floor"),
}


def refusal(read: Callable[[bytes], Record], data: bytes) -> BadRecord:
    with pytest.raises(BadRecord) as refused:
        read(data)
    return refused.value


@pytest.mark.parametrize(("fields", "code", "mentions"), INVALID.values(), ids=INVALID)
def test_an_event_that_cannot_be_true_is_refused_by_code(
    fields: Json, code: str, mentions: str
) -> None:
    error = refusal(from_json, json.dumps(fields).encode())
    assert error.code == code
    assert mentions in error.detail
    named = (error.session_id, error.turn_id)
    # An empty name names nothing; everything else that a person can read is given back.
    assert tuple(name or None for name in named) == tuple(name or None for name in ids_of(fields))
    assert str(error).startswith(code)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    "field", ["logprobs", "prompt_ids", "started_ms", "response_message", "sampling"]
)
def test_a_number_that_is_none_is_refused_outside_a_reward(field: str, value: str) -> None:
    shapes = {"started_ms": value, "response_message": {"n": value}, "sampling": {"top_p": value}}
    text = json.dumps(turn(**{field: shapes.get(field, [value, value])}))
    error = refusal(from_json, text.replace(f'"{value}"', value).encode())
    assert (error.code, error.session_id, error.turn_id) == ("invalid_field", "s", "t1")
    assert field in error.detail


# --- the same on the wire ------------------------------------------------------------------------

WIRE_TURN: Json = TURN | {
    "prompt_messages": '[{"role":"user"}]',
    "prompt_ids": struct.pack("<2i", 1, 2),
    "output_ids": struct.pack("<2i", 3, 4),
}
WIRE_OPENED: Json = {"type": "session_opened", "session_id": "s"}


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


WIRE_UNDECODABLE: dict[str, bytes] = {
    "nothing": b"",
    "an unused byte": b"\xc1",
    "half a map": to_msgpack(FULL[1])[:40],
    "a map and a byte": to_msgpack(FULL[0]) + b"\x00",
    "a list": msgpack.packb([1]),
    "a number": b"\x07",
    "JSON": b'{"type":"purge"}',
    "numbers as keys": msgpack.packb({1: "turn"}),
    "a text that is no UTF-8": b"\x81\xa4type\xa1\xff",
    "5,000 nested lists": b"\x91" * 5_000,
    "a length that is not there": b"\xdf\xff\xff\xff\xff",
}


@pytest.mark.parametrize("data", WIRE_UNDECODABLE.values(), ids=WIRE_UNDECODABLE)
def test_wire_bytes_that_are_no_map_are_undecodable(data: bytes) -> None:
    assert refusal(from_msgpack, data).code == "undecodable"


WIRE_INVALID: dict[str, tuple[Json, str, str]] = {
    **{
        f"a turn without {name}": (
            {key: value for key, value in WIRE_TURN.items() if key != name},
            "invalid_field",
            name,
        )
        for name in ("session_id", "turn_id", "prompt_messages", "prompt_ids", "output_ids")
    },
    "ids as a list": (WIRE_TURN | {"prompt_ids": [1, 2]}, "invalid_field", "prompt_ids"),
    "ids as text": (WIRE_TURN | {"prompt_ids": "abcd"}, "invalid_field", "prompt_ids"),
    "ids of 7 bytes": (WIRE_TURN | {"prompt_ids": bytes(7)}, "invalid_field", "prompt_ids"),
    "a negative id": (
        WIRE_TURN | {"prompt_ids": struct.pack("<i", -1)},
        "invalid_field",
        "prompt_ids",
    ),
    "an id over 2^31-1": (
        WIRE_TURN | {"output_ids": struct.pack("<I", 2**31)},
        "invalid_field",
        "output_ids",
    ),
    "logprobs too short": (WIRE_TURN | {"logprobs": floats(-1.0)}, "length_mismatch", "1 logprobs"),
    "a NaN logprob": (
        WIRE_TURN | {"logprobs": floats(-1.0, float("nan"))},
        "invalid_field",
        "logprobs",
    ),
    "an infinite logprob": (
        WIRE_TURN | {"logprobs": floats(float("-inf"), -1.0)},
        "invalid_field",
        "logprobs",
    ),
    "logprobs of 7 bytes": (WIRE_TURN | {"logprobs": bytes(7)}, "invalid_field", "logprobs"),
    "messages as a list": (WIRE_TURN | {"prompt_messages": [{}]}, "invalid_field", "messages"),
    "messages that are no JSON": (
        WIRE_TURN | {"prompt_messages": "[{"},
        "invalid_field",
        "",
    ),
    "empty messages": (WIRE_TURN | {"prompt_messages": "[]"}, "invalid_field", "messages"),
    "messages nested 5,000 deep": (
        WIRE_TURN | {"prompt_messages": "[" * 5_000 + "]" * 5_000},
        "invalid_field",
        "messages",
    ),
    "a response that is no JSON": (
        WIRE_TURN | {"response_message": '{"a":'},
        "invalid_field",
        "response_message",
    ),
    "metadata that is no JSON": (WIRE_OPENED | {"metadata": '{"a":'}, "invalid_field", "metadata"),
    "metadata that is no text": (
        WIRE_OPENED | {"metadata": b'{"a":"\xff"}'},
        "invalid_field",
        "metadata",
    ),
    "metadata with NaN": (WIRE_OPENED | {"metadata": '{"a":NaN}'}, "invalid_field", "metadata"),
    "metadata as a map": (WIRE_OPENED | {"metadata": {"a": 1}}, "invalid_field", "metadata"),
    "metadata with a lone surrogate": (
        WIRE_OPENED | {"metadata": '{"a":"\\ud800"}'},
        "invalid_field",
        "metadata",
    ),
    "two payloads in one": (WIRE_OPENED | {"metadata": "{}{}"}, "invalid_field", "metadata"),
    "a digest of 8 bytes": (WIRE_TURN | {"prompt_digest": bytes(8)}, "invalid_field", "digest"),
    "a digest as hex": (WIRE_TURN | {"prompt_digest": "00" * 16}, "invalid_field", "digest"),
    "a reward that is no JSON": (event("reward", reward="{"), "invalid_field", ""),
}


@pytest.mark.parametrize(("fields", "code", "mentions"), WIRE_INVALID.values(), ids=WIRE_INVALID)
def test_an_event_that_cannot_be_true_is_refused_by_code_on_the_wire(
    fields: Json, code: str, mentions: str
) -> None:
    error = refusal(from_msgpack, msgpack.packb(fields))
    assert error.code == code
    assert (error.session_id, error.turn_id) == ids_of(fields)
    assert mentions in error.detail
