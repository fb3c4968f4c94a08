"""The same request sent twice: which copies train, in whatever order the turns came.

A retry has the same prompt; a copy that a later turn goes on from was used. The rule, if the
policy asks for it: a copy that nobody continued is dropped when another was; if none was, the
newest stays; copies that were continued all stay.
"""

from itertools import permutations

import pytest

from streams.core.policy import PROFILES
from streams.core.state import Rules
from tests.core.life import end, ran, undelivered
from tests.core.life_claims_limits import under
from tests.core.notation import Json, drawn, turn

DROPPING = under(drop_retry_orphans=True)
A = turn("<u>", "one", turn_id="a", started_ms=1)
B = turn("<u>", "two", turn_id="b", started_ms=2)
AFTER_A = turn("<u>{one}(x)", "more", turn_id="ax", started_ms=3)
AFTER_B = turn("<u>{two}(x)", "less", turn_id="bx", started_ms=4)

PATTERNS: dict[str, tuple[list[Json], list[str], list[str]]] = {
    "the first copy goes on": ([A, B, AFTER_A], ["<u>{[one}](x){[more}]"], ["b"]),
    "the second copy goes on": ([A, B, AFTER_B], ["<u>{[two}](x){[less}]"], ["a"]),
    "no copy goes on: the newest stays": ([A, B], ["<u>{[two}]"], ["a"]),
    "both copies go on: both stay": (
        [A, B, AFTER_A, AFTER_B],
        ["<u>{[one}](x){[more}]", "<u>{[two}](x){[less}]"],
        [],
    ),
}


def orders(turns: list[Json]) -> list[tuple[Json, ...]]:
    """Every order in which no answer is continued before it was given."""
    return [
        order
        for order in permutations(turns)
        if all(
            order.index(turn) < order.index(after)
            for turn, after in ((A, AFTER_A), (B, AFTER_B))
            if after in order
        )
    ]


@pytest.mark.parametrize(("turns", "samples", "orphans"), PATTERNS.values(), ids=PATTERNS)
def test_orphans_are_dropped_before_the_reward_is_split(
    turns: list[Json], samples: list[str], orphans: list[str]
) -> None:
    assert len(orders(turns)) > 1
    for order in orders(turns):
        run = ran([*order, end(reward=1.0)], DROPPING)
        assert sorted(map(drawn, run.samples)) == samples
        assert {sample["reward"] for sample in run.samples} == {1 / len(samples)}
        (closed,) = run.closed
        rows = {row["turn_id"]: row.get("untrained", {}) for row in closed["ledger"]}
        assert rows == {
            turn["turn_id"]: {"retry_orphan": 4} if turn["turn_id"] in orphans else {}
            for turn in order
        }


def test_without_times_the_copy_that_came_last_is_the_newest() -> None:
    untimed = [{key: turn[key] for key in turn if key != "started_ms"} for turn in (B, A)]
    run = ran([*untimed, end(reward=1.0)], DROPPING)
    assert [drawn(sample) for sample in run.samples] == ["<u>{[one}]"]


def test_one_copy_without_a_time_makes_the_order_of_arrival_decide() -> None:
    untimed = {key: value for key, value in A.items() if key != "started_ms"}
    run = ran([B, untimed, end(reward=1.0)], DROPPING)
    assert [drawn(sample) for sample in run.samples] == ["<u>{[one}]"]


def test_a_copy_the_client_never_got_makes_no_orphan_of_the_other() -> None:
    run = ran([A, B, undelivered("b"), end(reward=1.0)], DROPPING)
    assert [drawn(sample) for sample in run.samples] == ["<u>{[one}]"]


def test_another_request_below_the_same_turn_is_no_copy() -> None:
    other_tool = turn("<u>{one}(y)", "else", turn_id="ay")
    run = ran([A, AFTER_A, other_tool, end(reward=1.0)], DROPPING)
    assert [drawn(sample) for sample in run.samples] == [
        "<u>{[one}](x){[more}]",
        "<u>{one}(y){[else}]",
    ]


@pytest.mark.parametrize("profile", PROFILES)
def test_no_profile_drops_a_retry_unasked(profile: str) -> None:
    run = ran([A, B, end(reward=1.0)], Rules(default_policy=PROFILES[profile]))
    assert [drawn(sample) for sample in run.samples] == ["<u>{[one}]", "<u>{[two}]"]
