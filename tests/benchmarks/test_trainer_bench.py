"""The trainer's benchmark works on a tiny load, and refuses figures that do not hold.

Nothing is timed here: real processes, a real broker, samples of a few tokens. Peers and PyTorch,
gigabytes, stay out: our sides end with arrays, which `make bench-trainer` makes tensors of.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.trainer import Round, best, check, measure, show
from benchmarks.trainer_child import Worker, tree_cpu_s
from benchmarks.trainer_load import BATCH, CHECK_EVERY, GROUP, Seen, content, expected, groups
from tests.kafka.broker import Broker

TOKENS = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def test_both_logs_are_measured_and_every_sample_arrives(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = {"sqlite": 2 * BATCH, "kafka": 2 * BATCH}
    found = measure(samples, TOKENS, broker=broker, torch=False)
    for rows in found.values():
        assert rows.keys() == samples.keys()
        for row in rows.values():
            assert min(row.per_s, row.cpu_ms, row.reader_cpu_ms) > 0
    show(found, samples, TOKENS)
    assert "kafka" in capsys.readouterr().out


def test_a_sample_has_runs_that_train_and_no_logprob_elsewhere() -> None:
    one = content(70, TOKENS)
    assert one.ids_T[0] == 70
    assert one.ids_T.min() >= 0
    assert not one.mask_T[0]
    assert sum(end - start for start, end in one.runs) == one.mask_T.sum() > TOKENS // 4
    assert ((one.logprobs_T != 0) == one.mask_T).all()
    assert not np.array_equal(one.ids_T[1:], content(71, TOKENS).ids_T[1:])


def test_groups_hold_every_number_once() -> None:
    assert [n for group in groups(4 * GROUP) for n in group] == list(range(4 * GROUP))


def _seen(count: int) -> Seen:
    seen, contents = Seen(), [content(number, TOKENS) for number in range(count)]
    ids = np.stack([one.ids_T for one in contents]).astype(np.int64)
    seen.add(ids, *(np.stack([getattr(c, n) for c in contents]) for n in ("mask_T", "logprobs_T")))
    return seen


def test_what_was_sent_is_what_is_expected() -> None:
    assert _seen(100) == expected(100, TOKENS)
    assert expected(100, TOKENS).digests.keys() == {0, CHECK_EVERY, 2 * CHECK_EVERY}


def test_a_side_that_lost_or_changed_something_has_no_figure() -> None:
    seen = _seen(100)
    check("right", seen, 100, TOKENS)
    with pytest.raises(RuntimeError, match="lossy: 99 samples, 1 of 100 lacking"):
        check("lossy", Seen(seen.numbers[1:], seen.digests), 100, TOKENS)
    with pytest.raises(RuntimeError, match="twice: 101 samples, 0 of 100 lacking"):
        check("twice", Seen([*seen.numbers, 5], seen.digests), 100, TOKENS)
    changed = {**seen.digests, CHECK_EVERY: seen.digests[0]}
    with pytest.raises(RuntimeError, match=f"wrong: sample {CHECK_EVERY} has other contents"):
        check("wrong", Seen(seen.numbers, changed), 100, TOKENS)


def test_the_best_of_two_rounds_takes_the_larger_memory() -> None:
    one = Round(per_s=1.0, cpu_ms=2.0, reader_cpu_ms=2.0, peak_mb=3.0)
    other = Round(per_s=2.0, cpu_ms=1.0, reader_cpu_ms=3.0, peak_mb=9.0)
    assert best(one, other) == Round(per_s=2.0, cpu_ms=1.0, reader_cpu_ms=2.0, peak_mb=9.0)


def test_a_child_that_cannot_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    words = ["read", str(tmp_path / "no-settings"), "1", "1", "--arrays"]
    with (
        Worker("benchmarks.trainer_ours", *words) as worker,
        pytest.raises(RuntimeError, match=r"does not answer(.|\n)*no-settings"),
    ):
        worker.ready()


def test_cpu_time_is_that_of_all_that_a_process_started() -> None:
    own_s = tree_cpu_s(os.getpid())
    assert 0 < own_s <= tree_cpu_s(os.getppid())
