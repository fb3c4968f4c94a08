"""The quick attacks, with the bounds that `make attack` holds them to."""

from pathlib import Path

import pytest

from tests.attack.catalog import SCENARIOS
from tests.attack.scenario import Scenario

QUICK = [each for each in SCENARIOS if each.quick]


@pytest.mark.parametrize("each", QUICK, ids=[each.name for each in QUICK])
def test_an_attack_stays_within_its_bounds(each: Scenario, tmp_path: Path) -> None:
    bounds = list(each.attack(tmp_path))
    assert bounds, "an attack that measures nothing proves nothing"
    assert not [str(bound) for bound in bounds if not bound.holds]
