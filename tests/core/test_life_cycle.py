"""Every order of up to five events of a session's life: one outcome, however they are delivered.

The letters are those of `life_cycle_model`, which says what must follow; here the core is run on
every ordering of up to five of the eleven events and compared fact by fact: samples, outcome
with ledger and counts, revisions with their positions, refusals by code. Two letters are the
same event as another (a duplicate, a redelivered reward), so the 64,471 orderings are 26,387
different logs. Four ways of delivery must agree on each:

    once       every event at its position
    replayed   after every event the whole log up to it again, at the same positions: nothing
               is sent but what was sent before, under the same position
    restarted  before every event the open session is rebuilt from the rows kept for it
    doubled    every event twice in a row, at two new positions: the model is right about these
               logs too; and against `once` the samples are the same, the outcome is the same but
               for its counts, a revision at position p is now at 2p - 1, and each event is
               refused by the same code as it was
"""

from collections.abc import Iterator
from itertools import permutations
from math import perm

import pytest

from schemas.events import Event, SessionExpired
from schemas.samples import SampleRevised
from streams.core.effects import EVENT_ROW, Effects
from streams.core.partition import Partition
from streams.core.session import Row, restore
from streams.core.state import OpenSession, Rules
from tests.core.life import SESSION, T1, T2, end, read, reward
from tests.core.life_cycle_model import END_REWARD, LETTERS, REWARDS, Fact, Model
from tests.core.notation import Json

LONGEST = 5
RULES = Rules()


def decoded(event: Json) -> Event:
    record = read(event)
    assert isinstance(record, Event)
    return record


EVENTS: dict[str, Event] = {
    "T": decoded(T1),
    "D": decoded(T1),
    "L": decoded(T2),
    "E": decoded(end(reward=END_REWARD)),
    "P": decoded(end(reward_pending=True)),
    **{
        letter: decoded(reward(value, reward_id, final=letter != "r"))
        for letter, (reward_id, value) in REWARDS.items()
    },
}
LAST_TURN: dict[str, str] = {}
"""Sample ids seen so far, with the last turn of the sample; an id never means two."""


def facts(effects: Effects) -> list[Fact]:
    """The effects in the model's words; whatever does not add up fails here."""
    found: list[Fact] = []
    for sample in effects.samples:
        last = sample.turns[-1].turn_id
        assert LAST_TURN.setdefault(sample.sample_id, last) == last
        assert sample.revision == 0
        assert sample.trained == sample.generated == sum(e - s for s, e in sample.loss_mask)
        found.append(("sample", last, sample.reward, sample.session_reward))
    for revised in effects.revisions:
        found.append(revision(revised))
    if (outcome := effects.outcome) is not None:
        assert outcome.sample_ids == [sample.sample_id for sample in effects.samples]
        ledger = []
        for row in outcome.ledger:
            assert row.generated == row.trained + sum(row.untrained.values())
            reasons = tuple(row.untrained) or (None,)
            assert len(reasons) == 1
            ledger.append((row.turn_id, row.generated, reasons[0]))
        assert outcome.trained == sum(sample.trained for sample in effects.samples)
        said = (outcome.end_status, outcome.withheld, outcome.implied_end, outcome.reward)
        counts = (outcome.duplicates, outcome.ignored, outcome.refused)
        found.append(("closed", *said, tuple(ledger), counts))
    found += [("refused", error.code) for error in effects.refusals]
    return [*found, ("ignored",)] if effects.ignored else found


def revision(revised: SampleRevised) -> Fact:
    last = LAST_TURN[revised.sample_id]
    return ("revised", last, revised.reward, revised.session_reward, revised.revision)


Log = list[tuple[int, Event]]


def told(letters: str, times: int = 1) -> tuple[Log, list[list[Fact]]]:
    """The log of these letters, each event `times` in a row, and what must follow from each."""
    model, log, expected = Model(), Log(), []
    for letter in letters:
        event = EVENTS.get(letter)
        position = len(log) + 1
        last_offset = {"N": model.newest or position - 1, "X": model.newest - 1}.get(letter)
        if event is None:
            event = SessionExpired(session_id=SESSION, last_offset=last_offset)
        for again in range(position, position + times):
            log.append((again, event))
            expected.append(model.step(letter, again, last_offset))
    expected.append(model.finish())
    return log, expected


def finished(partition: Partition) -> list[Fact]:
    return [fact for effects in partition.finish() for fact in facts(effects)]


def once(log: Log) -> list[list[Fact]]:
    partition = Partition(rules=RULES)
    found = [facts(partition.feed(event, position)) for position, event in log]
    return [*found, finished(partition)]


def replayed(log: Log) -> list[list[Fact]]:
    partition = Partition(rules=RULES)
    found: list[list[Fact]] = []
    for position, event in log:
        found.append(facts(partition.feed(event, position)))
        for place in range(position):
            again = partition.feed(log[place][1], log[place][0]).records()
            # Only what comes after the close may be sent again, and only as it was.
            revisions = [fact for fact in found[place] if fact[0] == "revised"]
            assert [revision(record) for record in again if isinstance(record, SampleRevised)] == (
                revisions if again else []
            )
            assert len(again) in (0, len(revisions))
    return [*found, finished(partition)]


def restarted(log: Log) -> list[list[Fact]]:
    partition = Partition(rules=RULES)
    rows: list[Row] = []
    found: list[list[Fact]] = []
    for position, event in log:
        rebuild(partition, rows)
        effects = partition.feed(event, position)
        found.append(facts(effects))
        if effects.row == EVENT_ROW:
            rows.append(Row(position, event))
        elif effects.row is not None:
            rows.append(Row(position, None, effects.row))
    rebuild(partition, rows)
    return [*found, finished(partition)]


def rebuild(partition: Partition, rows: list[Row]) -> None:
    """Forget the open session, then read its rows."""
    if isinstance(partition.sessions.get(SESSION), OpenSession):
        state = restore(rows, RULES, "s")
        assert isinstance(state, OpenSession)
        partition.sessions[SESSION] = state


def without_counts(found: list[list[Fact]]) -> list[Fact]:
    """Samples and outcome, wherever they stand; the outcome less its counts."""
    kept = [fact for at in found for fact in at if fact[0] in ("sample", "closed")]
    return [fact[:-1] if fact[0] == "closed" else fact for fact in kept]


def check_doubled(single: list[list[Fact]], double: list[list[Fact]]) -> None:
    assert without_counts(double) == without_counts(single)
    for place, found in enumerate(single[:-1]):
        first = double[2 * place]
        revised = [(*fact[:-1], 2 * place + 1) for fact in found if fact[0] == "revised"]
        assert [fact for fact in first if fact[0] == "revised"] == revised
        assert [f for f in first if f[0] == "refused"] == [f for f in found if f[0] == "refused"]
        assert [fact for fact in double[2 * place + 1] if fact[0] == "revised"] == []


def outcomes(found: list[list[Fact]]) -> int:
    return sum(fact[0] == "closed" for at in found for fact in at)


def orderings() -> Iterator[str]:
    """Every ordering of up to `LONGEST` different letters."""
    for length in range(1, LONGEST + 1):
        yield from map("".join, permutations(LETTERS, length))


SAME_EVENT = str.maketrans("Dq", "TR")
LOGS = sorted({letters.translate(SAME_EVENT) for letters in orderings()})


def test_the_orderings_are_these_many_logs() -> None:
    assert sum(1 for _ in orderings()) == sum(perm(11, length) for length in range(1, 6)) == 64_471
    assert len(LOGS) == 26_387
    assert EVENTS["D"] == EVENTS["T"]
    assert EVENTS["q"] == EVENTS["R"]


@pytest.mark.parametrize("first", sorted({letters[0] for letters in LOGS}))
def test_every_ordering_gives_one_outcome_however_it_is_delivered(first: str) -> None:
    for letters in (log for log in LOGS if log[0] == first):
        log, expected = told(letters)
        single = once(log)
        assert single == expected, letters
        assert outcomes(single) == any(letter in "TLEP" for letter in letters), letters
        assert replayed(log) == expected, letters
        assert restarted(log) == expected, letters
        log, expected = told(letters, times=2)
        double = once(log)
        assert double == expected, letters
        check_doubled(single, double)
