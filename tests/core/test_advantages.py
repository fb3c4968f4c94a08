"""One advantage a rollout, over the rewards of rollouts: the numbers of the baseline trap."""

import statistics
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from streams.core.advantages import Advantages, Judgement, advantages, is_stale, judged
from streams.core.groups import GroupRules, Groups
from streams.core.rollouts import Group, Rollout
from streams.trainer.batches import Batch
from tests.trainer.records import outcome, sample, session


def group_of(*sessions: tuple[str, int, float], version: int | None = None) -> Group:
    """Sessions by name, number of samples and reward."""
    groups = Groups(GroupRules())
    ended: list[Group] = []
    for name, samples, reward in sessions:
        for record in session(
            name, samples, reward=reward, version=version, group_id="g", group_size=len(sessions)
        ):
            ended += groups.take(record, (0, 0), 0, 1)
    (group,) = ended
    return group


TRAP = group_of(("forked", 5, 1.0), ("plain", 1, 1.0), ("bad", 1, 0.0), ("worse", 1, 0.0))


def test_a_forked_success_is_a_success() -> None:
    group, _ = judged(TRAP, None, Judgement(advantages="mean"))
    assert {r.session_id: r.advantage for r in group.rollouts} == {
        "forked": 0.5,
        "plain": 0.5,
        "bad": -0.5,
        "worse": -0.5,
    }
    # What a baseline over the samples and their even shares would have made of it.
    shares = [s.reward for r in TRAP.rollouts for s in r.samples if s.reward is not None]
    assert shares[0] - statistics.fmean(shares) == pytest.approx(-0.05)


def test_siblings_share_the_advantage_and_together_weigh_as_much_as_one() -> None:
    group, _ = judged(TRAP, None, Judgement(advantages="mean"))
    batch = Batch(number=0, groups=(group,))
    rows = [row for row in batch.rows if row.rollout.session_id == "forked"]
    assert {row.advantage for row in rows} == {0.5}
    assert [row.sample.index for row in rows] == [0, 1, 2, 3, 4]
    weights: dict[str, float] = {}
    tokens: dict[str, float] = {}
    for row in batch.rows:
        name = row.rollout.session_id
        weights[name] = weights.get(name, 0.0) + row.weight
        tokens[name] = tokens.get(name, 0.0) + row.token_weight * row.sample.trained
    assert weights == pytest.approx(dict.fromkeys(weights, 1.0))
    assert tokens == pytest.approx(dict.fromkeys(tokens, 1.0))
    # Every token alike, the forked rollout would have five times the say of the others.
    say = sum(row.sample.trained for row in rows) / sum(s.trained for s in batch.samples)
    assert say == pytest.approx(5 / 8)


def test_a_mean_over_tokens_with_weights_is_a_mean_over_rollouts() -> None:
    """Losses of 1 on a rollout of 2 + 30 tokens and of 3 on one of 2 average to 2."""
    groups = Groups(GroupRules())
    records = [
        sample("long", 0, 2, trained=2),
        sample("long", 1, 2, length=40, trained=30),
        session("long", 2)[-1],
        *session("short"),
    ]
    ended = [g for n, r in enumerate(records) for g in groups.take(r, (0, n), 0, 1)]
    batch = Batch(number=0, groups=tuple(ended))
    loss = {"long": 1.0, "short": 3.0}
    total = sum(
        row.token_weight * loss[row.rollout.session_id] * (end - start)
        for row in batch.rows
        for start, end in row.sample.loss_mask
    )
    assert total / len(batch.rollouts) == pytest.approx(2.0)


@pytest.mark.parametrize("kind", ["grpo", "mean", "leave_one_out"])
def test_a_rollout_alone_has_no_advantage(kind: Advantages) -> None:
    assert advantages([7.0], kind) == [0.0]
    assert advantages([], kind) == []


def test_advantages_are_those_of_the_textbook() -> None:
    rewards = [1.0, 0.25, 0.0, 0.5]
    mean, deviation = np.mean(rewards), np.std(rewards, ddof=1)
    assert advantages(rewards, "mean") == pytest.approx([r - mean for r in rewards])
    assert advantages(rewards, "grpo") == pytest.approx(
        [(r - mean) / (deviation + 1e-6) for r in rewards]
    )
    others = [np.mean(rewards[:n] + rewards[n + 1 :]) for n in range(4)]
    assert advantages(rewards, "leave_one_out") == pytest.approx(
        [r - other for r, other in zip(rewards, others, strict=True)]
    )
    assert advantages([2.0, 2.0, 2.0], "grpo") == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", get_args(Advantages))
@pytest.mark.parametrize("rewards", [[1e308, 1e308, -1e308], [1e39, 0.0], [-1.7e308, 1.7e308]])
def test_any_finite_reward_gives_an_advantage_that_a_trainer_can_hold(
    rewards: list[float], kind: Advantages
) -> None:
    most = np.finfo(np.float32).max
    given = advantages(rewards, kind)
    assert all(abs(value) <= most for value in given)
    assert np.argsort(given).tolist() == np.argsort(rewards).tolist()


def test_a_rollout_without_samples_is_in_the_baseline() -> None:
    group = group_of(("a", 1, 1.0), ("empty", 0, 0.0))
    group, _ = judged(group, None, Judgement(advantages="mean"))
    assert [r.advantage for r in group.rollouts] == [0.5, -0.5]
    assert [row.rollout.session_id for row in Batch(number=0, groups=(group,)).rows] == ["a"]


def test_staleness_is_of_the_oldest_token_and_exactly_the_limit_is_not_stale() -> None:
    (rollout,) = group_of(("a", 2, 1.0), version=9).rollouts
    older = sample("a", 1, 2, version=7)
    rollout = replace(rollout, samples=(rollout.samples[0], older))
    assert (rollout.oldest_version, rollout.newest_version) == (7, 9)
    for version, stale in [(7, False), (9, False), (10, True)]:
        assert is_stale(rollout, version, 2) is stale
    assert not is_stale(rollout, None, 2)
    assert not is_stale(rollout, 100, None)


Runs = list[tuple[int, int, int]] | None
UNKNOWN: dict[str, tuple[list[Runs], int | None]] = {
    "some tokens": ([[(-1, 3, 4), (9, 4, 5)]], 9),
    "all of a sample": ([[(9, 3, 5)], [(-1, 3, 5)]], 9),
    "a sample without runs": ([[(9, 3, 5)], None], 9),
    "tokens that no run covers": ([[(9, 4, 5)]], 9),
    "everything": ([[(-1, 3, 5)]], None),
}


@pytest.mark.parametrize(("runs", "known"), UNKNOWN.values(), ids=UNKNOWN)
def test_a_rollout_with_unknown_weights_is_older_than_everything(
    runs: list[Runs], known: int | None
) -> None:
    (rollout,) = group_of(("a", 1, 1.0)).rollouts
    samples = tuple(sample("a", n, len(runs), weight_versions=r) for n, r in enumerate(runs))
    rollout = replace(rollout, samples=samples)
    assert (rollout.oldest_version, rollout.newest_version) == (-1, known)
    assert is_stale(rollout, 0, 10**9)
    assert not is_stale(rollout, 9, 0, "train")
    assert is_stale(rollout, 10, 0, "train") is (known is not None)
    assert not is_stale(rollout, 9, None)
    assert Batch(number=0, groups=(group_with(rollout),), version=9).staleness == ()


def test_a_rollout_without_versions_is_unknown_only_in_a_run_that_has_them() -> None:
    (rollout,) = group_of(("a", 1, 1.0)).rollouts
    assert rollout.oldest_version is None
    assert not is_stale(rollout, 9, 0)
    rollout = replace(rollout, run_has_versions=True)
    assert rollout.oldest_version == -1
    assert is_stale(rollout, 9, 100)
    assert not is_stale(rollout, 9, 100, "train")
    empty = replace(rollout, samples=())
    assert not is_stale(empty, 9, 0)  # nothing of it trains: its reward is in the baseline


def group_with(rollout: Rollout) -> Group:
    return Group(group_id="g", size=1, rollouts=(rollout,))


def test_a_stale_rollout_goes_whole_and_before_the_baseline() -> None:
    fresh = group_of(("a", 1, 1.0), ("b", 1, 0.0), version=9).rollouts
    old = group_of(("c", 3, 0.0), version=6).rollouts
    group = Group(group_id="g", size=3, rollouts=(*fresh, *old))
    kept, counts = judged(group, 9, Judgement(max_staleness=2, advantages="mean"))
    assert [(r.session_id, r.advantage) for r in kept.rollouts] == [("a", 0.5), ("b", -0.5)]
    assert kept.dropped == (("c", "stale"),)
    assert counts == {"stale": 1}
    kept, _ = judged(group, 8, Judgement(max_staleness=2, advantages="mean"))
    assert [len(r.samples) for r in kept.rollouts] == [1, 1, 3]


def test_a_group_without_signal_does_not_train() -> None:
    same = group_of(("a", 2, 1.0), ("b", 1, 1.0), ("c", 0, 1.0))
    kept, counts = judged(same, None, Judgement(drop_zero_signal=True))
    assert kept.trainable == 0
    assert counts["zero_signal"] == 2
    assert {r.withheld for r in kept.rollouts} == {"zero_signal", None}
    kept, counts = judged(TRAP, None, Judgement(drop_zero_signal=True))
    assert kept.trainable == 4
    assert not counts["zero_signal"]


def test_a_rollout_that_is_too_long_trains_nothing_and_stays_in_the_baseline() -> None:
    group = group_of(("a", 1, 1.0), ("b", 1, 0.0))
    (a, b) = group.rollouts
    longer = replace(b, samples=(*b.samples, sample("b", 1, 2, length=6)))
    wide = replace(group, rollouts=(a, longer))
    kept, counts = judged(wide, None, Judgement(tokens_max=5, advantages="mean"))
    assert [(len(r.samples), r.advantage, r.withheld) for r in kept.rollouts] == [
        (1, 0.5, None),
        (0, -0.5, "overlong"),
    ]
    assert counts["overlong"] == 1
    assert judged(wide, None, Judgement(tokens_max=6))[0].trainable == 2


def test_a_cut_rollout_can_be_left_out_of_the_loss() -> None:
    group = group_of(("a", 1, 1.0))
    (rollout,) = group.rollouts
    assert not rollout.truncated
    cut = replace(rollout, outcome=outcome("a", end_status="truncated"))
    group = replace(group, rollouts=(cut,))
    assert judged(group, None, Judgement(drop_truncated=True))[1]["truncated"] == 1
    assert judged(group, None, Judgement())[0].trainable == 1
