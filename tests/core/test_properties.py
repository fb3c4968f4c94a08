"""What holds for every session, whatever the profile: deltas, redelivery, the ledger."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness import Linearized, linearized
from tests.oracle.deltas import with_deltas
from tests.oracle.seed_and_slime import PROFILES
from tests.oracle.sessions import Session, sessions

Event = dict[str, Any]
every_profile = pytest.mark.parametrize("profile", PROFILES)
some_sessions = settings(max_examples=500, deadline=None, derandomize=True, database=None)
seeds = st.integers(min_value=0, max_value=2**32 - 1)


def read(session: Session, events: list[Event], profile: str) -> Linearized:
    return linearized(events, profile=profile, fork_threshold=session.fork_threshold)


def as_text(records: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(record) for record in records)


def with_redeliveries(events: list[Event], choices: random.Random) -> list[Event]:
    """Every turn once more, anywhere behind itself but before the end; then the end twice."""
    *turns, end = events
    delivered = list(turns)
    for turn in turns:
        first = delivered.index(turn)
        delivered.insert(choices.randint(first + 1, len(delivered)), turn)
    return [*delivered, end, end]


def trained_tokens(samples: list[dict[str, Any]]) -> int:
    return sum(end - start for sample in samples for start, end in sample["loss_mask"])


@every_profile
@some_sessions
@given(session=sessions(), seed=seeds)
def test_delta_events_give_the_samples_of_full_ones(
    profile: str, session: Session, seed: int
) -> None:
    full = read(session, session.events, profile)
    short = read(session, with_deltas(session.events, random.Random(seed)), profile)
    assert short.dead_letters == []
    assert as_text(short.samples) == as_text(full.samples)
    assert as_text(short.closed) == as_text(full.closed)


@every_profile
@some_sessions
@given(session=sessions(), seed=seeds)
def test_a_redelivered_event_changes_nothing_but_the_count_of_duplicates(
    profile: str, session: Session, seed: int
) -> None:
    once = read(session, session.events, profile)
    twice = read(session, with_redeliveries(session.events, random.Random(seed)), profile)
    assert twice.dead_letters == []
    assert as_text(twice.samples) == as_text(once.samples)
    (closed_once,), (closed_twice,) = once.closed, twice.closed
    assert closed_twice["duplicates"] == len(session.events) - 1
    assert closed_twice == closed_once | {"duplicates": len(session.events) - 1}


@every_profile
@some_sessions
@given(session=sessions())
def test_the_ledger_accounts_for_every_sampled_token(profile: str, session: Session) -> None:
    result = read(session, session.events, profile)
    (closed,) = result.closed
    turns = session.events[:-1]
    assert [row["turn_id"] for row in closed["ledger"]] == [turn["turn_id"] for turn in turns]
    for row, turn in zip(closed["ledger"], turns, strict=True):
        assert row["generated"] == len(turn["output_ids"])
        assert row["generated"] == row["trained"] + sum(row.get("untrained", {}).values())
    trained = trained_tokens(result.samples)
    assert closed["trained"] == trained == sum(row["trained"] for row in closed["ledger"])
    assert closed["generated"] == sum(row["generated"] for row in closed["ledger"])
    assert closed["sample_ids"] == [sample["sample_id"] for sample in result.samples]


@some_sessions
@given(session=sessions())
def test_under_lossless_every_sampled_token_trains_exactly_once(session: Session) -> None:
    result = read(session, session.events, "lossless")
    sampled = sum(len(turn["output_ids"]) for turn in session.events[:-1])
    assert trained_tokens(result.samples) == sampled
