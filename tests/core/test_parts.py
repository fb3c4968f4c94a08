"""What a client kept of an answer is told as a turn of its own: each sampled token trains once."""

import pytest

from tests.core.life import end, ran, undelivered
from tests.core.notation import Json, drawn, turn

WHOLE = turn("<u>", "whole", turn_id="w")
PART = turn("<u>", "who", turn_id="p", part_of="w")
LESS = turn("<u>", "w", turn_id="q", part_of="w")
AFTER_WHOLE = turn("<u>{whole}(x)", "a", turn_id="wx")
AFTER_PART = turn("<u>{who}(x)", "b", turn_id="px")
AFTER_LESS = turn("<u>{w}(x)", "c", turn_id="qx")

CASES: dict[str, tuple[list[Json], dict[str, Json]]] = {
    "only the part goes on": (
        [WHOLE, undelivered("w"), PART, AFTER_PART],
        {"w": {"undelivered": 6}},
    ),
    "the whole goes on, too": (
        [WHOLE, undelivered("w"), PART, AFTER_PART, AFTER_WHOLE],
        {"p": {"merged": 4}},
    ),
    "two parts go on": (
        [WHOLE, undelivered("w"), PART, AFTER_PART, LESS, AFTER_LESS],
        {"w": {"undelivered": 6}, "q": {"merged": 2}},
    ),
}


@pytest.mark.parametrize(("events", "untrained"), CASES.values(), ids=CASES)
def test_the_longest_telling_of_a_sampling_trains(
    events: list[Json], untrained: dict[str, Json]
) -> None:
    run = ran([*events, end(reward=1.0)])
    (closed,) = run.closed
    rows = {row["turn_id"]: row.get("untrained", {}) for row in closed["ledger"]}
    assert {name: row for name, row in rows.items() if row} == untrained
    assert all(drawn(sample) for sample in run.samples)
