"""The harness sees what it is there to see: what was trained, and what stood still."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from schemas import codec
from schemas.trained import Trained
from streams.core.rollouts import with_reward
from streams.log.interface import Entry, Position
from streams.settings import Settings
from tests.chaos.oracle import Expected
from tests.chaos.watch import Watch
from tests.trainer.records import outcome, revised, sample
from tests.under_fire.faults import never_done
from tests.under_fire.judging import (
    commit_faults,
    content_faults,
    reward_faults,
    training_faults,
    worth_faults,
)
from tests.under_fire.lives import History, Lives
from tests.under_fire.standstill import Standstill
from tests.under_fire.training import digest_of

STEPS = {1: ["a/0", "b/0", "b/1"], 2: ["c/0", "d/0"]}


def expected() -> Expected:
    """Two groups that are complete, with three samples and two, and one that is not."""
    found = Expected()
    for name, group, index, samples in (
        ("a", "g0", 0, 1),
        ("b", "g0", 1, 2),
        ("c", "g1", 0, 1),
        ("d", "g1", 1, 1),
        ("e", "g2", 0, 1),
    ):
        fields: dict[str, Any] = {"group_id": group, "group_size": 2, "rollout_index": index}
        record = codec.to_msgpack(outcome(name, samples, **fields))
        found.outcomes[name] = {(group.encode(), record)}
    return found


def test_every_sample_of_a_complete_group_once_is_right() -> None:
    assert training_faults(expected(), History(steps=STEPS)) == []


@pytest.mark.parametrize(
    ("steps", "dropped", "told"),
    [
        ({1: STEPS[1], 2: ["c/0"]}, {}, "never trained: 1, e.g. ['d/0']"),
        ({1: [*STEPS[1], "a/0"], 2: STEPS[2]}, {}, "trained twice: 1, e.g. ['a/0']"),
        ({**STEPS, 3: ["e/0"]}, {}, "trained and not expected: 1, e.g. ['e/0']"),
        (STEPS, {"fenced": 1, "duplicate": 3}, "left out by the trainer: 1, e.g. ['fenced 1']"),
    ],
)
def test_what_was_trained_otherwise_is_told(
    steps: dict[int, list[str]], dropped: dict[str, int], told: str
) -> None:
    assert training_faults(expected(), History(steps=steps, dropped=dropped)) == [told]


def test_a_reward_that_was_acknowledged_and_does_not_count_is_told() -> None:
    found = expected()
    for revision, reward in ((12, 0.5), (7, 0.25)):
        record = codec.to_msgpack(revised("b", 0, revision, reward))
        found.revisions["b/0", revision] = {(b"g0", record)}
    assert reward_faults(found, {"a": 1.0, "b": 0.5}) == []
    assert reward_faults(found, {"a": 0.0, "b": 0.25, "z": 1.0}) == [
        "a: reward 0 was acknowledged, and its newest is 1.0",
        "b: reward 0.25 was acknowledged, and its newest is 0.5",
        "z: reward 1 was acknowledged, and its newest is None",
    ]


WORTH = [["g0", "a", 1.0, 0.5**0.5], ["g0", "b", 0.0, -(0.5**0.5)]]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (["g0", "a", 1.0, 99.0], "a: an advantage of 99.0 by rewards [1.0, 0.0]"),
        (["g0", "a", 1.0, -(0.5**0.5)], "a: an advantage of -0.7"),
    ],
)
def test_an_advantage_that_does_not_follow_from_the_rewards_is_told(
    row: list[Any], told: str
) -> None:
    found = expected()
    record = codec.to_msgpack(revised("b", 0, 12, 0.0))
    found.revisions["b/0", 12] = {(b"g0", record)}
    # Beside a deviation of 0.7 the epsilon is a millionth and a half.
    right = [
        [group, name, reward, value / (1 + 1e-6 / 0.5**0.5)] for group, name, reward, value in WORTH
    ]
    assert worth_faults(found, History(worth={1: right})) == []
    (fault,) = worth_faults(found, History(worth={1: [row, right[1]]}))
    assert told in fault


def test_a_reward_that_its_session_never_had_is_told() -> None:
    (fault,) = worth_faults(expected(), History(worth={1: [["g0", "a", 0.25, 0.0]]}))
    assert fault == "step 1: a: trained with a reward of 0.25"
    assert worth_faults(expected(), History()) == ["no step told what its rollouts were worth"]


def test_a_sample_with_one_other_token_is_told_and_one_with_a_later_reward_is_not() -> None:
    found = expected()
    made = sample("a")
    found.samples["a/0"] = {(b"g0", codec.to_msgpack(made))}
    later = with_reward(made, revised("a", 0, 12, 0.5))
    assert content_faults(found, History(digests={"a/0": digest_of(later)})) == []
    made.tokens[0] += 1
    told = content_faults(found, History(digests={"a/0": digest_of(made)}))
    assert told == ["trained with other content: 1, e.g. ['a/0']"]


def test_what_a_later_life_began_before_was_never_trained(tmp_path: Path) -> None:
    lives = Lives(tmp_path / "trainer", Settings(), {})
    lines: list[dict[str, Any]] = [
        {"life": 0, "after": 0},
        {"step": 1, "ids": ["a"], "digests": ["1"], "worth": [[1]]},
        {"step": 2, "ids": ["b"], "digests": ["2"], "worth": [[2]]},
        {"updated": 2},
        {"step": 3, "ids": ["c"], "digests": ["3"], "worth": [[3]]},
        {"life": 1, "after": 2},
        {"updated": 2},
        {"step": 3, "ids": ["d"], "digests": ["4"], "worth": [[4]]},
        {"dropped": {"duplicate": 1}},
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "trainer/journal.jsonl").write_text(text + '{"step": 4', "utf-8")
    found = lives.history()
    assert found.steps == {1: ["a"], 2: ["b"], 3: ["d"]}
    assert found.epochs == {1: 0, 2: 0, 3: 1}
    assert found.worth == {1: [[1]], 2: [[2]], 3: [[4]]}
    assert found.digests == {"a": "1", "b": "2", "c": "3", "d": "4"}
    assert (found.handed_out, found.updates, found.dropped) == (4, 2, {"duplicate": 1})


def test_a_step_counts_by_the_record_of_the_life_that_trained_it() -> None:
    history = History(steps={1: ["a"], 2: ["b"]}, epochs={1: 0, 2: 1})

    def entries(*told: tuple[int, int, str]) -> list[Entry]:
        records = [
            Trained(run_id="r", step=step, weight_version=1, sample_ids=[name], run_epoch=epoch)
            for epoch, step, name in told
        ]
        values = [codec.to_msgpack(record) for record in records]
        return [Entry(Position("t", 0, n), 0, b"", value) for n, value in enumerate(values)]

    assert commit_faults(entries((0, 1, "a"), (0, 2, "z"), (1, 2, "b")), history) == []
    assert len(commit_faults(entries((0, 1, "a"), (0, 2, "b")), history)) == 1
    assert len(commit_faults(entries((0, 1, "z"), (1, 2, "b")), history)) == 1


def test_a_kind_of_fault_that_never_came_about_is_told_if_all_had_their_turn() -> None:
    assert never_done(("a", "b", "c"), ["b", "a", "b"], 3) == ["c"]
    assert never_done(("a", "b", "c"), ["b"], 2) == []


@dataclass
class Told:
    """What a watch answers."""

    committed: dict[int, int] = field(default_factory=dict)
    lags: dict[int, int] = field(default_factory=dict)


def test_a_partition_stands_still_while_something_waits_and_nothing_moves() -> None:
    told = Told()
    found = Standstill(cast(Watch, told))
    looks = [  # committed and lag of two partitions
        (0.0, (3, 0), (5, 0)),
        (1.0, (3, 2), (5, 1)),
        (2.0, (3, 3), (6, 0)),
        (7.0, (3, 9), (6, 0)),
        (8.0, (9, 3), (6, 0)),
        (9.0, (12, 0), (6, 0)),
    ]
    for now_s, *partitions in looks:
        told.committed = {n: at for n, (at, _) in enumerate(partitions)}
        told.lags = {n: lag for n, (_, lag) in enumerate(partitions)}
        found.look(now_s)
    assert sorted(found.spans) == [(1.0, 2.0), (1.0, 8.0), (8.0, 9.0)]
    assert found.longest_s(0.0) == 7.0
    assert found.longest_s(5.0) == 3.0
