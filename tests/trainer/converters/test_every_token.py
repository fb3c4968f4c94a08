"""Whatever the framework: each trained token once, with its own logprob, and nothing else."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given

from streams.trainer.converters import areal, padded, prime_rl
from streams.trainer.converters.rows import arrays
from tests.trainer.converters.given import Given, batches, forked
from tests.trainer.converters.read_back import READERS, Trained


def expected(row: Given) -> Trained:
    """Straight from the sample's runs."""
    sample = row.sample
    missing = {place for start, end in sample.logprobs_missing or () for place in range(start, end)}
    return [
        (place, int(sample.tokens[place]), float(sample.logprobs[place]))
        for start, end in sample.loss_mask
        for place in range(start, end)
        if place not in missing
    ]


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@given(rows=batches())
def test_a_trained_token_is_there_once_with_its_own_logprob(
    reader: Callable[[Sequence[Given]], list[Trained]], rows: list[Given]
) -> None:
    assert reader(rows) == [expected(row) for row in rows]


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_siblings_each_bring_their_own_tokens(
    reader: Callable[[Sequence[Given]], list[Trained]],
) -> None:
    rows = forked()
    assert reader(rows) == [expected(row) for row in rows]


@given(rows=batches())
def test_the_masks_of_all_frameworks_sum_alike(rows: list[Given]) -> None:
    sums = {name: sum(len(trained) for trained in reader(rows)) for name, reader in READERS.items()}
    assert set(sums.values()) == {sum(len(expected(row)) for row in rows)}


@given(rows=batches())
def test_nothing_of_the_sample_is_written_to(rows: list[Given]) -> None:
    before = [(row.sample.tokens.copy(), row.sample.logprobs.copy()) for row in rows]
    for reader in READERS.values():
        reader(rows)
    for row, (tokens, logprobs) in zip(rows, before, strict=True):
        assert np.array_equal(row.sample.tokens, tokens)
        assert np.array_equal(row.sample.logprobs, logprobs)


@given(rows=batches())
def test_every_rollout_counts_once_in_the_weights(rows: list[Given]) -> None:
    for columns in (padded.padded_arrays(rows), padded.packed_arrays(rows)):
        weights = columns["weights"]
        assert not weights[~columns["loss_mask"]].any()
        told = sum(len(expected(row)) / row.sample.trained for row in rows)
        assert weights.sum() == pytest.approx(told, rel=1e-5)


def test_two_siblings_together_weigh_what_an_only_sample_weighs() -> None:
    columns = padded.padded_arrays(forked())
    assert columns["weights"].sum(axis=1).tolist() == [0.5, 0.5, 1.0]


@given(rows=batches())
def test_a_temperature_is_the_one_of_its_turn_and_else_changes_nothing(rows: list[Given]) -> None:
    for row, fields in zip(rows, prime_rl.samples(rows, env_name="any"), strict=True):
        mask = arrays(row).mask_T
        for place, temperature in enumerate(fields["temperatures"]):
            (said,) = [
                turn.sampling.temperature
                for turn in row.sample.turns
                if turn.start <= place < turn.end and turn.sampling is not None
            ] or [1.0]
            assert temperature == (said if mask[place] else 1.0)


@given(rows=batches())
def test_versions_stand_where_tokens_train(rows: list[Given]) -> None:
    for row in rows:
        columns = areal.trajectory_arrays(row)
        trains = columns["loss_mask"] == 1
        assert np.array_equal(columns["versions"] >= 0, trains)
        assert np.array_equal(columns["turn_ids"] >= 0, trains)
