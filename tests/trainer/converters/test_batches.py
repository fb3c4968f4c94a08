"""A batch as `subscribe()` hands it out, through the converters: the numbers of the baseline trap.

two successes (5 samples and 1), two failures: +0.5, +0.5, -0.5, -0.5, whoever counts
"""

from types import SimpleNamespace

import pytest

from streams.core.advantages import advantages
from streams.core.rollouts import Group, Rollout
from streams.trainer.batches import Batch
from streams.trainer.converters import padded, skyrl, slime, tinker, trl, verl_queue
from tests.trainer.records import outcome, sample

SIZES, REWARDS = (5, 1, 1, 1), (1.0, 1.0, 0.0, 0.0)


def batch() -> Batch:
    rollouts = [
        Rollout(
            outcome=outcome(f"s{slot}", size, reward=reward),
            samples=tuple(
                sample(
                    f"s{slot}",
                    index,
                    size,
                    group_id="g",
                    rollout_index=slot,
                    session_reward=reward,
                    reward=reward / size,
                    version=3,
                )
                for index in range(size)
            ),
            reward=reward,
            advantage=advantage,
        )
        for slot, (size, reward, advantage) in enumerate(
            zip(SIZES, REWARDS, advantages(REWARDS, "mean"), strict=True)
        )
    ]
    return Batch(number=0, groups=(Group(group_id="g", size=4, rollouts=tuple(rollouts)),))


EACH = [0.5] * 6 + [-0.5] * 2


def test_a_forked_success_is_a_success_in_every_framework() -> None:
    rows = batch().rows
    samples = [SimpleNamespace(**fields) for fields in slime.samples(rows)]
    assert slime.rewards(None, samples) == ([1.0] * 6 + [0.0] * 2, EACH)
    assert [fields["advantage"] for fields in trl.samples(rows)] == EACH
    inputs = [tinker.datum(row)["loss_fn_inputs"] for row in rows]
    assert [each["advantages"].max() + each["advantages"].min() for each in inputs] == EACH


def test_every_rollout_counts_once_however_often_it_forked() -> None:
    columns = padded.padded_arrays(batch().rows)
    weights = columns["weights"].sum(axis=1).tolist()
    assert weights == pytest.approx([0.2] * 5 + [1.0] * 3)
    signal = (columns["weights"] * columns["advantages"]).sum(axis=1)
    assert [signal[:5].sum(), *signal[5:].tolist()] == pytest.approx([0.5, 0.5, -0.5, -0.5])


def test_frameworks_that_count_rollouts_are_told_which_samples_are_one() -> None:
    rows = batch().rows
    assert [fields["rollout_id"] for fields in slime.samples(rows)] == [0, 0, 0, 0, 0, 1, 2, 3]
    output = skyrl.generator_output(rows)
    assert output["is_last_step"] == [False] * 4 + [True] * 4
    last = [r for r, ends in zip(output["rewards"], output["is_last_step"], strict=True) if ends]
    assert last == list(REWARDS)
    keys = {verl_queue.key_of(row.sample).rpartition("_")[0] for row in rows}
    assert keys == {"g_0", "g_1", "g_2", "g_3"}
