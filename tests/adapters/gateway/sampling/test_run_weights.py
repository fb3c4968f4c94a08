"""What a run's records on the control topic amount to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.control import Paused, Resumed
from streams.adapters.gateway.sampling.run_weights import RunWeights

PAUSED = Paused(run_id="r")


def resumed(version: int, epoch: int = 0, *, flushed: bool = False) -> Resumed:
    return Resumed(run_id="r", version=version, run_epoch=epoch, cache_flushed=flushed)


def after(*records: Paused | Resumed) -> RunWeights:
    run = RunWeights()
    for record in records:
        run = run.after(record)
    return run


CASES: dict[str, tuple[list[Paused | Resumed], tuple[bool, int | None, int, bool | None, int]]] = {
    "nothing": ([], (False, None, 0, None, 0)),
    "paused": ([PAUSED], (True, None, 0, None, 0)),
    "paused twice is paused once": ([PAUSED, PAUSED, resumed(1)], (False, 1, 0, False, 1)),
    "resumed": ([PAUSED, resumed(3, flushed=True)], (False, 3, 0, True, 1)),
    "declared without a pause": ([resumed(5)], (False, 5, 0, False, 1)),
    "given up": ([resumed(5), PAUSED, resumed(5)], (False, 5, 0, False, 2)),
    "a lower version ends no pause": ([resumed(5), PAUSED, resumed(4)], (True, 5, 0, False, 1)),
    "a lower version in a higher epoch": ([resumed(5), resumed(2, 1)], (False, 2, 1, False, 2)),
    "a lower epoch": ([resumed(5, 1), PAUSED, resumed(9)], (True, 5, 1, False, 1)),
    "the first may be anything": ([resumed(-3)], (False, -3, 0, False, 1)),
}


@pytest.mark.parametrize(("records", "expected"), CASES.values(), ids=CASES)
def test_a_run_is_the_fold_of_its_records(
    records: list[Paused | Resumed], expected: tuple[bool, int | None, int, bool | None, int]
) -> None:
    run = after(*records)
    told = (run.paused, run.version, run.run_epoch, run.cache_flushed, run.updates)
    assert told == expected


def test_a_refusal_says_what_was_declared_and_what_to_give() -> None:
    run = after(resumed(5, 1))
    assert "below 5" in (run.refuses(resumed(4, 1)) or "")
    assert "`run_epoch` above 1" in (run.refuses(resumed(4, 1)) or "")
    assert "below 1" in (run.refuses(resumed(9)) or "")
    assert run.refuses(resumed(5, 1)) is None


def test_the_same_words_again_change_nothing() -> None:
    run = after(PAUSED, resumed(5))
    assert run.says_already(resumed(5))
    assert not run.says_already(resumed(5, flushed=True))
    assert not run.says_already(resumed(6))
    assert not run.after(PAUSED).says_already(resumed(5))
    assert not RunWeights().says_already(resumed(0))


@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 5), st.integers(0, 2)))))
def test_epoch_and_version_never_go_back_and_only_a_resumed_that_counts_ends_a_pause(
    words: list[tuple[int, int] | None],
) -> None:
    run = RunWeights()
    for word in words:
        record = PAUSED if word is None else resumed(*word)
        now = run.after(record)
        if run.updates:
            assert (now.run_epoch, now.version or 0) >= (run.run_epoch, run.version or 0)
        if run.paused and not now.paused:
            assert now.updates == run.updates + 1
        assert now.paused or word is not None
        run = now


def test_a_token_is_of_the_weights_that_were_declared_when_it_came() -> None:
    known = RunWeights(version=2, start_version=2)
    now = known.after(PAUSED).after(resumed(3), 1000).after(resumed(4), 2000)
    came = {500: 2, 900: 2, 990: 3, 1000: 3, 1900: 3, 1990: 4, 9000: 4}
    assert {at_ms: now.version_of(now.update_at(at_ms, known)) for at_ms in came} == came
    assert now.update_at(0, now) == now.after(PAUSED).update_at(0, now) == now.update


def test_an_update_is_a_change_of_the_version_or_its_epoch() -> None:
    run = RunWeights(version=0, start_version=0)
    counted = []
    for record in (resumed(0), resumed(1), PAUSED, resumed(1, flushed=True), resumed(0, 1)):
        run = run.after(record)
        counted.append(run.update)
    assert counted == [0, 1, 1, 1, 2]
    assert [run.version_of(update) for update in range(4)] == [0, 1, 0, None]
    assert RunWeights().version_of(0) is None
    assert RunWeights().after(resumed(-3)).version_of(1) is None  # -1 means unknown
