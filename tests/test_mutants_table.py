"""The table of planted errors fits the source it is planted in; `make mutants` runs it."""

import shutil
from pathlib import Path

import pytest

from tests.mutants.mutant import LostPlaceError, Mutant
from tests.mutants.planted import PLANTED
from tests.mutants.trial import NoVerdictError, first_failure, project_copy

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("mutant", PLANTED, ids=[mutant.name for mutant in PLANTED])
def test_a_planted_error_has_exactly_one_place_and_still_compiles(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    planted = mutant.planted_in(source)
    assert planted != source
    compile(planted, mutant.file, "exec")


def test_every_planted_error_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in PLANTED}) == len(PLANTED) >= 30


def test_the_tests_an_error_names_are_there() -> None:
    named = {test for mutant in PLANTED for test in mutant.tests}
    assert [test for test in sorted(named) if not (ROOT / test).is_file()] == []


@pytest.mark.parametrize("source", ["a = 1\n", "a < b\na < b\n"])
def test_a_lost_or_doubled_place_is_reported(source: str) -> None:
    mutant = Mutant("inclusive", "m.py", old="a < b", new="a <= b", tests=())
    with pytest.raises(LostPlaceError, match="inclusive"):
        mutant.planted_in(source)


def test_a_run_that_reads_the_checkout_instead_of_the_copy_is_no_verdict() -> None:
    with project_copy() as root:
        shutil.rmtree(root / "streams")
        with pytest.raises(NoVerdictError, match="imported from outside the copy"):
            first_failure(root, ["tests/core/test_thresholds.py"])
