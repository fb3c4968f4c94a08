"""Every record reads back from both spellings, and each spelling is what the contract says."""

import json
import struct
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.codec import from_json, from_msgpack, to_json, to_msgpack
from schemas.events import Reward, SessionEnded, SessionOpened, Turn
from schemas.record import Record
from schemas.samples import Sample, SampleRevised
from tests.schemas.records import FULL, MINIMAL, name
from tests.schemas.values import floats, ids, text

every_record = pytest.mark.parametrize(
    "record",
    FULL + MINIMAL,
    ids=[f"{name(r)}-full" for r in FULL] + [f"{name(r)}-minimal" for r in MINIMAL],
)
any_value = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def of(kind: type[Record], records: tuple[Record, ...]) -> Record:
    return next(record for record in records if type(record) is kind)


def in_json(record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(to_json(record))
    return fields


def line_of(fields: dict[str, Any]) -> bytes:
    # Without blanks, as we write it ourselves: payloads are compared as text.
    return json.dumps(fields, separators=(",", ":")).encode()


def on_wire(record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = msgpack.unpackb(to_msgpack(record))
    return fields


def turn(**fields: Any) -> Turn:
    basic = of(Turn, MINIMAL)
    assert isinstance(basic, Turn)
    return msgspec.structs.replace(basic, **fields)


# --- every record --------------------------------------------------------------------------------


def test_the_table_has_every_type_of_the_contract() -> None:
    kinds = codec._ALL
    assert [type(record) for record in FULL] == list(kinds)
    assert [type(record) for record in MINIMAL] == list(kinds)


@pytest.mark.parametrize("record", FULL, ids=map(name, FULL))
def test_the_table_sets_every_field_of_the_contract(record: Record) -> None:
    fields = {field.name for field in msgspec.structs.fields(record)} - {"v"}
    assert set(in_json(record)) == fields | {"type"}


@every_record
def test_a_record_reads_back_from_its_json_line(record: Record) -> None:
    assert from_json(to_json(record)) == record


@every_record
def test_a_record_reads_back_from_its_wire_bytes(record: Record) -> None:
    assert from_msgpack(to_msgpack(record)) == record


@every_record
def test_both_spellings_have_the_same_fields(record: Record) -> None:
    assert list(in_json(record)) == list(on_wire(record))


@every_record
def test_a_record_written_again_is_the_same_bytes(record: Record) -> None:
    assert to_json(from_msgpack(to_msgpack(record))) == to_json(record)
    assert to_msgpack(from_json(to_json(record))) == to_msgpack(record)


@every_record
def test_a_json_line_is_one_line(record: Record) -> None:
    assert b"\n" not in to_json(record)
    assert b"\r" not in to_json(record)


@pytest.mark.parametrize("record", MINIMAL, ids=map(name, MINIMAL))
def test_unset_fields_are_absent_from_both_spellings(record: Record) -> None:
    required = {field.name for field in msgspec.structs.fields(record) if field.required}
    # A reward event that says nothing would say nothing: its number is not optional in effect.
    expected = required | {"type"} | ({"reward"} if isinstance(record, Reward) else set())
    assert set(in_json(record)) == expected
    assert set(on_wire(record)) == expected


@every_record
def test_a_record_cannot_be_changed(record: Record) -> None:
    with pytest.raises(AttributeError):
        record.v = 1  # type: ignore[misc]  # that it is refused is the claim


def test_two_equal_records_do_not_differ() -> None:
    # `!=` is an operator of its own: both have to be asked.
    assert turn(prompt_ids=ids(1)) == turn(prompt_ids=ids(1))
    assert (turn(prompt_ids=ids(1)) != turn(prompt_ids=ids(1))) is False


def test_records_with_different_arrays_differ() -> None:
    assert (turn(prompt_ids=ids(1, 2)) == turn(prompt_ids=ids(1, 3))) is False
    assert (turn(prompt_ids=ids(1, 2)) == turn(prompt_ids=ids(1))) is False
    assert (turn(logprobs=floats()) == turn()) is False


def test_a_sample_always_writes_what_a_trainer_reads() -> None:
    always = {
        *("sample_id", "session_id", "index", "count", "tokens", "prompt_len", "loss_mask"),
        *("logprobs", "reward", "session_reward", "policy", "revision"),
    }
    empty = of(Sample, MINIMAL)
    assert always <= set(in_json(empty))
    assert always <= set(on_wire(empty))


# --- how values are spelled ----------------------------------------------------------------------


def test_the_json_line_of_a_turn_is_this_text() -> None:
    record = turn(
        prompt_ids=ids(1, 2),
        output_ids=ids(3, 4),
        logprobs=floats(-0.1, -16777216.0),
        prompt_digest=of(Turn, FULL).prompt_digest,  # type: ignore[attr-defined]
    )
    assert to_json(record) == (
        b'{"type":"turn","session_id":"s","turn_id":"t1","prompt_messages":[{"role":"user"}],'
        b'"prompt_ids":[1,2],"output_ids":[3,4],"logprobs":[-0.1,-16777216.0],'
        b'"prompt_digest":"000102030405060708090a0b0c0d0e0f"}'
    )


def test_the_wire_form_of_a_turn_is_this_map() -> None:
    record = turn(
        prompt_ids=ids(1, 2**31 - 1),
        output_ids=ids(258),
        logprobs=floats(-0.1),
        prompt_digest=of(Turn, FULL).prompt_digest,  # type: ignore[attr-defined]
    )
    assert on_wire(record) == {
        "type": "turn",
        "session_id": "s",
        "turn_id": "t1",
        "prompt_messages": '[{"role":"user"}]',
        "prompt_ids": b"\x01\x00\x00\x00\xff\xff\xff\x7f",
        "output_ids": b"\x02\x01\x00\x00",
        "logprobs": struct.pack("<f", -0.1),
        "prompt_digest": bytes(range(16)),
    }


def test_the_arrays_of_a_sample_are_bytes_on_the_wire_and_lists_in_json() -> None:
    sample = of(Sample, FULL)
    wire, line = on_wire(sample), in_json(sample)
    assert wire["tokens"] == struct.pack("<3i", 1, 2, 3)
    assert wire["logprobs"] == struct.pack("<3f", 0.0, -0.3, 0.0)
    assert (line["tokens"], line["logprobs"]) == ([1, 2, 3], [0.0, -0.3, 0.0])
    assert wire["loss_mask"] == line["loss_mask"] == [[1, 2]]


def test_arrays_that_were_read_are_read_only() -> None:
    record = turn(prompt_ids=ids(1), output_ids=ids(2), logprobs=floats(-1.0))
    for read in (from_json(to_json(record)), from_msgpack(to_msgpack(record))):
        assert isinstance(read, Turn)
        assert read.logprobs is not None
        for array in (read.prompt_ids, read.output_ids, read.logprobs):
            assert not array.flags.writeable


def digits(number: str) -> str:
    mantissa = number.lower().split("e")[0].lstrip("-").replace(".", "")
    return mantissa.strip("0")


@any_value
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(float(np.float32(0.1)))
@example(-0.0)
@example(1e-45)
def test_a_float32_is_the_shortest_text_that_reads_back_to_it(value: float) -> None:
    line = to_json(turn(output_ids=ids(1), logprobs=floats(value)))
    written = line.partition(b'"logprobs":[')[2].partition(b"]")[0].decode()
    shortest = np.format_float_scientific(np.float32(value), unique=True)
    assert digits(written) == digits(shortest)
    assert np.float32(float(written)).tobytes() == np.float32(value).tobytes()


@any_value
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_logprobs_survive_both_spellings_bit_for_bit(values: list[float]) -> None:
    record = turn(output_ids=ids(*range(len(values))), logprobs=floats(*values) if values else None)
    for read in (from_json(to_json(record)), from_msgpack(to_msgpack(record))):
        assert isinstance(read, Turn)
        given_bits = None if record.logprobs is None else record.logprobs.tobytes()
        assert (None if read.logprobs is None else read.logprobs.tobytes()) == given_bits


@any_value
@given(st.lists(st.integers(min_value=0, max_value=2**31 - 1), max_size=20))
def test_ids_survive_both_spellings(values: list[int]) -> None:
    record = turn(prompt_ids=ids(*values))
    assert from_json(to_json(record)) == record
    assert from_msgpack(to_msgpack(record)) == record


def bits(number: float | None) -> bytes:
    assert number is not None
    return struct.pack("<d", number)


@any_value
@given(st.floats(allow_nan=False, allow_infinity=False))
@example(0.1)
@example(5e-324)
@example(-0.0)
def test_a_reward_is_a_float64_in_both_spellings(value: float) -> None:
    event = Reward(session_id="s", reward=value)
    revised = SampleRevised(
        session_id="s", sample_id="a", revision=1, reward=value, session_reward=value
    )
    for read in (from_json(to_json(event)), from_msgpack(to_msgpack(event))):
        assert isinstance(read, Reward)
        assert isinstance(read.reward, float)
        assert bits(read.reward) == bits(value)
    for again in (from_json(to_json(revised)), from_msgpack(to_msgpack(revised))):
        assert isinstance(again, SampleRevised)
        assert bits(again.reward) == bits(again.session_reward) == bits(value)


# --- JSON payloads -------------------------------------------------------------------------------

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**130), max_value=2**130)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@any_value
@given(value=st.dictionaries(st.text(), json_values, max_size=5), ascii_only=st.booleans())
@example(value={"a": 'a"\\/\b\f\n\r\t\x00\x7f\u2028é你\U0001f600', "n": 2**200}, ascii_only=True)
def test_a_message_keeps_its_text_through_both_spellings(
    value: dict[str, Any], ascii_only: bool
) -> None:
    message = json.dumps(value, ensure_ascii=ascii_only)
    line = (
        '{"type":"turn","session_id":"s","turn_id":"t","prompt_ids":[],"output_ids":[],'
        f'"prompt_messages":[{message}],"response_message":{message},"tools":[{message}]}}'
    )
    read = from_msgpack(to_msgpack(from_json(to_json(from_json(line.encode())))))
    assert isinstance(read, Turn)
    assert [bytes(m) for m in read.prompt_messages] == [message.encode()]
    assert bytes(read.response_message) == message.encode()
    assert bytes(read.tools) == f"[{message}]".encode()


@any_value
@given(value=json_values)
@example(value={"answer": 2**200, "spelling": 1e22})
def test_metadata_keeps_its_text_through_both_spellings(value: Any) -> None:
    metadata = json.dumps([value])
    line = f'{{"type":"session_opened","session_id":"s","metadata":{metadata}}}'
    read = from_json(to_json(from_msgpack(to_msgpack(from_json(line.encode())))))
    assert isinstance(read, SessionOpened)
    assert bytes(read.metadata) == metadata.encode()


@any_value
@given(
    extra=st.dictionaries(st.text(), json_values, max_size=5),
    score=st.integers() | st.floats(min_value=-1e300, max_value=1e300),
)
def test_a_reward_payload_keeps_its_values_through_both_spellings(
    extra: dict[str, Any], score: float
) -> None:
    payload = extra | {"score": score}
    line = json.dumps(
        {"type": "session_ended", "session_id": "s", "end_status": "completed", "reward": payload}
    )
    read = from_msgpack(to_msgpack(from_json(line.encode())))
    assert isinstance(read, SessionEnded)
    assert read.reward == payload


def test_blank_lines_inside_a_payload_do_not_break_the_json_line() -> None:
    record = SessionOpened(session_id="s", metadata=text('{\n "a":\r\n "x\\n"\n}'))
    assert len(to_json(record).splitlines()) == 1
    assert in_json(record)["metadata"] == {"a": "x\n"}


# --- one form of what can be said in two ways ----------------------------------------------------


def test_null_means_absent() -> None:
    line = in_json(of(Turn, MINIMAL))
    nulls = {field.name: None for field in msgspec.structs.fields(Turn) if field.name not in line}
    assert from_json(line_of(line | nulls)) == of(Turn, MINIMAL)
    wire = on_wire(of(Turn, MINIMAL))
    assert from_msgpack(msgpack.packb(wire | nulls)) == of(Turn, MINIMAL)


def test_empty_logprobs_are_none_given() -> None:
    line = in_json(turn(output_ids=ids(1, 2))) | {"logprobs": []}
    read = from_json(line_of(line))
    assert read == turn(output_ids=ids(1, 2))
    assert "logprobs" not in in_json(turn(output_ids=ids(1, 2), logprobs=floats()))
    assert "logprobs" not in on_wire(turn(output_ids=ids(1, 2), logprobs=floats()))


@pytest.mark.parametrize("spelling", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("payload", ["%s", '{"score":%s}'], ids=["a number", "a payload"])
def test_a_reward_that_is_no_finite_number_is_none_and_says_so(spelling: str, payload: str) -> None:
    value = payload % spelling
    for line in (
        f'{{"type":"reward","session_id":"s","reward":{value}}}',
        f'{{"type":"session_ended","session_id":"s","end_status":"completed","reward":{value}}}',
        '{"type":"turn","session_id":"s","turn_id":"t","prompt_messages":[{}],"prompt_ids":[],'
        f'"output_ids":[],"reward":{value}}}',
    ):
        read = from_json(line.encode())
        assert isinstance(read, Reward | SessionEnded | Turn)
        assert (read.reward, read.reward_invalid) == (None, True)
        assert in_json(read)["reward_invalid"] is True
        assert "reward" not in in_json(read)
        assert from_msgpack(to_msgpack(read)) == read


DEEP: list[Any] = []
for _ in range(101):
    DEEP = [DEEP]
UNREADABLE = {"nested deep": DEEP, "a time": msgpack.Timestamp(1, 2)}


@pytest.mark.parametrize("kind", ["reward", "session_ended", "turn"])
@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
def test_a_payload_as_a_map_that_has_no_json_text_is_refused(value: object, kind: str) -> None:
    fields = {"type": kind, "session_id": "s", "reward": {"score": 1.0, "x": value}}
    with pytest.raises(BadRecord) as refused:
        from_msgpack(msgpack.packb(fields))
    assert refused.value.code == "invalid_field"
    assert "`reward`" in refused.value.detail


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_no_finite_number_on_the_wire_is_none_and_says_so(value: float) -> None:
    read = from_msgpack(msgpack.packb({"type": "reward", "session_id": "s", "reward": value}))
    assert isinstance(read, Reward)
    assert (read.reward, read.reward_invalid) == (None, True)
