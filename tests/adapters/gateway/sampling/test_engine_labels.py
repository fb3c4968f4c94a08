"""Which declared update a replica was seen to take, by its labels."""

import itertools

import pytest

from streams.adapters.gateway.sampling.engine_labels import EngineLabels

Seen = tuple[str, int] | tuple[str, int, str]
"""A label, the update in force, and whether the run was paused."""

CASES: dict[str, tuple[list[Seen], Seen, int | None]] = {
    "a label that came with the update": ([("a", 0), ("b", 1)], ("b", 1), 1),
    "the one before the first update": ([("a", 0), ("b", 1)], ("a", 0), 0),
    "a label that stays": ([("a", 0), ("a", 1)], ("a", 1), None),
    "a label that stays after its own update": ([("a", 0), ("b", 1), ("b", 2)], ("b", 2), None),
    "a label that returns": ([("a", 0), ("b", 1), ("a", 2)], ("a", 2), None),
    "nobody saw it before": ([("b", 1)], ("b", 1), None),
    "an update between was not seen": ([("a", 0), ("b", 2)], ("b", 2), None),
    "no version was given": ([("a", 0), ("default", 1)], ("default", 1), None),
    "no version was given to what the engine started with": (
        [("default", 0), ("b", 1)],
        ("b", 1),
        1,
    ),
    "two new labels: which of them?": ([("a", 0), ("b", 1), ("c", 1)], ("b", 1), None),
    "behind a balancer one lags": ([("a", 0), ("b", 1), ("a", 1)], ("b", 1), 1),
    "the one that lags": ([("a", 0), ("b", 1), ("a", 1)], ("a", 1), None),
    "behind a balancer one was restarted": (
        [("a", 0), ("b", 1), ("default", 1)],
        ("b", 1),
        1,
    ),
    "loaded in a pause": ([("a", 0), ("b", 0, "paused"), ("b", 1)], ("b", 1), 1),
    "tokens of the pause itself": ([("a", 0), ("b", 0, "paused")], ("b", 0, "paused"), 1),
    "before the load, in the pause": (
        [("a", 0), ("a", 0, "paused"), ("b", 1)],
        ("a", 0, "paused"),
        0,
    ),
    "changed without a pause or an update": ([("a", 0), ("b", 0), ("b", 1)], ("b", 1), None),
}


@pytest.mark.parametrize(("seen", "asked", "update"), CASES.values(), ids=CASES)
def test_an_update_is_believed_only_where_the_label_changed_with_it(
    seen: list[Seen], asked: Seen, update: int | None
) -> None:
    for order in itertools.permutations(seen):
        labels = EngineLabels()
        for label, at, *paused in order:
            labels.add(label, at, paused=bool(paused))
        label, at, *paused = asked
        assert labels.update_of(label, at, paused=bool(paused)) == update


def test_an_engine_without_labels_has_the_weights_it_started_with_until_an_update() -> None:
    labels = EngineLabels()
    assert labels.update_of(None, 0, paused=False) == 0
    assert labels.update_of(None, 0, paused=True) is None
    assert labels.update_of(None, 1, paused=False) is None


def test_what_is_kept_is_bounded_and_the_first_label_is_never_forgotten() -> None:
    labels = EngineLabels()
    labels.add("base", 0, paused=False)
    for update in range(1, 3_000):
        labels.add(str(update), update, paused=False)
    assert labels.update_of("2999", 2_999, paused=False) == 2_999
    labels.add("base", 3_000, paused=False)
    assert labels.update_of("base", 3_000, paused=False) is None
    assert len(labels._first) <= 1_000
    assert len(labels._seen) <= 16
