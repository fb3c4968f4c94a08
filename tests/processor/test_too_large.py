"""What a broker finds too large costs its own session; the worker and the others go on."""

import asyncio
import json
from typing import Any

import pytest

from schemas import codec
from schemas.dead_letters import DeadLetter
from schemas.record import Record
from schemas.samples import SampleRevised, SessionClosed
from streams.core.state import Rules
from streams.processor.rows import MarkerKey, read_marker, write_key
from tests.core.test_large_outcomes import TURN
from tests.processor.crashing import SETTINGS, Crashing, Entry, expected

RULES = Rules()
Json = dict[str, Any]
BIG = "big"
LIMIT = 10_000


def entry(event: Json) -> Entry:
    value = codec.to_msgpack(codec.from_json(json.dumps(event).encode()))
    return event["session_id"].encode(), value


def of(session_id: str, **more: Any) -> Json:
    return TURN | {"session_id": session_id} | more


def ended(session_id: str, **more: Any) -> Json:
    fixed = {"type": "session_ended", "end_status": "completed", "reward": 1.0}
    return fixed | {"session_id": session_id} | more


def log_with(*big: Json) -> list[Entry]:
    """The big session's events among those of others."""
    others = [of(f"s{n}") for n in range(6)] + [ended(f"s{n}") for n in range(6)]
    events: list[Json] = []
    for number, other in enumerate(others):
        events += [other, *big[number : number + 1]]
    return [entry(event) for event in events]


def ran(entries: list[Entry], topic: str, *, crashes: int, seed: int) -> Crashing:
    async def live() -> Crashing:
        crashing = Crashing(entries, RULES, seed, {topic: LIMIT})
        await crashing.run(crashes)
        return crashing

    return asyncio.run(live())


def sent(crashing: Crashing, topic: str) -> list[Record]:
    return [codec.from_msgpack(value or b"") for _, value in crashing.log.topics[topic]]


def check_others(crashing: Crashing, entries: list[Entry]) -> None:
    """The other sessions gave what the core makes of them, with nothing missing."""
    wanted = {value for value in expected(entries, RULES).records if session_of(value) != BIG}
    written = {value for _, value in crashing.log.topics[SETTINGS.samples_topic] if value}
    assert {value for value in written if session_of(value) != BIG} == wanted


def session_of(value: bytes) -> str:
    return str(getattr(codec.from_msgpack(value), "session_id", ""))


def failures(crashing: Crashing) -> list[SessionClosed]:
    outcomes = sent(crashing, SETTINGS.samples_topic)
    return [o for o in outcomes if isinstance(o, SessionClosed) and o.session_id == BIG]


LARGE_TURN = of(BIG, output_ids=list(range(5_000)))
SMALL = of(BIG, turn_id="t0", prompt_messages=[{"role": "user", "content": "other"}])


@pytest.mark.parametrize("crashes", [0, 3])
@pytest.mark.parametrize("topic", [SETTINGS.samples_topic, SETTINGS.changelog_topic])
def test_a_record_that_the_broker_refuses_closes_its_session_with_totals(
    topic: str, crashes: int
) -> None:
    entries = log_with(SMALL, LARGE_TURN, ended(BIG))
    for seed in range(10):
        crashing = ran(entries, topic, crashes=crashes, seed=seed)
        check_others(crashing, entries)
        outcomes = failures(crashing)
        assert outcomes, f"seed {seed}: no outcome"
        for outcome in outcomes:
            assert (outcome.withheld, outcome.end_status) == ("core_failure", "error")
            assert (outcome.ledger, outcome.sample_ids, outcome.turns) == ([], [], 2)
            assert outcome.ledger_omitted == 2
            assert outcome.generated == 5_002
        key = write_key(MarkerKey(BIG))
        table = dict(crashing.log.topics[SETTINGS.changelog_topic])
        marker = read_marker(table[key] or b"")
        assert (marker.samples, marker.other_turns) == ([], [])
        left = {key for key, value in table.items() if value is not None and key}
        assert {key[:2] for key in left} == {b"m|"}, "rows of closed sessions go"
        letters = sent(crashing, SETTINGS.dead_letters_topic)
        assert {letter.code for letter in letters if isinstance(letter, DeadLetter)} == {
            "core_failure"
        }


def test_a_letter_that_the_broker_refuses_loses_its_payload() -> None:
    unknown = LARGE_TURN | {"turn_id": "t2", "base_turn_id": "nobody"}
    entries = log_with(SMALL, unknown, ended(BIG))
    crashing = ran(entries, SETTINGS.dead_letters_topic, crashes=0, seed=1)
    check_others(crashing, entries)
    (letter,) = sent(crashing, SETTINGS.dead_letters_topic)
    assert isinstance(letter, DeadLetter)
    assert (letter.code, letter.turn_id, letter.payload) == ("unknown_base", "t2", None)
    (outcome,) = failures(crashing)
    assert (outcome.trained, outcome.refused) == (2, 1)


@pytest.mark.parametrize("crashes", [0, 2])
def test_a_late_reward_whose_revision_the_broker_refuses_changes_nothing(crashes: int) -> None:
    reward = {"type": "reward", "session_id": BIG, "final": True}
    large = reward | {"reward_id": "a", "reward": {"score": 0.1, "why": "x" * LIMIT}}
    small = reward | {"reward_id": "b", "reward": 0.25}
    entries = log_with(SMALL, ended(BIG), large, small)
    for seed in range(5):
        crashing = ran(entries, SETTINGS.samples_topic, crashes=crashes, seed=seed)
        records = sent(crashing, SETTINGS.samples_topic)
        revised = {r.reward for r in records if isinstance(r, SampleRevised)}
        assert revised == {0.25}
        codes = {getattr(letter, "code", "") for letter in sent(crashing, LETTERS)}
        assert codes == {"oversize"}


LETTERS = SETTINGS.dead_letters_topic
