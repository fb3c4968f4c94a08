"""Every list of a session is bounded, what is over a budget costs itself, and the close is sent."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from schemas import codec
from schemas.events import Event, Reward
from streams.core.after_close import read_back
from streams.core.closing import close_with_totals
from streams.core.effects import Effects
from streams.core.limits import DEFAULT_LIMITS, Limits
from streams.core.partition import Partition
from streams.core.session import Row, restore
from streams.core.state import ClosedSession, OpenSession, Rules
from tests.core.life import (
    T1,
    T2,
    T3,
    Run,
    end,
    event,
    opened,
    ran,
    ran_with_replays,
    ran_with_restarts,
    read,
    reward,
)
from tests.core.notation import Json, turn

CONTROL = "\x01" * 197
EMOJI = "🙂" * 197
KINDS = {"plain": "t" * 32, "control": CONTROL, "emoji": EMOJI}


def numbered(given: Json, seq: int) -> Json:
    return given | {"source": "a", "seq": seq}


def small(number: int, kind: str = "t", **fields: Any) -> Json:
    """A turn that hangs from a root of its own."""
    return turn(f"<{number}>", "ok", turn_id=f"{kind}{number:03x}") | fields


def every_way(events: list[Json], rules: Rules | None = None) -> Run:
    """The run, the same after restarts and replays."""
    run = ran(events, rules)
    assert ran_with_restarts(events, rules).transcript == run.transcript
    assert ran_with_replays(events, rules).transcript == run.transcript
    return run


def closing(events: list[Json], rules: Rules) -> Effects:
    partition, effects = Partition(rules=rules), Effects()
    for position, given in enumerate(events, 1):
        record = read(given)
        assert isinstance(record, Event), record
        effects = partition.feed(record, position)
    assert effects.outcome is not None
    return effects


def sizes(effects: Effects) -> tuple[int, int]:
    assert effects.outcome is not None
    assert effects.marker is not None
    outcome, marker = codec.to_msgpack(effects.outcome), msgspec.json.encode(effects.marker)
    return len(outcome), len(marker)


# --- a refused turn ------------------------------------------------------------------------------

DELTA = T2 | {"base_turn_id": "t1", "kept_messages": 2, "kept_ids": 7}
DELTA |= {"prompt_messages": T2["prompt_messages"][2:], "prompt_ids": T2["prompt_ids"][7:]}
ON_T2 = turn("<u>{ok}(x){done}", "yes", turn_id="t4")
ON_T2 |= {"base_turn_id": "t2", "kept_messages": 4, "kept_ids": 16}
ON_T2 |= {"prompt_messages": [{"role": "user", "content": "y"}], "prompt_ids": [1, 2]}


def test_a_turn_over_a_budget_leaves_no_gap_and_the_turns_before_it_train() -> None:
    events = [
        opened(budgets={"tokens": 8}),
        numbered(T1, 1),
        numbered(DELTA, 2),
        numbered(ON_T2, 3),
        end(reward=1.0, turns={"a": 3}),
    ]
    run = every_way(events)
    assert run.lines == [
        "3 refused oversize t2",
        "4 refused oversize t4",
        "5 sample <u>{[ok}], reward 1",
        "5 closed completed, refused 2, reward 1 | t1 root 3/3; t2 root 0/5 oversize 5; "
        "t4 root 0/4 oversize 4",
    ]
    (closed,) = run.closed
    assert (closed["turns"], closed["generated"], closed["trained"]) == (3, 12, 3)


def test_a_turn_on_a_refused_one_is_oversize_although_it_would_fit() -> None:
    large = DELTA | {"output_ids": [7] * 50}
    events = [opened(budgets={"tokens": 30}), T1, large, ON_T2, T3, end(reward=1.0)]
    run = every_way(events)
    assert [line for line in run.lines if "refused" in line.split()[1]] == [
        "3 refused oversize t2",
        "4 refused oversize t4",
    ]
    assert run.closed[0]["trained"] == 6


def test_a_refused_turn_that_comes_again_is_a_duplicate() -> None:
    events = [opened(budgets={"turns": 1}), T1, T2, T2, end(reward=1.0), T2]
    run = every_way(events)
    (closed,) = run.closed
    assert (closed["refused"], closed["duplicates"]) == (1, 1)
    assert run.lines[-1] == "6 ignored"


def test_a_hole_beside_a_refused_turn_is_still_a_gap() -> None:
    events = [opened(budgets={"turns": 1}), numbered(T1, 1), numbered(T2, 3), end(reward=1.0)]
    assert every_way(events).closed[0]["withheld"] == "gap"


def test_of_a_withheld_session_refused_tokens_have_the_sessions_reason() -> None:
    events = [opened(budgets={"turns": 1}), T1, T2, end("error")]
    assert "t2 root 0/5 status 5" in every_way(events).lines[-1]


def test_a_row_of_before_that_has_only_its_code_is_counted() -> None:
    rows = [Row(n, record_of(given)) for n, given in enumerate([opened(), T1], 1)]
    state = restore([*rows, Row(3, None, "oversize")], Rules(), "s")
    assert isinstance(state, OpenSession)
    assert (state.refused, len(state.refused_turns), state.newest) == (1, 0, 3)


def record_of(given: Json) -> Event:
    record = read(given)
    assert isinstance(record, Event)
    return record


# --- budgets -------------------------------------------------------------------------------------

JOINS: Json = {"continued_at": [[0, True], [1, None]]}
CHANNEL = {"dtype": "int8", "shape": [2], "data": "0101"}
OVER: dict[str, tuple[dict[str, int], list[Json]]] = {
    "parts": ({"parts": 1}, [T1, T2 | {"part_of": "t1"}, T3 | {"part_of": "t1"}]),
    "joins": ({"joins": 3}, [small(1, **JOINS), small(2, **JOINS)]),
    "channels": (
        {"channels": 1},
        [
            small(1) | {"output_ids": [1, 2], "channels": {"a": CHANNEL}},
            small(2) | {"output_ids": [1, 2], "channels": {"b": CHANNEL}},
        ],
    ),
    "rewards": ({"rewards": 1}, [T1, reward(1.0, "a"), reward(0.5, "b")]),
    "rewards of turns": ({"rewards": 1}, [T1, *(reward(0.5, turn_id=t) for t in "ab")]),
    "turns with rewards": ({"rewards": 1}, [T1 | {"reward": 1}, T2 | {"reward": 1}]),
    "events": ({"events": 2}, [T1, T2]),
    "turns as they are kept": ({"event_bytes": 650}, [T1, T2]),
    "prompts as they are kept": (
        {"event_bytes": 9_000},
        [small(n, prompt_messages=[{"role": "user", "content": "x" * 4_500}]) for n in (1, 2)],
    ),
    "payloads": (
        {"event_bytes": 1_200},
        [T1, reward({"score": 1, "why": "x" * 300}), reward({"score": 0, "why": "y" * 300})],
    ),
    "turns in a record": ({"record_bytes": 380}, [small(1), small(2)]),
    "rewards in a record": ({"record_bytes": 400}, [T1, reward(1, CONTROL[:60])]),
}


@pytest.mark.parametrize(("budgets", "events"), OVER.values(), ids=OVER)
def test_what_is_over_a_budget_is_oversize_and_the_session_closes(
    budgets: dict[str, int], events: list[Json]
) -> None:
    whole = [opened(budgets=budgets), *events, end(reward=1.0)]
    run = every_way(whole)
    refused = [line.split()[:3] for line in run.lines if " refused oversize" in line]
    assert refused == [[str(len(events) + 1), "refused", "oversize"]]
    assert run.closed[0]["trained"] >= 2


@pytest.mark.parametrize(("budgets", "events"), OVER.values(), ids=OVER)
def test_one_more_is_within_the_budget(budgets: dict[str, int], events: list[Json]) -> None:
    larger = {name: most * 2 + 1 for name, most in budgets.items()}
    run = ran([opened(budgets=larger), *events, end(reward=1.0)])
    assert not any("oversize" in line for line in run.lines)


def test_behind_the_budget_of_events_a_session_still_ends_and_has_no_gap() -> None:
    events = [opened(budgets={"events": 2}), numbered(T1, 1), numbered(T2, 2), end(turns={"a": 2})]
    run = every_way([*events, reward(0.5, final=False), reward(1.0)])
    assert run.closed[0]["trained"] == 3
    assert run.lines[0] == "3 refused oversize t2"


def test_a_part_does_not_count_as_a_turn() -> None:
    events = [opened(budgets={"turns": 1}), T1, T2 | {"part_of": "t1"}, end(reward=1.0)]
    assert not any("oversize" in line for line in every_way(events).lines)


BLOB = {"dtype": "int8", "shape": [5]}
TEXTS: dict[str, Json] = {
    "reason": {"untrained_runs": [[0, 1, EMOJI]]},
    "constraint": {"sampling": {"constraint": EMOJI}},
    "payload": {"reward": {"score": 1.0, "why": EMOJI}},
    "blob": {"channels": {"a": BLOB | {"blob": EMOJI}}},
    "digest of a blob": {"channels": {"a": BLOB | {"blob": "b", "digest": "00" * 800}}},
    "name of a channel": {"channels": {EMOJI: BLOB | {"blob": "b"}}},
}


@pytest.mark.parametrize("fields", TEXTS.values(), ids=TEXTS)
def test_texts_of_a_turn_count_by_what_they_take(fields: Json) -> None:
    budgets = {"bytes": 800}
    run = every_way([opened(budgets=budgets), T1, T2 | fields, T3, end(reward=1.0)])
    assert run.lines[0] == "3 refused oversize t2"
    assert run.closed[0]["trained"] == 6


def test_a_rewrite_over_a_budget_demotes_no_answer() -> None:
    rewrite = turn("<u>{OK}(x)", "done", turn_id="t2")
    merged = every_way([opened(policy="seed"), T1, rewrite, end(reward=1.0)])
    assert merged.closed[0]["trained"] == 5
    goes_on = turn("<u>{ok}(y)", "fine", turn_id="t3")
    events = [opened(policy="seed", budgets={"nodes": 4}), T1, rewrite, goes_on, end(reward=1.0)]
    run = every_way(events)
    assert run.lines[0] == "3 refused oversize t2"
    assert [row["attach"] for row in run.closed[0]["ledger"]] == ["root", "extend", "root"]
    assert run.closed[0]["trained"] == 8


def test_a_first_turn_over_a_budget_begins_its_session_and_leaves_no_gap() -> None:
    rules = Rules(limits=replace(DEFAULT_LIMITS, joins=1))
    events = [
        numbered(T1 | JOINS, 1),
        numbered(DELTA | {"base_turn_id": "t1"}, 2),
        numbered(T3, 3),
        end(reward=1.0, turns={"a": 3}),
    ]
    run = every_way(events, rules)
    assert [line for line in run.lines if "refused" in line.split()[1]] == [
        "1 refused oversize t1",
        "2 refused oversize t2",
    ]
    (closed,) = run.closed
    assert (closed["turns"], closed["generated"], closed["trained"]) == (3, 11, 3)
    assert "gaps" not in closed


def test_a_session_that_a_refused_turn_begins_is_of_the_turns_rollout() -> None:
    rules = Rules(limits=replace(DEFAULT_LIMITS, joins=1))
    identity = {"run_id": "r", "group_id": "g", "rollout_index": 3}
    events = [T1 | JOINS | identity, T3 | {"group_id": "g", "step": 7}, end(reward=1.0)]
    run = every_way(events, rules)
    (closed,) = run.closed
    assert {name: closed.get(name) for name in (*identity, "step")} == identity | {"step": 7}
    assert run.samples[0]["group_id"] == "g"


# --- what is written at the close ----------------------------------------------------------------

RECORD_BYTES = 60_000


def record_rules(**limits: int) -> Rules:
    limits = {"record_bytes": RECORD_BYTES, "metadata_bytes": RECORD_BYTES // 10} | limits
    return Rules(limits=replace(DEFAULT_LIMITS, **limits))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rewarded", [False, True])
def test_any_number_of_turns_closes_within_the_record(kind: str, rewarded: bool) -> None:
    """The worst rows: a sample each, a judged reward each, forced, realigned, left out."""
    fields: Json = {"untrained_runs": [[0, 1, "x"]]}
    if rewarded:
        fields |= {"reward": 1 / 3, "reward_origin": "judged"}
    turns = [small(number, KINDS[kind], **fields) for number in range(800)]
    last = end(reward={"score": 1.0, "why": "ü" * 2_900}, final_message={"role": "x" * 90_000})
    effects = closing([opened(metadata="m" * 5_000), *turns, last], record_rules())
    outcome = effects.outcome
    assert outcome is not None
    assert outcome.withheld is None
    assert max(sizes(effects)) <= RECORD_BYTES
    assert outcome.trained > 0
    assert outcome.turns == 800 == len(outcome.ledger) + outcome.ledger_omitted
    assert outcome.generated == 2_400
    assert outcome.ledger_omitted > 0


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_rewards_closes_within_the_record(kind: str) -> None:
    rewards = [reward(0.5, f"{KINDS[kind]}{number:03x}") for number in range(2_000)]
    effects = closing([opened(), T1, *rewards, end(reward=1.0)], record_rules())
    assert effects.outcome is not None
    assert effects.outcome.trained == 3
    assert effects.outcome.refused > 0
    assert max(sizes(effects)) <= RECORD_BYTES


def repeated(turns: int, branches: int, kind: str) -> list[Json]:
    """A conversation, and branches that each go on from all of it: each sample names it again."""
    names = [f"{kind}{number:03x}" for number in range(turns + branches)]
    events: list[Json] = [turn("<0>", "ok", turn_id=names[0])]
    kept = len(events[0]["prompt_ids"]) + len(events[0]["output_ids"])
    for number in range(1, turns + branches):
        above = min(number, turns)
        delta = {
            "base_turn_id": names[above - 1],
            "kept_messages": 2 * above,
            "kept_ids": kept + 4 * (above - 1),
            "prompt_messages": [{"role": "user", "content": str(number)}],
            "prompt_ids": [number],
        }
        events.append(turn(f"<{number}>", "ok", turn_id=names[number]) | delta)
    return events


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_sent_until_the_marker_has_no_room_to_name_their_turns(kind: str) -> None:
    payload = {"score": 1.0, "why": "x" * 5_900}
    events = [opened(policy="lossless"), *repeated(20, 120, KINDS[kind]), end(reward=payload)]
    effects = closing(events, record_rules())
    outcome = effects.outcome
    assert outcome is not None
    assert (outcome.withheld, outcome.end_status) == (None, "completed")
    assert max(sizes(effects)) <= RECORD_BYTES
    assert 0 < len(effects.samples) < 120
    assert effects.samples[0].count == len(effects.samples)
    # A sampled token of each branch that is sent, and of the turns that they share.
    assert outcome.trained == 3 * (20 + len(effects.samples))
    assert {refusal.code for refusal in effects.refusals} == {"oversize"}


def test_a_record_that_has_no_room_for_the_outcome_closes_with_totals() -> None:
    """Names alone are more than this log takes; the turns fit their share."""
    many = [small(number) for number in range(40)]
    names = dict.fromkeys(("run_id", "task_id", "group_id"), EMOJI)
    crowded = record_rules(record_bytes=2_000, metadata_bytes=10)
    effects = closing([opened(**names), *many, end(reward=1.0)], crowded)
    outcome, marker = effects.outcome, effects.marker
    assert outcome is not None
    assert marker is not None
    assert (outcome.withheld, outcome.end_status) == ("core_failure", "error")
    assert (outcome.ledger, outcome.sample_ids, outcome.trained) == ([], [], 0)
    assert outcome.ledger_omitted == outcome.turns == 40
    assert outcome.generated == 120
    assert len(effects.samples) == 0
    assert marker.samples == []
    assert marker.other_turns == []
    assert marker.turns_digest is not None
    assert [refusal.code for refusal in effects.refusals][-1] == "core_failure"


TOTALS_BYTES = 40_000
"""What an outcome or a marker with totals only takes at most, by far."""


@pytest.mark.parametrize("kind", ["control", "emoji"])
def test_totals_are_small_whatever_the_session_held(kind: str) -> None:
    name = KINDS[kind]
    names: Json = dict.fromkeys(("run_id", "task_id", "group_id"), name)
    names |= dict.fromkeys(("run_epoch", "group_size", "rollout_index", "step"), 2**63 - 1)
    turns = [small(number, name, reward=1 / 3) for number in range(2_000)]
    rewards = [reward({"score": 1, "why": name * 99}, f"{name}{n:03x}") for n in range(2_000)]
    last = end(
        reward={"score": 1 / 3, "why": "x" * 900_000},
        finish_reason=name * 9_999,
        reason={"message": name * 9_999, "type": name * 9_999},
        final_message={"role": "x" * 900_000},
    )
    whole = closing([opened(metadata="m" * 900_000, **names), *turns, *rewards, last], Rules())
    assert whole.outcome is not None
    assert whole.marker is not None
    assert min(sizes(whole)) > 1_000_000
    close = close_with_totals(whole.outcome, whole.marker, name * 9_999)
    effects = Effects(outcome=close.outcome, marker=close.marker)
    assert max(sizes(effects)) <= TOTALS_BYTES
    assert close.outcome.turns == close.outcome.ledger_omitted == 2_000
    assert close.outcome.reward == pytest.approx(1 / 3)
    assert close.marker.rewards.value == pytest.approx(1 / 3)


def test_a_session_closed_with_totals_refuses_late_rewards() -> None:
    effects = closing([T1, T3, end(reward=1.0)], Rules())
    assert effects.outcome is not None
    assert effects.marker is not None
    marker = close_with_totals(effects.outcome, effects.marker, "too large").marker
    partition = Partition()
    partition.sessions["s"] = ClosedSession.of(marker)
    late = partition.feed(record_of(reward(0.5)), 9)
    assert [refusal.code for refusal in late.refusals] == ["late_reward"]
    assert late.row is None


# --- late rewards --------------------------------------------------------------------------------


def late(partition: Partition, position: int, **fields: Any) -> Effects:
    return partition.feed(record_of(event("reward", **{"reward": 0.5} | fields)), position)


def closed_partition(limits: Limits) -> Partition:
    partition = Partition(rules=Rules(limits=limits))
    for position, given in enumerate([T1, T3, end(reward=1.0)], 1):
        partition.feed(record_of(given), position)
    return partition


@pytest.mark.parametrize(
    ("limits", "taken"),
    [
        ({"late_rewards": 2}, 2),
        ({"late_reward_bytes": 1_200}, 2),
        ({"metadata_bytes": 10}, 0),
        ({"sample_bytes_total": 1_800}, 2),
    ],
)
def test_late_rewards_over_a_budget_are_dead_letters_and_leave_the_marker(
    limits: dict[str, int], taken: int
) -> None:
    partition = closed_partition(replace(DEFAULT_LIMITS, **limits))
    payload = {"score": 0.5, "why": "x" * 200}
    revisions = [late(partition, 4 + n, reward=payload) for n in range(4)]
    assert [effects.row is not None for effects in revisions] == [n < taken for n in range(4)]
    state = partition.sessions["s"]
    assert isinstance(state, ClosedSession)
    assert len(state.late) == taken
    assert state.rewards.value == (0.5 if taken else 1.0)
    codes = [refusal.code for effects in revisions for refusal in effects.refusals]
    assert codes == ["oversize"] * (4 - taken)
    again = [late(partition, 4 + n, reward=payload) for n in range(4)]
    assert [effects.revisions for effects in again] == [e.revisions for e in revisions]


@pytest.mark.parametrize("kind", KINDS)
def test_late_rewards_are_read_back_as_they_were_counted(kind: str) -> None:
    names = [f"{KINDS[kind]}{number:03x}" for number in range(24)]
    partition = Partition(rules=Rules())
    events = [opened(policy="lossless"), *repeated(4, 20, KINDS[kind])]
    events += [reward(0.5, turn_id=names[0]), end(reward=1.0)]
    for position, given in enumerate(events, 1):
        marker = partition.feed(record_of(given), position).marker
    assert marker is not None
    sent, rebuilt = 0, ClosedSession.of(marker)
    at_close = marker.rewards.copy()
    given_late: list[Json] = [
        {},
        *({"turn_id": name, "reward": 1 / 3} for name in (*names[:3], names[0], *names[4:])),
        {"reward": {"score": 0.1, "why": EMOJI}, "reward_id": "a"},
        {"reward": {"score": 0.1, "why": "again"}, "reward_id": "a"},
        {"origin": "judged"},
        {"turn_id": names[1], "origin": "judged"},
    ]
    for position, fields in enumerate(given_late, len(events) + 1):
        effects = late(partition, position, **fields)
        sent += sum(len(codec.to_msgpack(revision)) for revision in effects.revisions)
        if effects.row is not None:
            kept = record_of(event("reward", **{"reward": 0.5} | fields))
            assert isinstance(kept, Reward)
            read_back(rebuilt, kept, position)
    state = partition.sessions["s"]
    assert isinstance(state, ClosedSession)
    assert (rebuilt.late, rebuilt.rewards) == (state.late, state.rewards)
    assert rebuilt.revised_bytes == state.revised_bytes == sent
    assert rebuilt.marker.rewards == at_close, "what came late is no part of the marker"


def test_a_revision_over_the_record_is_a_dead_letter() -> None:
    rules = replace(DEFAULT_LIMITS, record_bytes=300)
    partition = closed_partition(DEFAULT_LIMITS)
    partition.rules = Rules(limits=rules)
    effects = late(partition, 4, reward={"score": 0.5, "why": "x" * 200})
    assert [refusal.code for refusal in effects.refusals] == ["oversize"]
    state = partition.sessions["s"]
    assert isinstance(state, ClosedSession)
    assert (state.late, state.rewards.value) == ([], 1.0)
    assert late(partition, 5).row is not None


def test_rewards_are_read_back_from_a_marker_of_before() -> None:
    """A marker of before the digest has no such field, and is written without it."""
    effects = closing([T1, end(reward=1.0)], Rules())
    assert effects.marker is not None
    assert b"turns_digest" not in msgspec.json.encode(effects.marker)
    assert isinstance(record_of(reward(1.0)), Reward)
