"""A worker that takes over in the middle of any life goes on as if nothing had happened.

Random sessions as in `test_restore`, with everything else a log holds between their turns:
openings, rewards of sessions and turns, reports, duplicates, refused events, expiries of old and
new offsets, ends that wait, late turns. After every event the open session is forgotten and
rebuilt from its rows; or the whole log so far is delivered again. Samples, outcome with its
counts, revisions and refusals are those of a run without a break, record by record.
"""

import random
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import Event
from streams.core.policy import PROFILES, Policy
from streams.core.session import Row, apply, restore
from streams.core.state import ClosedSession, OpenSession, Rules
from tests.core.life import (
    T1,
    Run,
    end,
    event,
    expired,
    opened,
    ran,
    ran_with_replays,
    ran_with_restarts,
    read,
    reward,
    undelivered,
)
from tests.core.notation import Json
from tests.oracle.deltas import with_deltas
from tests.oracle.sessions import Session, sessions

SOURCES = ("a", "b")
VARIANTS: dict[str, Policy] = {
    **PROFILES,
    "seed, everything switched": replace(
        PROFILES["seed"],
        drop_retry_orphans=True,
        train_undelivered=True,
        realign_masks="from_divergence",
        gaps="prefix",
        require_reward=False,
        train_statuses=frozenset({"completed", "expired"}),
    ),
}


def between(turns: list[Json], position: int, dice: random.Random, *, gaps: bool) -> Json:
    """Some event that may stand between two turns; many of them are bad."""
    turn_id = dice.choice(turns)["turn_id"]
    number = {"source": dice.choice(SOURCES), "seq": dice.randint(1, 9)} if gaps else {}
    choices = [
        reward(dice.random(), dice.choice("abc"), final=dice.random() < 0.5),
        reward(dice.random(), dice.choice("abc"), turn_id=turn_id),
        reward(float("nan"), "nan"),
        undelivered(turn_id, **number),
        expired(dice.randint(0, position - 2)),
        opened(group_id=dice.choice("gh"), budgets={"turns": 12}),
        dice.choice(turns),
        dice.choice(turns) | {"output_ids": [5, 5, 5], "logprobs": []},
        dice.choice(turns) | {"turn_id": "new", "base_turn_id": "nobody"},
        event("turn", turn_id="broken"),
    ]
    return dice.choice(choices)


def lived(session: Session, dice: random.Random) -> list[Json]:
    """The session's turns, with a life between and behind them; half are numbered, with gaps."""
    *turns, _ = with_deltas(session.events, dice)
    gaps = dice.random() < 0.5
    events = [opened(group_id="g", metadata={"a": 1})] if dice.random() < 0.5 else []
    for turn in turns:
        numbered = gaps and dice.random() < 0.3
        numbers = {"source": dice.choice(SOURCES), "seq": dice.randint(1, 4)} if numbered else {}
        events.append(turn | numbers | ({"reward": 0.5} if dice.random() < 0.2 else {}))
        while dice.random() < 0.5:
            events.append(between(turns, len(events) + 1, dice, gaps=gaps))
    events += dice.choice(([end()], [end(reward=1.0)], [expired(len(events))], []))
    for _ in range(dice.randint(0, 3)):
        events.append(between(turns, len(events) + 1, dice, gaps=gaps))
    return events + dice.choice(
        ([], [reward(0.25, "last")], [expired(len(events))], [end("error")])
    )


def all_of(run: Run) -> tuple[list[str], list[Json], list[Json], list[Json]]:
    assert run.transcript or not run.closed
    return run.lines, run.samples, run.closed, run.revised


@pytest.mark.parametrize("policy", VARIANTS.values(), ids=VARIANTS)
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(session=sessions(), seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_any_life_goes_on_after_any_break(policy: Policy, session: Session, seed: int) -> None:
    events = lived(session, random.Random(seed))
    rules = Rules(
        default_policy=replace(policy, fork_threshold_tokens=session.fork_threshold),
        default_reward=0.125 if seed % 4 == 0 else None,
    )
    steady = all_of(ran(events, rules))
    assert all_of(ran_with_restarts(events, rules)) == steady
    assert all_of(ran_with_replays(events, rules)) == steady


def test_the_lives_are_various() -> None:
    """Each thing that may happen does, often enough to be tested."""
    seen: dict[str, int] = {}
    words = [
        *("sample", "revised", "ignored", "late_turn", "late_reward", "forked_turn_id", "gaps"),
        *("unknown_base", "closed expired", "withheld no_reward", "duplicates", "implied"),
    ]

    @settings(max_examples=200, deadline=None, derandomize=True, database=None)
    @given(session=sessions(), seed=st.integers(min_value=0, max_value=2**32 - 1))
    def count(session: Session, seed: int) -> None:
        transcript = ran(lived(session, random.Random(seed))).transcript
        for word in words:
            seen[word] = seen.get(word, 0) + (word in transcript)

    count()
    assert {word: count for word, count in seen.items() if count < 6} == {}


def test_a_timeout_that_an_older_worker_kept_waiting_waits_on() -> None:
    kept = [read(T1), read(end("timeout"))]
    rows = [Row(at, one, None) for at, one in enumerate(kept, 1) if isinstance(one, Event)]
    state = restore(rows, Rules(), "s")
    assert isinstance(state, OpenSession)
    closed, effects = apply(state, cast(Event, read(reward(0.5))), 3, Rules())
    assert isinstance(closed, ClosedSession)
    assert [sample.reward for sample in effects.samples] == [0.5]
