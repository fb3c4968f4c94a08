"""Small direct tests of what the worked cases do not reach: the life of a session.

Each answers an error planted by `make mutants`. An event's position in the log is its place in
the list, from 1.
"""

import json
import math
from collections.abc import Sequence

import pytest

from schemas.codec import to_json
from streams.core.effects import NOTHING, Effects
from streams.core.partition import Partition
from streams.core.policy import PROFILES
from streams.core.session import Row, finish, restore
from streams.core.state import OpenSession, Rules
from tests.core.golden import decoded
from tests.core.notation import Json, drawn_ledger, drawn_samples, ended, session, turn
from tests.harness import Linearized, linearized

T1, T2, END = session(turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "done"))
OPEN_END = ended(reward=None)
NO_BASE = T2 | {"turn_id": "lost", "base_turn_id": "nowhere", "kept_messages": 1, "kept_ids": 1}


def reward(value: float, name: str | None = None, **fields: object) -> Json:
    named = {} if name is None else {"reward_id": name}
    return {"type": "reward", "session_id": "s", "reward": value} | named | fields


def expired(last_offset: int) -> Json:
    return {
        "type": "session_expired",
        "session_id": "s",
        "cause": "idle",
        "last_offset": last_offset,
    }


def codes(run: Linearized) -> list[str]:
    return [letter["code"] for letter in run.dead_letters]


def fed(partition: Partition, events: Sequence[Json], first: int = 1) -> list[Effects]:
    return [
        partition.feed(decoded(event), position)
        for position, event in enumerate(events, start=first)
    ]


def lines(effects: Sequence[Effects]) -> list[Json]:
    records = [record for effect in effects for record in effect.records()]
    return [json.loads(to_json(record)) for record in records]


# --- turns told again, or too late ---------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_ids": [1, *T1["prompt_ids"][1:]]},
        {"output_ids": [1, *T1["output_ids"][1:]]},
        {"logprobs": [-1.0, -2.0, -4.0]},
        {"logprobs": None},
        {"response_message": {"role": "assistant", "content": "ok "}},
        {"response_message": None},
    ],
    ids=str,
)
def test_one_turn_id_with_two_contents_is_refused_whatever_differs(change: Json) -> None:
    first = T1 | {"logprobs": [-1.0, -2.0, -3.0]}
    run = linearized([first, first | change, END])
    assert codes(run) == ["forked_turn_id"]
    assert run.closed[0]["refused"] == 1


def test_after_a_pending_end_a_known_turn_is_a_duplicate_and_a_new_one_late() -> None:
    run = linearized([T1, OPEN_END, T1, T2, reward(1.0)])
    assert codes(run) == ["late_turn"]
    assert run.closed[0]["duplicates"] == 1
    assert drawn_ledger(run.closed[0]) == "t1 root 3/3"


def test_after_the_close_a_turn_that_trained_is_a_redelivery() -> None:
    assert codes(linearized([T1, T2, END, T2])) == []
    assert codes(linearized([T1, END, T2])) == ["late_turn"]


def test_a_log_read_again_from_its_start_changes_nothing() -> None:
    merged = T2 | {"prompt_messages": [*T1["prompt_messages"], {"role": "assistant"}]}
    events = [T1, merged, reward(0.5, final=False), OPEN_END, reward(1.0)]
    for known in range(1, len(events) + 1):
        partition = Partition()
        fed(partition, events[:known])
        assert fed(partition, events[:known]) == [NOTHING] * known


def test_a_refused_turn_leaves_nothing_of_its_identity() -> None:
    run = linearized([T1, NO_BASE | {"group_id": "g"}, T2 | {"group_id": "h"}, END])
    assert codes(run) == ["unknown_base"]
    assert run.closed[0]["group_id"] == "h"


def test_a_reward_begins_no_session() -> None:
    run = linearized([reward(1.0), expired(1)])
    assert codes(run) == ["unknown_session", "unknown_session"]
    assert run.closed == []


def test_a_policy_of_the_command_line_beats_the_sessions_own() -> None:
    opening = {"type": "session_opened", "session_id": "s", "policy": "lossless"}
    for forced, label in ((None, "lossless"), (PROFILES["slime"], "slime")):
        closed = lines(fed(Partition(forced_policy=forced), [opening, T1, END]))[-1]
        assert closed["policy"] == label


# --- expiry and the newest row -------------------------------------------------------------------

STATUS_AFTER_EXPIRY = {
    "the newest turn": ([T1, T2, expired(2)], "expired"),
    "an older turn": ([T1, T2, expired(1)], "completed"),
    "a turn before a duplicate": ([T1, T1, expired(1)], "completed"),
    "the duplicate": ([T1, T1, expired(2)], "expired"),
    "a turn before a refused event": ([T1, NO_BASE, expired(1)], "completed"),
    "the refused event": ([T1, NO_BASE, expired(2)], "expired"),
    "a turn before an unreadable event": ([T1, T2 | {"logprobs": [-1]}, expired(1)], "completed"),
    "the unreadable event": ([T1, T2 | {"logprobs": [-1]}, expired(2)], "expired"),
    "the newest turn, after a stale expiry": ([T1, expired(0), expired(1)], "expired"),
}


@pytest.mark.parametrize(
    ("events", "status"), STATUS_AFTER_EXPIRY.values(), ids=STATUS_AFTER_EXPIRY
)
def test_an_expiry_counts_only_if_it_saw_the_newest_row(events: list[Json], status: str) -> None:
    run = linearized(events)
    assert [closed["end_status"] for closed in run.closed] == [status]


def test_refused_and_unreadable_events_are_counted() -> None:
    run = linearized([T1, NO_BASE, T2 | {"logprobs": [-1]}, END])
    assert codes(run) == ["unknown_base", "length_mismatch"]
    assert run.closed[0]["refused"] == 2


def test_counts_and_the_newest_row_are_restored() -> None:
    rows = [
        Row(1, decoded(T1)),
        Row(2, None, "duplicate"),
        Row(3, None, "unknown_base"),
        Row(4, None, "ignored"),
    ]
    state = restore(rows, Rules(), "s")
    assert isinstance(state, OpenSession)
    assert state.newest == 4
    outcome = finish(state, Rules()).outcome
    assert outcome is not None
    assert (outcome.duplicates, outcome.refused, outcome.ignored) == (1, 1, 1)


# --- rewards and the close -----------------------------------------------------------------------

REWARD_AT_THE_CLOSE = {
    "an end waits for its reward": ([T1, OPEN_END, reward(0.75)], 0.75),
    "a pending end waits for another": (
        [T1, reward(0.25), OPEN_END | {"reward_pending": True}, reward(0.75)],
        0.75,
    ),
    "a provisional reward does not close": (
        [T1, OPEN_END, reward(0.25, final=False), reward(0.75)],
        0.75,
    ),
    "a turn's reward does not close": (
        [T1, OPEN_END, reward(0.25, turn_id="t1"), reward(0.75)],
        0.75,
    ),
    "a turn's reward is not the session's": ([T1, reward(0.25, turn_id="t1"), OPEN_END], None),
    "a repeated reward does not close": (
        [T1, reward(0.25, "a"), OPEN_END | {"reward_pending": True}, reward(1, "a"), reward(0.75)],
        0.75,
    ),
    "a repeated id changes nothing": ([T1, reward(0.25, "a"), reward(0.75, "a"), OPEN_END], 0.25),
    "another id replaces": ([T1, reward(0.25, "a"), reward(0.75, "b"), OPEN_END], 0.75),
    "an end that does not train waits for nothing": (
        [T1, OPEN_END | {"end_status": "error"}, reward(0.75)],
        None,
    ),
    "an end that will be retried waits like any other": (
        [T1, OPEN_END | {"will_retry": True}, reward(0.75)],
        0.75,
    ),
}


@pytest.mark.parametrize(("events", "value"), REWARD_AT_THE_CLOSE.values(), ids=REWARD_AT_THE_CLOSE)
def test_the_reward_a_session_closes_with(events: list[Json], value: float | None) -> None:
    run = linearized(events)
    assert [closed.get("reward") for closed in run.closed] == [value]
    assert run.revised == []


def test_a_final_reward_stays_known_after_a_provisional_one() -> None:
    run = linearized([T1, reward(0.25), reward(0.5, final=False), OPEN_END, reward(0.75)])
    assert [closed["reward"] for closed in run.closed] == [0.5]
    assert [(revised["reward"], revised["revision"]) for revised in run.revised] == [(0.75, 5)]


def test_a_second_end_is_ignored() -> None:
    run = linearized([T1, OPEN_END, OPEN_END | {"end_status": "error"}, reward(1.0)])
    assert [(closed["end_status"], closed["ignored"]) for closed in run.closed] == [
        ("completed", 1)
    ]


def test_a_reward_that_is_no_number_is_none_and_says_so() -> None:
    run = linearized([T1, ended(reward=math.nan)])
    assert run.samples == []
    assert run.closed[0]["reward_invalid"] is True
    assert run.closed[0]["withheld"] == "no_reward"


def test_a_default_reward_stands_in_only_where_none_was_given() -> None:
    assert linearized([T1, END], default_reward=0.5).closed[0]["reward"] == 1.0
    assert linearized([T1, OPEN_END], default_reward=0.5).closed[0]["reward"] == 0.5


# --- why a whole session gives no sample ---------------------------------------------------------

GAP = T1 | {"source": "a", "seq": 2}
REASONS: dict[str, tuple[Json, Json]] = {
    "rejected": (GAP | {"split": "eval"}, OPEN_END | {"accepted": False, "end_status": "error"}),
    "eval": (GAP | {"split": "eval"}, OPEN_END | {"end_status": "error"}),
    "status": (GAP, OPEN_END | {"end_status": "error"}),
    "no_reward": (GAP, OPEN_END),
    "gap": (GAP, END),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_session_is_withheld_for_the_first_reason_that_holds(reason: str) -> None:
    run = linearized(REASONS[reason])
    assert run.samples == []
    assert [closed["withheld"] for closed in run.closed] == [reason]
    assert drawn_ledger(run.closed[0]) == f"t1 root 0/3 {reason} 3"


def test_a_session_that_will_be_retried_gives_no_sample() -> None:
    run = linearized([T1, END | {"will_retry": True}])
    assert run.samples == []
    assert run.closed[0]["withheld"] == "rejected"


NUMBERED = [T1 | {"source": "a", "seq": 1}, T2 | {"source": "a", "seq": 3}]


@pytest.mark.parametrize(
    ("gaps", "ledger"),
    [
        ("reject", "t1 root 0/3 gap 3\nt2 extend 0/5 gap 5"),
        ("prefix", "t1 root 3/3\nt2 extend 0/5 gap 5"),
        ("ignore", "t1 root 3/3\nt2 extend 5/5"),
    ],
)
def test_a_hole_in_the_numbering_costs_what_the_policy_says(gaps: str, ledger: str) -> None:
    run = linearized([*NUMBERED, END], gaps=gaps)
    assert run.closed[0]["gaps"] == 1
    assert drawn_ledger(run.closed[0]) == ledger


def test_what_a_turn_behind_the_hole_rewrites_still_trains() -> None:
    rewrite = turn("«S»<u>{ok }(x)", "done", turn_id="t2", source="a", seq=3)
    run = linearized([NUMBERED[0], rewrite, END], gaps="prefix")
    assert drawn_samples(run.samples) == "«S»<u>{[ok}]  reward 1"
    assert drawn_ledger(run.closed[0]) == "t1 root 3/3\nt2 root 0/5 gap 5"


def test_fewer_turns_than_the_end_names_are_a_gap() -> None:
    run = linearized([NUMBERED[0], END | {"turns": {"a": 2, "b": 1}}])
    assert run.closed[0]["gaps"] == 2
    assert run.samples == []


# --- after the close -----------------------------------------------------------------------------

BRANCHES = session(
    turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "ax"), turn("«S»<u>{ok}(y)", "ay"), reward=1.0
)


def test_a_late_reward_is_folded_over_all_before_it_however_often_it_comes() -> None:
    late = [reward(0.1, "a", turn_id="t3"), reward(0.5, "b"), reward(0.2, "c", turn_id="t3")]
    partition = Partition()
    fed(partition, BRANCHES)
    first = fed(partition, late, first=5)
    told = [
        (line["revision"], line["reward"], line["session_reward"], line.get("turn_rewards"))
        for line in lines(first)
    ]
    assert told == [
        (5, 0.5, 1.0, {"t3": 0.1}),
        (6, 0.25, 0.5, None),
        (6, 0.25, 0.5, {"t3": 0.1}),
        (7, 0.25, 0.5, {"t3": 0.2}),
    ]
    assert lines(fed(partition, late, first=5)) == lines(first)
    assert lines(fed(partition, late, first=8)) == []


def test_a_reward_after_a_close_without_samples_is_late() -> None:
    run = linearized([T1, OPEN_END | {"end_status": "error"}, reward(1.0)])
    assert codes(run) == ["late_reward"]


# --- purging -------------------------------------------------------------------------------------


def purge(floor: int) -> Json:
    return {"type": "purge", "floor": floor}


def test_a_marker_lives_as_long_as_its_newest_late_reward() -> None:
    partition = Partition()
    fed(partition, [T1, END, reward(0.5), purge(3)])
    assert [line["reward"] for line in lines(fed(partition, [reward(0.75)], first=5))] == [0.75]
    fed(partition, [purge(6)], first=6)
    (effects,) = fed(partition, [reward(0.25)], first=7)
    assert [refusal.code for refusal in effects.refusals] == ["unknown_session"]


def test_a_purge_above_a_row_of_an_open_session_is_ignored() -> None:
    partition = Partition()
    *_, effects = fed(partition, [T1, T2, purge(2)])
    assert effects.ignored
    assert partition.floor == 0


def test_below_the_floor_nothing_is_processed() -> None:
    partition = Partition()
    fed(partition, [T1, END, purge(3)])
    assert fed(partition, [T1, END]) == [NOTHING, NOTHING]
    assert partition.sessions == {}
