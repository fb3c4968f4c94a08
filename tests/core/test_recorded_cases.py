"""150 random sessions whose samples the original systems computed, and nobody here.

They judge the oracle and the core separately: two implementations that agree only with each
other prove nothing.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import linearized
from tests.oracle import seed_and_slime
from tests.oracle.agreement import difference

Case = dict[str, Any]
RECORDED = Path(__file__).parent.parent / "data" / "linearize-cases.jsonl"
CASES: list[Case] = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
every_case = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])


def test_all_recorded_cases_are_here() -> None:
    assert len(CASES) == 150
    assert {case["profile"] for case in CASES} == set(seed_and_slime.PROFILES)


@every_case
def test_the_oracle_gives_the_recorded_samples(case: Case) -> None:
    threshold = case["fork_threshold"]
    got = seed_and_slime.samples(
        case["events"],
        profile=case["profile"],
        fork_threshold=seed_and_slime.DEFAULT_THRESHOLD if threshold is None else threshold,
    )
    assert difference(case["samples"], got) is None


@every_case
def test_the_core_gives_the_recorded_samples(case: Case) -> None:
    result = linearized(
        case["events"], profile=case["profile"], fork_threshold=case["fork_threshold"]
    )
    assert result.dead_letters == []
    assert difference(case["samples"], result.samples) is None
