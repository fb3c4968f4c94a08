"""What a partition's table holds after writes that came too late, or from elsewhere."""

import json
import time
from collections import Counter

import msgpack
import msgspec
import pytest

from schemas import codec
from streams.core.refused_turns import RefusedTurn
from streams.core.state import ClosedSession, OpenSession, Rules
from streams.processor import partition_state
from streams.processor.partition_state import PartitionState
from streams.processor.rows import (
    FloorKey,
    Key,
    MarkerKey,
    Row,
    RowKey,
    read_row,
    write_key,
    write_marker,
    write_row,
)
from tests.core.test_large_outcomes import TURN


def loaded(*rows: RowKey) -> PartitionState:
    state = PartitionState(Rules())
    for key in rows:
        state.load(write_key(key), write_row(Row(0, None, "duplicate")))
    return state


def test_a_row_that_a_sleeper_wrote_below_the_floor_goes() -> None:
    state = loaded(RowKey(3, "asleep"), RowKey(30, "open"))
    state.load(write_key(FloorKey(20)), (10).to_bytes(8))
    assert state.take_purged() == [RowKey(3, "asleep")]


def test_without_a_purge_nothing_goes() -> None:
    assert loaded(RowKey(3, "open")).take_purged() == []


def wire(**event: object) -> bytes:
    return codec.to_msgpack(codec.from_json(json.dumps(event).encode()))


FOREIGN: dict[str, tuple[bytes, bytes]] = {
    "no key": (b"", b"x"),
    "another key": (b"zzz", b"x"),
    "a key cut short": (b"r|\0\0", b"x"),
    "a session that is no text": (b"r|" + bytes(8) + b"|\xff", write_row(Row(0, b"x"))),
    "an offset that no log has": (b"r|" + b"\xff" * 8 + b"|s", write_row(Row(0, b"x"))),
    "a row that is no row": (write_key(RowKey(1, "s")), b"\xc1"),
    "a row of other parts": (write_key(RowKey(1, "s")), b"\x93\xa1x\x01\x02"),
    "a marker that is none": (write_key(MarkerKey("s")), b"\xff"),
    "a marker nested deeper than anyone reads": (
        write_key(MarkerKey("s")),
        b'{"session_id":"s","first":0,"closed_at":0,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ),
    "a marker of another session": (
        write_key(MarkerKey("s")),
        b'{"session_id": "t", "first": 0, "closed_at": 1}',
    ),
    "a floor of another size": (write_key(FloorKey(9)), b"9"),
    "a floor above its purge": (write_key(FloorKey(9)), (10).to_bytes(8)),
}


@pytest.mark.parametrize(("key", "value"), FOREIGN.values(), ids=FOREIGN)
def test_an_entry_that_no_processor_wrote_is_refused_and_changes_nothing(
    key: bytes, value: bytes
) -> None:
    state = PartitionState(Rules())
    with pytest.raises(ValueError, match=r"."):
        state.load(key, value)
    assert not any([state.rows, state.markers, state.floors, state.floor])


def test_a_row_that_holds_no_event_counts_as_a_refused_event_of_its_session() -> None:
    counts: Counter[str] = Counter()
    state = PartitionState(Rules(), counts)
    rows = [
        wire(**TURN),
        b"\xc1",
        wire(**TURN | {"session_id": "another"}),
        wire(type="dead_letter", code="oversize", detail="d"),
    ]
    for offset, value in enumerate(rows):
        state.load(write_key(RowKey(offset, "s")), write_row(Row(0, value)))
    session = state.live("s")
    assert isinstance(session, OpenSession)
    assert session.refused == 3
    assert counts["unreadable_rows"] == 3


def closed_state(counts: Counter[str]) -> PartitionState:
    state = PartitionState(Rules(), counts)
    turn = codec.from_msgpack(wire(**TURN))
    ended = codec.from_msgpack(wire(type="session_ended", session_id="s", end_status="completed"))
    state.apply(turn, 0, 0)  # type: ignore[arg-type]  # both are events
    state.keep("s", 0, Row(0, wire(**TURN)))
    reward = codec.from_msgpack(wire(type="reward", session_id="s", reward=1.0))
    state.apply(ended, 1, 0)  # type: ignore[arg-type]
    effects = state.apply(reward, 2, 0)  # type: ignore[arg-type]
    assert effects.marker is not None
    state.close(effects.marker, 0)
    state.forget_row("s", 0)
    return state


def late_reward(state: PartitionState) -> list[str]:
    """The codes of what is refused when one more reward comes."""
    reward = codec.from_msgpack(wire(type="reward", session_id="s", reward=0.5))
    effects = state.apply(reward, 9, 0)  # type: ignore[arg-type]
    return [refusal.code for refusal in effects.refusals]


def test_a_late_row_that_is_no_reward_is_left_out() -> None:
    counts: Counter[str] = Counter()
    state = closed_state(counts)
    state.load(write_key(RowKey(3, "s")), write_row(Row(0, b"\xc1")))
    state.load(write_key(RowKey(4, "s")), write_row(Row(0, wire(**TURN))))
    assert late_reward(state) == []
    assert counts["unreadable_rows"] == 1


def test_a_marker_that_cannot_be_read_whole_still_closes_its_session() -> None:
    counts: Counter[str] = Counter()
    state = closed_state(counts)
    whole = json.loads(write_marker(state.marker("s")))
    assert late_reward(closed_state(Counter())) == []
    key: Key = MarkerKey("s")
    state.load(write_key(key), json.dumps(whole | {"samples": "none"}).encode())
    assert late_reward(state) == ["late_reward"]
    assert counts["unreadable_rows"] == 1


def test_late_rewards_with_payloads_are_held_as_text_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_state, "_LATE_BYTES_MAX", 100_000)
    state = closed_state(Counter())
    close(state, "u", 20)
    payload = {"score": 0.5, "why": [{}] * 20_000}
    for number in range(3):
        reward = wire(type="reward", session_id="s", reward=payload, reward_id=f"r{number}")
        assert state.apply(codec.from_msgpack(reward), 30 + number, 0).row is not None  # type: ignore[arg-type]
        state.keep("s", 30 + number, Row(0, reward))
    live = state.live("s")
    assert isinstance(live, ClosedSession)
    assert all(isinstance(late.payload, msgspec.Raw) for _, late in live.late)
    assert live.late_bytes > 3 * 60_000
    state.live("u")
    assert state.live("s") is not live, "so large a session is not held beside another"


def test_late_rewards_of_two_sessions_in_turn_cost_what_those_of_one_do() -> None:
    state = PartitionState(Rules())
    sessions = ("s", "u")
    for session_id in sessions:
        close(state, session_id, 0)
    began_s = time.process_time()
    for number in range(2_000):
        session_id, offset = sessions[number % 2], number + 2
        reward = wire(type="reward", session_id=session_id, reward=0.5, reward_id=f"{number:0>200}")
        effects = state.apply(codec.from_msgpack(reward), offset, 0)  # type: ignore[arg-type]
        assert len(effects.revisions) == 1
        state.keep(session_id, offset, Row(0, reward))
    # Each read its session's rewards again, and built all they had led to: a minute and a half.
    assert time.process_time() - began_s < 5


def test_closed_sessions_that_are_held_for_late_rewards_are_bounded_and_read_back_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_state, "_LATE_BYTES_MAX", 1)
    state = closed_state(Counter())
    assert late_reward(state) == []
    live = state.live("s")
    assert isinstance(live, ClosedSession)
    reward = wire(type="reward", session_id="s", reward=0.5)
    state.keep("s", 9, Row(0, reward))
    close(state, "u", 10)
    state.live("u")
    again = state.live("s")
    assert isinstance(again, ClosedSession)
    assert again is not live
    assert (again.rewards, again.revised_bytes) == (live.rewards, live.revised_bytes)
    assert again.late == live.late


def close(state: PartitionState, session_id: str, offset: int) -> None:
    turn = wire(**TURN | {"session_id": session_id})
    ended = wire(type="session_ended", session_id=session_id, end_status="completed", reward=1.0)
    state.apply(codec.from_msgpack(turn), offset, 0)  # type: ignore[arg-type]
    effects = state.apply(codec.from_msgpack(ended), offset + 1, 0)  # type: ignore[arg-type]
    assert effects.marker is not None
    state.close(effects.marker, 0)


def test_what_names_an_offset_behind_the_logs_end_was_written_by_no_processor() -> None:
    state = PartitionState(Rules())
    marker = b'{"session_id":"s","first":0,"closed_at":7}'
    for key, value in [
        (RowKey(7, "s"), write_row(Row(0, None, "oversize"))),
        (MarkerKey("s"), marker),
        (FloorKey(7), (7).to_bytes(8)),
    ]:
        with pytest.raises(ValueError, match="7"):
            state.load(write_key(key), value, 0, log_end=7)  # type: ignore[arg-type]
    assert (state.rows, state.markers, state.floor) == ({}, {}, 0)
    state.load(write_key(FloorKey(7)), (7).to_bytes(8), 0, log_end=8)
    assert state.floor == 7


def test_a_turn_over_a_budget_is_the_same_after_a_restart() -> None:
    refused = RefusedTurn("t2", 7, "a", 2)
    row = Row(5, None, "oversize", refused)
    assert read_row(write_row(row)) == row
    state = PartitionState(Rules())
    state.load(write_key(RowKey(0, "s")), write_row(Row(4, wire(**TURN))))
    state.load(write_key(RowKey(1, "s")), write_row(row))
    session = state.live("s")
    assert isinstance(session, OpenSession)
    assert session.refused_turns.named == {"t2": 7}
    assert session.numbering.seen == {"a": {2}}
    assert session.refused == 1


def test_a_row_without_a_refused_turn_is_written_as_before() -> None:
    assert write_row(Row(5, None, "oversize")) == msgpack.packb([5, None, "oversize"])
