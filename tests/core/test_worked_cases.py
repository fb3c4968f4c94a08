"""The worked cases of both exact profiles, each as drawings written by hand before the code."""

import json
from collections.abc import Iterable

import pytest

from schemas.codec import to_json
from streams.core.effects import Effects
from streams.core.partition import Partition
from streams.core.policy import PROFILES
from tests.core.golden import Case, by_case_and_profile, decoded
from tests.core.notation import Json, drawn_ledger, ended, session, turn
from tests.core.worked_cases_tokens import DRIFT_LOGPROBS_REWARDS, EDGES
from tests.core.worked_cases_tree import REWRITES_AND_MIXES, WHERE_A_TURN_HANGS
from tests.harness import linearized

CASES = by_case_and_profile(
    WHERE_A_TURN_HANGS | DRIFT_LOGPROBS_REWARDS | REWRITES_AND_MIXES | EDGES
)
BOTH_PROFILES = pytest.mark.parametrize("profile", ["seed", "slime"])


@pytest.mark.parametrize(("case", "profile"), CASES.values(), ids=CASES)
def test_a_worked_case_is_drawn_as_golden(case: Case, profile: str) -> None:
    assert case.actual(profile) == case.expected(profile)


def fed(partition: Partition, events: list[Json]) -> list[Effects]:
    return [
        partition.feed(decoded(event), position) for position, event in enumerate(events, start=1)
    ]


def kinds(effects: Iterable[Effects]) -> list[str]:
    records = [record for effect in effects for record in effect.records()]
    return [json.loads(to_json(record))["type"] for record in records]


@BOTH_PROFILES
def test_2_12_finishing_a_second_time_yields_nothing(profile: str) -> None:
    partition = Partition(forced_policy=PROFILES[profile], default_reward=1.0)
    open_session = session(turn("«S»<u>", "ok"))[:-1]
    assert kinds(fed(partition, open_session)) == []
    assert kinds(partition.finish()) == ["sample", "session_closed"]
    assert kinds(partition.finish()) == []


@BOTH_PROFILES
def test_2_12_after_the_close_a_turn_is_late_and_an_end_is_ignored(profile: str) -> None:
    once = session(turn("«S»<u>", "ok"))
    late = turn("«S»<u>{ok}(x)", "done", turn_id="t2")
    run = linearized([*once, ended(), late, ended()], profile=profile)
    alone = linearized(once, profile=profile)
    assert run.samples == alone.samples
    assert len(run.closed) == 1
    assert run.closed == alone.closed
    assert [(letter["turn_id"], letter["code"]) for letter in run.dead_letters] == [
        ("t2", "late_turn")
    ]


@BOTH_PROFILES
def test_4_3_a_turn_without_prompt_messages_does_not_count(profile: str) -> None:
    run = linearized(session(turn("", "ok")), profile=profile)
    assert [closed["turns"] for closed in run.closed] == [0]


@BOTH_PROFILES
def test_4_4_without_a_reward_there_is_an_outcome_and_no_sample(profile: str) -> None:
    run = linearized(session(turn("«S»<u>", "ok"), reward=None), profile=profile)
    assert run.samples == []
    assert [drawn_ledger(closed) for closed in run.closed] == ["t1 root 0/3 no_reward 3"]
    assert run.closed[0].get("reward") is None
    assert run.closed[0]["withheld"] == "no_reward"
    assert run.dead_letters == []


@BOTH_PROFILES
def test_4_5_the_sample_says_where_logprobs_are_missing(profile: str) -> None:
    # `«S»<u>{ok}(x){` is 14 tokens, `done}` the 5 after it.
    events = session(
        turn("«S»<u>", "ok", logprobs="123"),
        turn("«S»<u>{ok}(x)", "done"),
    )
    run = linearized(events, profile=profile)
    assert [sample["logprobs_missing"] for sample in run.samples] == [[[14, 19]]]
