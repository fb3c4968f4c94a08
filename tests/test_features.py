"""The table of claims fits the project it speaks of; `make features` breaks its rows."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.features.__main__ import broken
from tests.features.rows import Broken, Row, read, rows

ROOT = Path(__file__).resolve().parent.parent
ROWS = rows()
PLANTED = [row.patch for row in ROWS if row.patch is not None]
BY_ORIGIN = {"T": 27, "A": 26, "X": 66, "R": 22, "K": 10, "P": 2, "F": 5}
"""How many claims there are, by where they come from: none is lost by an edit."""


def test_no_claim_is_missing() -> None:
    assert Counter(row.id[0] for row in ROWS) == BY_ORIGIN


def test_pytest_collects_every_test_of_every_row() -> None:
    named = sorted({test for row in ROWS for test in row.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-pno:cacheprovider", *named]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    collected = ran.stdout.splitlines()
    bare = {line.partition("[")[0] for line in collected}
    assert [test for test in named if test not in collected and test not in bare] == []


@pytest.mark.parametrize("patch", PLANTED, ids=[patch.name for patch in PLANTED])
def test_what_breaks_a_row_has_exactly_one_place_and_still_compiles(patch: Any) -> None:
    source = (ROOT / patch.file).read_text(encoding="utf-8")
    planted = patch.planted_in(source)
    assert planted != source
    if patch.file.endswith(".py"):
        compile(planted, patch.file, "exec")


GOOD: dict[str, Any] = {
    "id": "R-one",
    "claim": "It holds.",
    "tests": ["tests/test_features.py::test_no_claim_is_missing"],
    "broken_by": {"file": "README.md", "old": "a", "new": "b"},
}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no test": ({"tests": []}, "has no test"),
    "no claim": ({"claim": ""}, "no claim"),
    "nothing breaks it": ({"broken_by": {}}, "broken by nothing"),
    "two things break it": (
        {"broken_by": {"file": "a", "old": "b", "environment": {"A": "1"}}},
        "by two things",
    ),
    "an origin that there is not": ({"id": "Z-one"}, "begins with one of"),
    "a field that there is not": ({"tset": 1}, "tset"),
}


@pytest.mark.parametrize(("wrong", "words"), BAD.values(), ids=BAD)
def test_a_row_that_shows_nothing_is_refused_by_its_id(wrong: dict[str, Any], words: str) -> None:
    assert len(read({"row": [GOOD]})) == 1
    with pytest.raises(ValueError, match=words):
        read({"row": [GOOD | wrong]})


def test_two_rows_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="R-one"):
        read({"row": [GOOD, GOOD]})


def test_a_claim_that_nothing_breaks_survives_and_is_said() -> None:
    harmless = Broken(environment={"SOMETHING": "else"})
    row = Row("R-one", "It holds.", ["tests/schemas/test_evolution.py"], harmless)
    verdict = broken(row)
    assert (verdict.killer, verdict.trouble) == (None, "SURVIVED")
