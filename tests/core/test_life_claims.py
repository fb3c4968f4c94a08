"""The life of a session claim by claim; each holds however the events are delivered.

Every claim runs three times: once through; with the whole log replayed after every event; and
with a new worker before every event, which knows only the rows that were kept.
"""

import pytest

from tests.core.life import ran, ran_with_replays, ran_with_restarts
from tests.core.life_claim import Claim
from tests.core.life_claims_endings import ENDING, EXPIRING, PURGING
from tests.core.life_claims_late_rewards import LATE_REWARDS, TURN_REWARDS
from tests.core.life_claims_limits import BUDGETS, EVAL, GAPS, REFUSED
from tests.core.life_claims_opening import OPENING, UNDELIVERED
from tests.core.life_claims_policy import FIELDS, PRECEDENCE
from tests.core.life_claims_rewards import NO_REWARD, ORIGINS, REWARDS

TABLES: dict[str, dict[str, Claim]] = {
    "opening": OPENING,
    "undelivered": UNDELIVERED,
    "reward": REWARDS,
    "late reward": LATE_REWARDS,
    "turn reward": TURN_REWARDS,
    "no reward": NO_REWARD,
    "origins": ORIGINS,
    "ending": ENDING,
    "expiring": EXPIRING,
    "purging": PURGING,
    "gap": GAPS,
    "budget": BUDGETS,
    "eval": EVAL,
    "refused": REFUSED,
    "policy": FIELDS,
    "reason": PRECEDENCE,
}
CLAIMS = {f"{table}: {name}": claim for table, it in TABLES.items() for name, claim in it.items()}
every_claim = pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)


@every_claim
def test_a_claim_holds(claim: Claim) -> None:
    assert ran(claim.events, claim.rules).transcript == claim.transcript


@every_claim
def test_a_claim_holds_when_the_log_is_replayed_after_every_event(claim: Claim) -> None:
    assert ran_with_replays(claim.events, claim.rules).transcript == claim.transcript


@every_claim
def test_a_claim_holds_when_a_new_worker_takes_over_before_every_event(claim: Claim) -> None:
    assert ran_with_restarts(claim.events, claim.rules).transcript == claim.transcript
