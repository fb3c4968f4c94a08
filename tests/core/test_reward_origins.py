"""In which order given and judged rewards arrive decides nothing about what a session is worth.

Every interleaving that keeps the order of the given ones and that of the judged ones, with the
end of the session at every place in it; delivered once, replayed, and over restarts. Markers and
rows that were written before there were origins are read as given.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest

from schemas.events import Reward
from streams.core.partition import Partition
from streams.core.state import Rules
from streams.processor.rows import read_marker, write_marker
from tests.core.life import (
    NAN,
    T1,
    T2,
    Run,
    end,
    expired,
    feed,
    judged,
    ran,
    ran_with_replays,
    ran_with_restarts,
    read,
    reward,
)
from tests.core.notation import Json

ENDS = {
    "waits": end(reward_pending=True),
    "waits and has a judged one": end(reward=0.9, reward_origin="judged", reward_pending=True),
}
GIVEN = {
    "several": [reward(0.1, "g1"), reward(NAN, "g2", final=False), reward(0.3, "g3")],
    "one for a turn too": [reward(0.2, "g1"), reward(0.4, "gt", turn_id="t1")],
    "none": [],
}
JUDGED = {
    "several": [judged(0.6, "j1"), judged(NAN, "j2", final=False), judged(0.8, "j3")],
    "one for a turn too": [judged(0.7, "jt", turn_id="t1"), judged(0.6, "j1")],
}


CASES = [
    (given, closing)
    for given in GIVEN
    for closing, event in ENDS.items()
    # Alone with judged ones, a judged reward of the end is one of those whose order is kept.
    if given != "none" or "reward" not in event
]


def interleavings(left: Sequence[Json], right: Sequence[Json]) -> Iterator[list[Json]]:
    """Every merge of two sequences that keeps the order within each."""
    length = len(left) + len(right)
    for places in combinations(range(length), len(left)):
        ours, theirs = iter(left), iter(right)
        yield [next(ours if at in places else theirs) for at in range(length)]


def worth(run: Run) -> tuple[object, object]:
    """What a trainer holds in the end: the sample's values with every revision over them."""
    (sample,) = run.samples
    newest = sample | {name: None for name in ("turn_rewards",) if name not in sample}
    for revised in run.revised:
        newest |= {"turn_rewards": None} | revised
    return newest["session_reward"], newest["turn_rewards"]


@pytest.mark.parametrize(("given", "closing"), CASES)
@pytest.mark.parametrize("by_judges", JUDGED)
def test_the_order_of_arrival_never_changes_the_final_value(
    given: str, by_judges: str, closing: str
) -> None:
    found = set()
    for rewards in interleavings(GIVEN[given], JUDGED[by_judges]):
        for at in range(len(rewards) + 1):
            events = [T1, T2, *rewards[:at], ENDS[closing], *rewards[at:]]
            # Whether or not a final reward came behind the end, nothing waits any longer.
            events.append(expired(len(events)))
            once = ran(events)
            assert ran_with_replays(events).lines == once.lines
            assert ran_with_restarts(events).lines == once.lines
            found.add(repr(worth(once)))
    assert len(found) == 1, found


FINAL_GIVEN = [reward(NAN, "g1"), reward(0.3, "g2")]
FINAL_JUDGED = [judged(NAN, "j1"), judged(0.6, "j2")]


def test_a_number_behind_a_final_verdict_that_is_none_is_a_letter_and_never_silent() -> None:
    """The one thing that order decides: a session that was closed without a sample stays so."""
    for rewards in interleavings(FINAL_GIVEN, FINAL_JUDGED):
        for at in range(len(rewards) + 1):
            events = [T1, T2, *rewards[:at], ENDS["waits"], *rewards[at:]]
            events.append(expired(len(events)))
            run = ran(events)
            assert ran_with_restarts(events).lines == run.lines
            if run.samples:
                assert worth(run) == (0.3, None)
                continue
            (closed,) = run.closed
            assert (closed["withheld"], closed["reward_invalid"]) == ("no_reward", True)
            assert not any(one["reward"] == one["reward"] for one in rewards[:at])
            letters = sum("refused late_reward" in line for line in run.lines)
            assert letters == len(rewards) - at - 1


def test_one_id_of_both_origins_is_two_rewards() -> None:
    found = set()
    for rewards in interleavings([reward(0.5, "r")], [judged(0.9, "r")]):
        for at in range(3):
            events = [T1, *rewards[:at], ENDS["waits"], *rewards[at:]]
            found.add(repr(worth(ran([*events, expired(len(events))]))))
    assert found == {"(0.5, None)"}


def test_a_judged_reward_with_the_ends_id_does_not_hide_the_ends_own() -> None:
    events = [T1, judged(0.9, "end"), end(reward=0.5)]
    assert worth(ran(events)) == (0.5, None)


def test_what_was_given_last_counts_or_what_was_judged_last() -> None:
    """The value that all orders agree on is the right one."""
    several = [T1, *JUDGED["several"], *GIVEN["several"], ENDS["waits"]]
    assert worth(ran([*several, expired(len(several))])) == (0.3, None)
    judgements = [T1, ENDS["waits"], *JUDGED["several"]]
    assert worth(ran(judgements)) == (0.8, None)


def test_a_marker_from_before_there_were_origins_is_read_as_given() -> None:
    partition = Partition(rules=Rules())
    for position, event in enumerate([T1 | {"reward": 0.25}, end(reward=0.5)], 1):
        effects = feed(partition, read(event), position)
    assert effects.marker is not None
    written = write_marker(effects.marker)
    assert b"origin" not in written
    assert b"judged" not in written
    book = read_marker(written).rewards
    book.add(Reward(session_id="s", reward=0.75, origin="judged"))
    book.add(Reward(session_id="s", reward=0.75, origin="judged", turn_id="t1"))
    assert (book.value, book.of(["t1"])) == (0.5, {"t1": 0.25})


def test_a_marker_keeps_the_origin_of_what_was_judged() -> None:
    partition = Partition(rules=Rules())
    for position, event in enumerate([T1, judged(0.25, "t", turn_id="t1"), end(), judged(0.5)], 1):
        effects = feed(partition, read(event), position)
    assert effects.marker is not None
    book = read_marker(write_marker(effects.marker)).rewards
    book.add(Reward(session_id="s", reward=0.75))
    book.add(Reward(session_id="s", reward=0.75, turn_id="t1"))
    assert (book.value, book.of(["t1"])) == (0.75, {"t1": 0.75})
