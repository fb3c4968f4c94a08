"""However an engine stops and tells, the generations of a turn are one sequence."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.adapters.engines.interface import Experts, Tokens
from streams.adapters.gateway.sampling.engine_labels import Sighting
from streams.adapters.gateway.sampling.experts import JoinedExperts
from streams.adapters.gateway.sampling.sampled import Sampled


@dataclass
class Truth:
    """What an engine sampled, token by token."""

    ids: list[int]
    versions: list[int]
    rows: list[tuple[int, int]]
    joins: list[int]


chunk = st.lists(st.integers(0, 1000), max_size=4)


def experts(rows: list[tuple[int, int]]) -> Experts:
    data = np.asarray(rows, np.int32).tobytes()
    return Experts(dtype="int32", shape=(len(rows), 2), data=data)


HOW = ("told", "at the end", "declared", "not at all")


@given(
    st.lists(
        st.tuples(st.lists(chunk, min_size=1, max_size=4), st.sampled_from(HOW), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_ids_versions_joins_and_experts_are_those_of_each_token(
    generations: list[tuple[list[list[int]], str, bool]],
) -> None:
    sampled, truth = Sampled(experts=JoinedExperts()), Truth([], [], [], [])
    for version, (chunks, how, flushed) in enumerate(generations):
        if version:
            sampled.join(flushed)
        sampled.begin()
        if truth.ids and any(chunks):
            truth.joins.append(len(truth.ids))
        rows: list[tuple[int, int]] = []
        for number, ids in enumerate(chunks):
            last = number == len(chunks) - 1
            rows += [(token, version) for token in ids]
            sampled.add(
                Tokens(
                    ids=tuple(ids),
                    logprobs=tuple(-float(token) for token in ids),
                    weight_version=version if how == "told" else None,
                    weight_label="default" if how == "not at all" else "step",
                    weight_runs=((version, len(rows)),) if how == "at the end" and last else None,
                    finish="abort" if last else None,
                    routed_experts=experts(rows) if last else None,
                ),
                Sighting(None, version),
            )
        truth.ids += [token for token, _ in rows]
        truth.versions += [-1 if how == "not at all" else version] * len(rows)
        truth.rows += rows
    sampled.confirm(lambda label, at: None if label == "default" else at.update)
    assert sampled.ids == truth.ids
    assert sampled.output_logprobs.tolist() == [-float(token) for token in truth.ids]
    runs = sampled.weight_versions or []
    known = any(version >= 0 for version in truth.versions)
    assert [version for version, count in runs for _ in range(count)] == truth.versions * known
    assert [count for _, count in runs if not count] == []
    assert [place for place, _ in sampled.continued_at or ()] == truth.joins
    assert sampled.experts is not None
    channel = sampled.experts.channel(len(sampled.ids))
    if not truth.ids:
        assert channel is None
        return
    assert channel is not None
    assert (channel.dtype, channel.shape) == ("int32", [len(truth.ids), 2])
    assert np.frombuffer(channel.data or b"", np.int32).reshape(-1, 2).tolist() == [
        list(row) for row in truth.rows
    ]


def some(count: int, told: Experts | None, *, wrong: str | None = None) -> Tokens:
    return Tokens(
        ids=(1,) * count,
        logprobs=(0.0,) * count,
        finish="abort",
        routed_experts=told,
        experts_wrong=wrong,
    )


THREE = experts([(1, 1)] * 3)
LOST: dict[str, tuple[list[Tokens], str]] = {
    "none of the second": ([some(3, THREE), some(3, None)], "untold"),
    "none of the first": ([some(3, None), some(3, THREE)], "untold"),
    "too few": ([some(4, THREE)], "unfit"),
    "what does not fit": ([some(3, None, wrong="23 bytes for 3 tokens")], "unfit"),
    "another width": (
        [some(3, THREE), some(1, Experts(dtype="int32", shape=(1, 3), data=bytes(12)))],
        "unfit",
    ),
    "another type": (
        [some(3, THREE), some(1, Experts(dtype="uint8", shape=(1, 2), data=bytes(2)))],
        "unfit",
    ),
    "fewer bytes than its shape": (
        [some(1, Experts(dtype="int32", shape=(1, 2), data=bytes(4)))],
        "unfit",
    ),
}


@pytest.mark.parametrize(("came", "why"), LOST.values(), ids=LOST)
def test_what_is_missing_costs_the_channel_and_nothing_else(came: list[Tokens], why: str) -> None:
    sampled = Sampled(experts=JoinedExperts())
    for tokens in came:
        sampled.begin()
        sampled.add(tokens)
    assert sampled.experts is not None
    assert (sampled.experts.channel(len(sampled.ids)), sampled.experts.lost) == (None, why)
    assert len(sampled.ids) == sum(len(tokens.ids) for tokens in came)


def test_a_generation_that_broke_off_costs_the_channel_of_those_that_follow() -> None:
    sampled = Sampled(experts=JoinedExperts())
    sampled.begin()
    sampled.add(Tokens(ids=(1,), logprobs=(0.0,)))
    sampled.begin()
    sampled.add(some(3, THREE))
    assert sampled.experts is not None
    assert (sampled.experts.channel(4), sampled.experts.lost) == (None, "untold")


def test_a_join_that_nothing_follows_is_none_and_one_place_has_one_join() -> None:
    sampled = Sampled()
    sampled.join(True)
    assert sampled.continued_at is None
    sampled.add(some(2, None))
    sampled.join(True)
    sampled.join(None)
    assert sampled.continued_at is None
    sampled.add(some(1, None))
    assert sampled.continued_at == [(2, True)]
