"""Every attack there is: a module holds those on one part of the system."""

from tests.attack import closes, foreign, gateway
from tests.attack.scenario import Scenario

SCENARIOS: list[Scenario] = [
    *closes.SCENARIOS,
    *foreign.SCENARIOS,
    *gateway.SCENARIOS,
]
