"""What a client kept of an answer is told as a turn of its own: each sampled token trains once."""

import pytest

from tests.core.life import end, ran, undelivered
from tests.core.notation import Json, turn

WHOLE = turn("<u>", "whole", turn_id="w")
PART = turn("<u>", "who", turn_id="p", part_of="w")
LESS = turn("<u>", "w", turn_id="q", part_of="w")
AFTER_WHOLE = turn("<u>{whole}(x)", "a", turn_id="wx")
AFTER_PART = turn("<u>{who}(x)", "b", turn_id="px")
AFTER_LESS = turn("<u>{w}(x)", "c", turn_id="qx")

CASES: dict[str, tuple[list[Json], str]] = {
    "only the part goes on": (
        [WHOLE, undelivered("w"), PART, AFTER_PART],
        "w 0/2 undelivered 2; p 4/4; px 2/2",
    ),
    "the whole goes on, too": (
        [WHOLE, undelivered("w"), PART, AFTER_PART, AFTER_WHOLE],
        "w 6/6; p 0/0; px 2/2; wx 2/2",
    ),
    "two parts go on": (
        [WHOLE, undelivered("w"), PART, AFTER_PART, LESS, AFTER_LESS],
        "w 0/2 undelivered 2; p 4/4; px 2/2; q 0/0; qx 2/2",
    ),
    "the whole is rewritten": (
        [WHOLE, undelivered("w"), PART, AFTER_PART, turn("<u>{other}(x)", "d", turn_id="ox")],
        "w 0/2 undelivered 2; p 4/4; px 2/2; ox 2/2",
    ),
    "nobody goes on": ([WHOLE, undelivered("w"), PART], "w 0/2 undelivered 2; p 4/4"),
    "the part is not delivered either": (
        [WHOLE, undelivered("w"), PART, undelivered("p")],
        "w 0/6 undelivered 6; p 0/0",
    ),
}


def told(row: Json) -> str:
    reasons = "".join(f" {reason} {n}" for reason, n in row.get("untrained", {}).items())
    return f"{row['turn_id']} {row['trained']}/{row['generated']}{reasons}"


@pytest.mark.parametrize(("events", "ledger"), CASES.values(), ids=CASES)
def test_each_token_of_a_sampling_trains_once_and_is_counted_once(
    events: list[Json], ledger: str
) -> None:
    run = ran([*events, end(reward=1.0)])
    (closed,) = run.closed
    assert "; ".join(map(told, closed["ledger"])) == ledger
    assert closed["trained"] == sum(sample["trained"] for sample in run.samples)


def test_a_session_that_may_not_train_counts_it_once_too() -> None:
    run = ran([WHOLE, undelivered("w"), PART, AFTER_PART, end("error")])
    (closed,) = run.closed
    assert closed["generated"] == 8
