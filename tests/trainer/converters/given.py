"""Samples to convert: one that is worked out by hand, and any that could be.

position         0    1    2    3    4    5    6    7
token           10   11   12   13   14   15   16   17
trained          .    .    .    x    x    .    x    x
logprob                        -1   -2        -3   -4
weights                         4    4         5    5
temperature                    0.5  0.5       1.0  1.0
turn                           t1   t1        t2   t2
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from schemas.events import Sampling
from schemas.samples import Sample, TurnSpan


@dataclass(frozen=True)
class Given:
    """A row as a converter reads it."""

    sample: Sample
    advantage: float | None = 0.5
    weight: float = 1.0
    token_weight: float = 0.25


def turn(name: str, start: int, end: int, temperature: float | None = 1.0) -> TurnSpan:
    sampling = Sampling(temperature=temperature)
    return TurnSpan(turn_id=name, start=start, end=end, attach="extend", sampling=sampling)


WORKED = Sample(
    sample_id="s1",
    session_id="session_1",
    rollout_id="session_1",
    group_id="task_7",
    rollout_index=2,
    index=0,
    count=1,
    tokens=np.arange(10, 18, dtype=np.int32),
    prompt_len=3,
    loss_mask=[(3, 5), (6, 8)],
    logprobs=np.array([0, 0, 0, -1, -2, 0, -3, -4], np.float32),
    reward=1.0,
    session_reward=2.0,
    policy="seed",
    revision=0,
    weight_versions=[(4, 3, 5), (5, 6, 8)],
    turns=[turn("t1", 3, 5, 0.5), turn("t2", 6, 8)],
    end_status="completed",
    generated=4,
    trained=4,
)
WITHOUT_LOGPROBS = msgspec.structs.replace(
    WORKED,
    sample_id="s2",
    logprobs=np.array([0, 0, 0, -1, -2, 0, 0, 0], np.float32),
    logprobs_missing=[(6, 8)],
)
"""The engine gave none for the second turn."""


def row(sample: Sample = WORKED, *, advantage: float | None = 0.5, **changes: Any) -> Given:
    """The worked sample with changes, in a row."""
    return Given(msgspec.structs.replace(sample, **changes), advantage)


def forked() -> list[Given]:
    """A rollout of two samples beside one of one, of the same group."""
    names = [("a", 0, 2), ("a", 1, 2), ("b", 0, 1)]
    return [
        Given(
            msgspec.structs.replace(
                WORKED,
                sample_id=f"{session}{index}",
                session_id=session,
                rollout_id=session,
                rollout_index="ab".index(session),
                index=index,
                count=count,
                session_reward=1.0 if session == "a" else 0.0,
            ),
            advantage=0.5 if session == "a" else -0.5,
            weight=1 / count,
            token_weight=1 / (4 * count),
        )
        for session, index, count in names
    ]


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Turns between stretches of context; of each turn a part trains, some without logprobs."""
    at = draw(st.integers(1, 5))
    turns: list[TurnSpan] = []
    trained: list[tuple[int, int]] = []
    missing: list[tuple[int, int]] = []
    versions: list[tuple[int, int, int]] = []
    for number in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 6))
        end = at + length
        turns.append(turn(f"t{number}", at, end, draw(st.sampled_from([0.5, 1.0, 1.5]))))
        low = draw(st.integers(at, end - 1))
        high = draw(st.integers(low + 1, end))
        # The last turn has logprobs, so that something is left to train.
        if number and draw(st.booleans()):
            missing.append(trained[-1])
        trained.append((low, high))
        versions.append((draw(st.integers(0, 9)), low, high))
        # At least one token between turns keeps the runs apart, as they are in a sample.
        at = end + draw(st.integers(1, 4))
    length = at - draw(st.integers(0, 1))
    logprobs = np.zeros(length, np.float32)
    for start, stop in trained:
        if (start, stop) not in missing:
            for position in range(start, stop):
                logprobs[position] = -draw(st.floats(0.125, 30, width=32))
    return msgspec.structs.replace(
        WORKED,
        tokens=np.array(
            draw(st.lists(st.integers(0, 200_000), min_size=length, max_size=length)), np.int32
        ),
        prompt_len=trained[0][0],
        loss_mask=trained,
        logprobs=logprobs,
        logprobs_missing=missing or None,
        weight_versions=versions,
        turns=turns,
        trained=sum(stop - start for start, stop in trained),
    )


def batches() -> st.SearchStrategy[list[Given]]:
    """Some rows, each a rollout of its own group."""
    return st.lists(samples(), min_size=1, max_size=4).map(
        lambda drawn: [
            Given(
                msgspec.structs.replace(each, session_id=f"r{n}", rollout_id=f"r{n}", group_id="g"),
                advantage=float(n + 1),
                token_weight=1 / each.trained,
            )
            for n, each in enumerate(drawn)
        ]
    )
