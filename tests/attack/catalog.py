"""Every attack there is: a module holds those on one part of the system."""

from tests.attack import gateway
from tests.attack.scenario import Scenario

SCENARIOS: list[Scenario] = [*gateway.SCENARIOS]
