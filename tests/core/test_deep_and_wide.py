"""Sessions of many thousand turns: the right samples, no recursion, linear cost.

Cost is counted, not timed: the instructions that the core's own code executes, and the bytes of
tokens it reads back, for n and for 2n turns. What is linear at most doubles; a little more is
left for dictionaries that grow.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import streams.core
from schemas.events import SessionEnded, Turn
from schemas.samples import Sample, SessionClosed
from streams.core.partition import Partition
from streams.core.policy import PROFILES
from tests.core.shapes import SHAPES, SUBAGENT_TURNS, children, drifting, path, retries, subagents

CORE = str(Path(streams.core.__file__).parent)
DOUBLED_AT_MOST = 2.3
FRAMES_LEFT = 60
"""Enough for the calls of the core, far too few for one a turn."""


def linearized(
    turns: list[Turn], profile: str = "seed"
) -> tuple[tuple[Sample, ...], SessionClosed]:
    partition = Partition(forced_policy=PROFILES[profile])
    for position, turn in enumerate(turns, 1):
        effects = partition.feed(turn, position)
        assert effects.refusals == ()
    end = SessionEnded(session_id="s", end_status="completed", reward=1.0)
    effects = partition.feed(end, len(turns) + 1)
    assert effects.refusals == ()
    assert effects.outcome is not None
    return tuple(effects.samples), effects.outcome


@contextmanager
def little_stack() -> Iterator[None]:
    """As good as no recursion allowed."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + FRAMES_LEFT)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


# --- right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_ten_thousand_turns_on_one_path_are_one_sample(profile: str) -> None:
    turns = path(10_000)
    with little_stack():
        (sample,), outcome = linearized(turns, profile)
    whole = [token for turn in turns for token in (*turn.prompt_ids, *turn.output_ids)]
    assert sample.tokens.tolist() == whole
    assert sample.loss_mask == [(start, start + 2) for start in range(2, len(whole), 4)]
    assert sample.trained == outcome.trained == outcome.generated == 20_000
    assert [row.attach for row in outcome.ledger] == ["root"] + ["extend"] * 9_999


@pytest.mark.parametrize(("profile", "trained"), [("seed", 2), ("slime", 2), ("lossless", 2_000)])
def test_a_path_that_drifts_at_every_turn_is_realigned_or_forked(
    profile: str, trained: int
) -> None:
    # Every fork is a sample with its whole prompt, so this path is kept shorter.
    turns = drifting(1_000)
    with little_stack():
        samples, outcome = linearized(turns, profile)
    assert outcome.trained == trained == sum(sample.trained for sample in samples)
    assert len(samples) == (len(turns) if profile == "lossless" else 1)
    last = samples[-1].tokens
    assert last[-2:].tolist() == turns[-1].output_ids.tolist()
    assert last.size == 4 * len(turns)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_thousand_children_of_one_turn_are_a_thousand_samples(profile: str) -> None:
    turns = children(1_001)
    with little_stack():
        samples, outcome = linearized(turns, profile)
    assert len(samples) == 1_000
    assert [sample.trained for sample in samples] == [4] + [2] * 999
    first = [*turns[0].prompt_ids, *turns[0].output_ids]
    for sample, turn in zip(samples, turns[1:], strict=True):
        assert sample.tokens.tolist() == [*first, *turn.prompt_ids, *turn.output_ids]
        assert [span.turn_id for span in sample.turns] == ["t1", turn.turn_id]
    assert outcome.trained == outcome.generated == 2_002


@pytest.mark.parametrize("profile", PROFILES)
def test_a_thousand_retries_of_one_prompt_are_a_thousand_samples(profile: str) -> None:
    turns = retries(1_000)
    with little_stack():
        samples, _ = linearized(turns, profile)
    assert [sample.tokens.tolist() for sample in samples] == [
        [*turn.prompt_ids, *turn.output_ids] for turn in turns
    ]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_thousand_interleaved_subagents_are_a_thousand_samples(profile: str) -> None:
    turns = subagents(1_000 * SUBAGENT_TURNS)
    with little_stack():
        samples, outcome = linearized(turns, profile)
    assert len(samples) == 1_000
    for number, sample in enumerate(samples):
        own = turns[number::1_000]
        assert [span.turn_id for span in sample.turns] == [turn.turn_id for turn in own]
        assert sample.tokens.tolist() == [
            token for turn in own for token in (*turn.prompt_ids, *turn.output_ids)
        ]
    assert outcome.trained == outcome.generated == 2 * len(turns)


def test_the_depth_allowed_would_not_do_for_a_recursion() -> None:
    def deep(levels: int) -> int:
        return 0 if levels == 0 else 1 + deep(levels - 1)

    with little_stack(), pytest.raises(RecursionError):
        deep(1_000)


# --- and linear ----------------------------------------------------------------------------------


@dataclass
class Cost:
    instructions: int = 0
    bytes_read: int = 0

    def trace(self, frame: FrameType, event: str, arg: Any) -> "Callable[..., Any] | None":
        if event == "call":
            if not frame.f_code.co_filename.startswith(CORE):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            self.instructions += 1
        elif event == "return" and frame.f_code.co_name == "read":
            self.bytes_read += len(arg)
        return self.trace


def cost_of(shape: Callable[[int], list[Turn]], count: int, profile: str) -> Cost:
    # Python 3.13 counts no instruction of a function's first call under a trace.
    traced(shape(count // 10), profile)
    return traced(shape(count), profile)


def traced(turns: list[Turn], profile: str) -> Cost:
    cost = Cost()
    before = sys.gettrace()
    frame = inspect.currentframe()
    assert frame is not None
    frame.f_trace_opcodes = True  # Python 3.12 looks for it when the trace is set, not later
    sys.settrace(cost.trace)
    try:
        linearized(turns, profile)
    finally:
        sys.settrace(before)
    return cost


LINEAR = [
    *((shape, "seed", 300) for shape in SHAPES if shape != "drifting"),
    # The two rules of merging look at other answers differently.
    ("foreign", "slime", 300),
    # Drift is counted on fewer turns, so that a cost that is not linear is not waited for.
    ("drifting", "seed", 100),
    ("drifting", "slime", 100),
]


@pytest.mark.parametrize(("shape", "profile", "count"), LINEAR)
def test_twice_the_turns_cost_twice_the_work(shape: str, profile: str, count: int) -> None:
    once, twice = (cost_of(SHAPES[shape], n, profile) for n in (count, 2 * count))
    assert once.instructions > 100 * count
    assert twice.instructions / once.instructions < DOUBLED_AT_MOST
    assert twice.bytes_read <= DOUBLED_AT_MOST * once.bytes_read
