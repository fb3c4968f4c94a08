"""What a sample takes on the wire is known before it is built, and samples are built one by one."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.events import Event
from streams.core.assembly import Samples
from streams.core.effects import Effects
from streams.core.limits import Limits
from streams.core.partition import Partition
from streams.core.state import Rules
from tests.core.life import read
from tests.core.shapes import children
from tests.oracle.deltas import with_deltas
from tests.oracle.seed_and_slime import PROFILES
from tests.oracle.sessions import Session, sessions

Json = dict[str, Any]
NAMES = ("t", "ü" * 20, "🙂" * 60, "\x01" * 40, "x" * 31, "x" * 32, "y" * 190)


def closing(events: list[Json], rules: Rules) -> Effects:
    """What the last event, which ends the session, leads to."""
    partition = Partition(rules=rules)
    effects = Effects()
    for position, event in enumerate(events, 1):
        record = read(event)
        assert isinstance(record, Event), record
        effects = partition.feed(record, position)
        assert {refusal.code for refusal in effects.refusals} <= {"oversize"}
    return effects


def dressed(turn: Json, choices: random.Random) -> Json:
    """A turn with everything that its sample repeats."""
    length = len(turn["output_ids"])
    more: Json = {}
    if choices.random() < 0.5:
        more["logprobs"] = [-0.5] * length
    if choices.random() < 0.4:
        more["sampling"] = {"temperature": 1.0, "top_k": choices.choice([1, 300, 70_000])}
    if choices.random() < 0.3:
        more["continued_at"] = [[0, choices.choice([True, None])]] * choices.choice([1, 17])
        more["cache_flushed"] = True
    if choices.random() < 0.4:
        cut = choices.randint(0, length)
        more["weight_versions"] = [[7, cut], [2**40, length - cut]]
    if length > 1 and choices.random() < 0.3:
        more["untrained_runs"] = [[0, 1, "forced"]]
    if choices.random() < 0.3:
        more["reward"] = choices.choice([0.5, {"score": 1, "told": "ü"}])
    if length and choices.random() < 0.6:
        more["channels"] = {
            name: channel(length, choices)
            for name in choices.sample(["a", "ß" * 20, "experts"], choices.randint(1, 3))
        }
    return turn | more


def channel(length: int, choices: random.Random) -> Json:
    dtype, size, row = choices.choice([("int8", 1, []), ("float32", 4, [3]), ("int16", 2, [40, 2])])
    shape = [length, *row]
    if choices.random() < 0.3:
        return {"dtype": dtype, "shape": shape, "blob": "ab" * 16, "digest": "cd" * 16, "length": 5}
    for dimension in shape:
        size *= dimension
    return {"dtype": dtype, "shape": shape, "data": "00" * size}


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(session=sessions(), seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_the_size_is_that_of_the_encoding(profile: str, session: Session, seed: int) -> None:
    choices = random.Random(seed)
    *turns, end = session.events
    end = end | {"reward": choices.choice([1.0, {"score": 0.25, "why": "ü" * 300}])}
    kind = choices.choice(NAMES)
    turns = [dressed(turn, choices) for turn in turns]
    names = {turn["turn_id"]: f"{kind}{number}" for number, turn in enumerate(turns)}
    named = [turn | {"turn_id": names[turn["turn_id"]]} for turn in turns]
    identity = {"group_id": "g" * choices.choice([1, 200]), "rollout_index": 300}
    opened = {"type": "session_opened", "session_id": end["session_id"], **identity}
    limits = Limits(sample_bytes=choices.choice([10**9, 3_000]))
    events = [opened, *with_deltas([*named, end], choices)]
    effects = closing(events, Rules(limits=limits, fork_threshold_tokens=session.fork_threshold))
    assert isinstance(effects.samples, Samples)
    told = [planned.encoded_bytes for planned in effects.samples.planned]
    assert told == [len(codec.to_msgpack(sample)) for sample in effects.samples]
    assert all(size <= limits.sample_bytes for size in told)
    again = [codec.to_msgpack(sample) for sample in effects.samples]
    assert again == [codec.to_msgpack(sample) for sample in effects.samples]


def fork_closed(count: int, **limits: int) -> Effects:
    partition = Partition(rules=Rules(limits=Limits(**limits)))
    for position, turn in enumerate(children(count), 1):
        partition.feed(turn, position)
    ended = {"type": "session_ended", "session_id": "s", "end_status": "completed", "reward": 1.0}
    record = read(ended)
    assert isinstance(record, Event)
    return partition.feed(record, count + 1)


def test_samples_are_sent_in_order_until_the_sessions_bytes_are_spent() -> None:
    whole = fork_closed(300)
    assert isinstance(whole.samples, Samples)
    sizes = [planned.encoded_bytes for planned in whole.samples.planned]
    effects = fork_closed(300, sample_bytes_total=sum(sizes[:100]))
    assert effects.outcome is not None
    assert len(effects.samples) == len(effects.outcome.sample_ids) == 100
    assert {sample.count for sample in effects.samples} == {100}
    assert [sample.index for sample in effects.samples] == list(range(100))
    assert sum(sample.reward or 0 for sample in effects.samples) == pytest.approx(1.0)
    left_out = [row for row in effects.outcome.ledger if "oversize" in row.untrained]
    assert len(left_out) == len(sizes) - 100
    for row in effects.outcome.ledger:
        assert row.generated == row.trained + sum(row.untrained.values())
    assert [refusal.code for refusal in effects.refusals] == ["oversize"] * 2


def test_many_samples_that_are_left_out_are_told_in_few_letters() -> None:
    effects = fork_closed(300, sample_bytes=50)
    assert len(effects.samples) == 0
    assert len(effects.refusals) == 11
    assert effects.refusals[-1].detail.startswith("289 more")
