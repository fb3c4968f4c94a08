"""A sweep finds what a look at every session would, and looks only at what is due."""

import json
import random
from collections.abc import Iterator

import pytest

from schemas import codec
from schemas.events import SessionExpired
from streams.core.state import OpenSession, Rules
from streams.processor.partition_state import PartitionState
from streams.processor.rows import MarkerKey, Row, write_key
from streams.processor.sweep import Silence, due_purge, expired_sessions, expiry_cause
from streams.settings import Settings
from tests.processor.busy_sessions import busy_log

SETTINGS = Settings(idle_limit_s=40, reward_grace_s=15, hard_limit_s=90, marker_retention_s=30)


def opened(session_id: str, logged_ms: int) -> Row:
    event = {"type": "session_opened", "session_id": session_id}
    return Row(logged_ms, codec.to_msgpack(codec.from_json(json.dumps(event).encode())))


class CountingState(PartitionState):
    """Counts the sessions that are looked at."""

    looks = 0

    def row_times(self, session_id: str) -> tuple[int, int]:
        self.looks += 1
        return super().row_times(session_id)


def by_looking_at_all(
    state: PartitionState, now_ms: float, caught_up_ms: float
) -> Iterator[SessionExpired]:
    for session_id, rows in state.rows.items():
        session = state.live(session_id)
        if not isinstance(session, OpenSession):
            continue
        newest, first = max(rows), min(rows)
        idle_ms = now_ms - max(rows[newest].logged_ms, caught_up_ms)
        age_ms = now_ms - rows[first].logged_ms
        silence = Silence(age_ms, idle_ms, sealed=session.ended is not None)
        if (cause := expiry_cause(silence, SETTINGS)) is not None:
            yield SessionExpired(session_id=session_id, cause=cause, last_offset=newest)


def apply(state: PartitionState, key: bytes, value: bytes, offset: int, now_ms: int) -> None:
    """One event as both shells apply it."""
    event = codec.from_msgpack(value)
    effects = state.apply(event, offset, now_ms)  # type: ignore[arg-type]  # it is an event
    session_id = key.decode()
    if effects.marker is not None:
        state.close(effects.marker, now_ms)
        for spent in state.spent_rows(session_id):
            state.forget_row(session_id, spent)
    elif effects.row is not None:
        row = Row(now_ms, value if effects.row == "event" else None, effects.row)
        state.keep(session_id, offset, row)


@pytest.mark.parametrize("seed", range(60))
def test_the_sessions_that_expire_are_those_of_a_look_at_all(seed: int) -> None:
    choices = random.Random(seed)
    state, now_ms, caught_up_ms = PartitionState(Rules()), 0, 0
    log = [entry for entry in busy_log(seed, 120, 8) if not entry[1].startswith(b"\xc1")]
    for offset, (key, value) in enumerate(log):
        now_ms += choices.choice((0, 10, 1_000, 20_000))
        if key:
            apply(state, key, value, offset, now_ms)
        if choices.random() < 0.1:
            caught_up_ms = max(caught_up_ms, now_ms - choices.randrange(20_000))
        if choices.random() < 0.4:
            expired = expired_sessions(state, now_ms, caught_up_ms, SETTINGS)
            wanted = list(by_looking_at_all(state, now_ms, caught_up_ms))
            assert {e.session_id: e for e in expired} == {e.session_id: e for e in wanted}
            opens = [min(state.rows[s]) for s in state.rows if state.is_open(s)]
            assert state.first_open_row() == min(opens, default=None)
            assert state.first_row() == min(map(min, state.rows.values()), default=None)


def test_a_sweep_looks_only_at_what_is_due() -> None:
    state = CountingState(Rules())
    for number in range(20_000):
        state.keep(f"s{number}", number, opened(f"s{number}", 100_000 + number))
    assert expired_sessions(state, 100_000, 0, SETTINGS) == []
    state.looks = 0
    for now_ms in range(101_000, 111_000, 1_000):
        assert expired_sessions(state, now_ms, 0, SETTINGS) == []
    assert state.looks == 0
    assert len(expired_sessions(state, 140_101, 0, SETTINGS)) == 101
    assert state.looks < 60_000, "each was looked at once when the shorter limit was over"


def test_closed_sessions_leave_nothing_to_look_at() -> None:
    state = PartitionState(Rules())
    for number in range(20_000):
        session_id = f"s{number}"
        state.keep(session_id, number, opened("open", 0))
        state.forget_row(session_id, number)
    assert len(state._open_rows) < 200
    assert not state.nearer_deadlines


def test_markers_are_due_for_a_purge_below_the_first_open_row() -> None:
    state = PartitionState(Rules())
    for offset in range(10):
        value = json.dumps({"session_id": f"s{offset}", "first": offset, "closed_at": offset})
        state.load(write_key(MarkerKey(f"s{offset}")), value.encode(), offset * 10_000)
    state.keep("open", 4, opened("open", 0))
    for now_ms, floor in ((35_000, 1), (59_000, 3), (1_000_000, 4)):
        purge = due_purge(state, now_ms, SETTINGS)
        assert purge is not None
        assert purge.floor == floor
    state.raise_floor(20, 4)
    assert due_purge(state, 1_000_000, SETTINGS) is None
    state.forget_row("open", 4)
    purge = due_purge(state, 1_000_000, SETTINGS)
    assert purge is not None
    assert purge.floor == 10
