"""The generator's sessions are what it says they are, before any broker is involved."""

from collections import Counter

from schemas.bad_record import BadRecord
from schemas.samples import SessionClosed
from streams.core.effects import Effects
from streams.core.partition import Partition
from streams.core.state import Rules
from streams.processor.arrivals import read_event
from tests.chaos.sessions import Script, script

SESSIONS = 240
DAY_MS = 86_400_000
LOGGED_MS = 1_700_000_000_000


def told(session: Script) -> tuple[list[Effects], SessionClosed]:
    """Everything that follows from one script, and its outcome."""
    partition = Partition(rules=Rules(turn_age_ms_max=DAY_MS))
    effects = []
    for position, step in enumerate(session.steps):
        event = read_event(step.key, step.value)
        if isinstance(event, BadRecord):
            effects.append(partition.refuse(event, position))
        else:
            effects.append(partition.feed(event, position, LOGGED_MS))
    effects += partition.finish()
    (outcome,) = (e.outcome for e in effects if e.outcome is not None)
    return effects, outcome


def test_every_turn_attaches_as_it_was_meant_to() -> None:
    for number in range(SESSIONS):
        session = script(1, number)
        _, outcome = told(session)
        assert [(row.turn_id, row.attach) for row in outcome.ledger] == session.meant


def test_the_same_seed_writes_the_same_bytes_and_another_one_others() -> None:
    assert [script(5, n).steps for n in range(30)] == [script(5, n).steps for n in range(30)]
    assert script(5, 0).steps != script(6, 0).steps


def test_everything_that_can_happen_to_a_session_happens_to_some() -> None:
    refused: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    for number in range(SESSIONS):
        session = script(1, number)
        effects, outcome = told(session)
        refused.update(refusal.code for e in effects for refusal in e.refusals)
        happened.update(
            ended=session.ends,
            silent=not session.ends,
            samples=len(outcome.sample_ids),
            revisions=sum(len(e.revisions) for e in effects),
            retried=outcome.will_retry,
            second_attempts=outcome.attempt == 1,
            gaps=outcome.gaps > 0,
            poison=session.kinds["poison"],
            megabytes=sum(len(step.value) > 1_000_000 for step in session.steps),
        )
        happened[f"withheld {outcome.withheld}"] += 1
    wanted = "undecodable unknown_type unknown_version invalid_field length_mismatch"
    wanted += " digest_mismatch unknown_base unknown_session forked_turn_id late_turn"
    wanted += " late_reward too_old"
    assert set(wanted.split()) <= refused.keys()
    withheld = {f"withheld {why}" for why in ("rejected", "eval", "status", "no_reward", "gap")}
    assert withheld <= happened.keys()
    assert all(happened.values()), happened
    assert 2 <= happened["megabytes"] <= 0.01 * sum(happened.values())
