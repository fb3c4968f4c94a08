"""What a foreign producer wrote does not make what is written about it too large."""

import dataclasses
import json
from collections import Counter

import msgpack
import msgspec
import pytest

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import Purge, SessionEnded, SessionExpired
from schemas.traces import TraceTurn
from streams.core.effects import Effects
from streams.core.partition import Partition
from streams.core.state import Rules
from streams.errors import BadEvent
from streams.log.homes import refuse_elsewhere
from streams.log.interface import Position
from streams.log.partitioner import partition_of
from streams.processor.arrivals import read_event, row_of
from streams.processor.partition_state import PartitionState
from streams.processor.records import letters_of, outcome_of, trace_of
from streams.settings import Settings
from tests.core.test_large_outcomes import TURN

SETTINGS = Settings()


def test_an_entry_over_the_limit_is_oversize_whatever_it_holds() -> None:
    event = read_event(b"s", b"x" * 100, bytes_max=100)
    assert isinstance(event, BadRecord)
    assert (event.code, event.session_id) == ("oversize", "s")


PADDING = {
    "a field of a later version": {"later": b"x" * 100_000},
    "blank space between messages": {
        "prompt_messages": "[" + " " * 100_000 + '{"role":"user","content":"u"}]'
    },
}


@pytest.mark.parametrize("padding", PADDING.values(), ids=PADDING)
def test_a_row_has_no_bytes_that_no_budget_counts(padding: dict[str, object]) -> None:
    fields = msgpack.unpackb(codec.to_msgpack(codec.from_json(json.dumps(TURN).encode())))
    state, value = PartitionState(Rules()), msgpack.packb(fields | padding)
    event = read_event(b"s", value)
    row = row_of(state.apply(event, 1, 0), event, 0, value)
    assert row is not None
    assert row.value is not None
    assert len(row.value) < 1_000
    assert codec.from_msgpack(row.value) == event


def test_events_without_a_budget_of_their_own_are_kept_short() -> None:
    long = {"session_id": "s", "later": b"x" * 100_000}
    opened = msgpack.packb({"type": "session_opened"} | long)
    undelivered = msgpack.packb({"type": "turn_undelivered", "turn_id": "t"} | long)
    state = PartitionState(Rules())
    for offset, value in enumerate((opened, undelivered)):
        event = read_event(b"s", value)
        row = row_of(state.apply(event, offset, 0), event, 0, value)
        assert row is not None
        assert row.value is not None
        assert len(row.value) < 100
        assert codec.from_msgpack(row.value) == event


def test_a_row_is_the_bytes_of_its_event_where_they_are_counted() -> None:
    prompt = list(range(10_000))
    value = codec.to_msgpack(codec.from_json(json.dumps(TURN | {"prompt_ids": prompt}).encode()))
    event = read_event(b"s", value)
    row = row_of(PartitionState(Rules()).apply(event, 1, 0), event, 0, value)
    assert row is not None
    assert row.value is value


def test_a_key_that_is_no_session_id_is_cut() -> None:
    event = read_event(b"\xff" * 3_000_000, b"\xc1")
    assert isinstance(event, BadRecord)
    assert len(event.session_id or "") <= 200


def test_a_letter_fits_whatever_its_event_says() -> None:
    refusal = BadEvent("invalid_field", "d" * 10**7, session_id="s" * 10**7, turn_id="t" * 10**7)
    payload = b"x" * SETTINGS.message_bytes_max
    place = Position(SETTINGS.turns_topic, 0, 0)
    (letter,) = letters_of(Effects(refusals=(refusal,)), place, payload, SETTINGS)
    assert letter.key is not None
    assert letter.value is not None
    assert len(letter.key) + len(letter.value) <= SETTINGS.record_bytes_max


def test_a_trace_that_does_not_fit_is_left_out_and_counted_and_the_outcome_stays() -> None:
    counts: Counter[str] = Counter()
    partition = Partition(rules=Rules(trace_share=1.0))
    effects = partition.feed(SessionEnded(session_id="s", end_status="error"), 0)
    assert effects.trace is not None
    turn = TraceTurn(turn_id="t", finish_reason="f" * SETTINGS.record_bytes_max)
    large = msgspec.structs.replace(effects.trace, turns=[turn])
    assert list(trace_of(dataclasses.replace(effects, trace=large), SETTINGS, counts)) == []
    (trace,) = trace_of(effects, SETTINGS, counts)
    assert trace.topic == SETTINGS.traces_topic
    assert [record.topic for record in outcome_of(effects, SETTINGS)] == [SETTINGS.samples_topic]
    assert counts == {"traces_too_large": 1}


def test_an_event_on_another_partition_than_its_sessions_is_refused() -> None:
    event = SessionEnded(session_id="s", end_status="error")
    home = partition_of(b"s", SETTINGS.partitions)
    for partition in range(SETTINGS.partitions):
        judged = refuse_elsewhere(event, partition, SETTINGS)
        if partition == home:
            assert judged is event
            continue
        assert isinstance(judged, BadRecord)
        assert (judged.code, judged.session_id) == ("wrong_partition", "s")
        assert f"on partition {partition} of " in judged.detail
        assert f"belongs on partition {home} of {SETTINGS.partitions} " in judged.detail
        assert "partitioner=murmur2_random" in judged.detail


def test_events_of_the_processor_itself_are_taken_on_any_partition() -> None:
    for event in (Purge(floor=1), SessionExpired(session_id="s", cause="idle")):
        for partition in range(SETTINGS.partitions):
            assert refuse_elsewhere(event, partition, SETTINGS) is event


def test_a_log_from_before_is_accepted_as_it_is_if_the_settings_say_so() -> None:
    accepting = dataclasses.replace(SETTINGS, foreign_partitions="accept")
    event = SessionEnded(session_id="s", end_status="error")
    for partition in range(SETTINGS.partitions):
        assert refuse_elsewhere(event, partition, accepting) is event
