"""Runs of weight versions, told with the tokens or at the end."""

import pytest

from streams.adapters.engines.interface import Tokens
from streams.adapters.gateway.sampling.sampled import Sampled

Runs = tuple[tuple[int | None, int], ...]


def some(count: int, version: int | None = None, runs: Runs | None = None) -> Tokens:
    ids = tuple(range(count))
    return Tokens(ids=ids, logprobs=(-0.5,) * count, weight_version=version, weight_runs=runs)


BEGINS = None
"""Another generation."""
CASES: dict[str, tuple[list[Tokens | None], list[tuple[int, int]] | None]] = {
    "told with each": ([some(2, 1), some(1, 1), some(3, 2)], [(1, 3), (2, 3)]),
    "told of none": ([some(2), some(1)], None),
    "told of some": ([some(2, 1), some(1)], [(1, 2), (-1, 1)]),
    "nothing sampled": ([some(0, 1)], None),
    "told at the end": ([some(2), some(3, runs=((1, 4), (2, 1)))], [(1, 4), (2, 1)]),
    "told at the end, without a token": ([some(2), some(0, runs=((1, 2),))], [(1, 2)]),
    "corrected at the end": ([some(2, 1), some(2, 2, ((1, 3), (2, 1)))], [(1, 3), (2, 1)]),
    "the end of the second generation says nothing of the first": (
        [some(2, runs=((1, 2),)), BEGINS, some(1), some(2, runs=((1, 1), (2, 2)))],
        [(1, 3), (2, 2)],
    ),
    "a generation that was cut says nothing": (
        [some(2), BEGINS, some(2, runs=((1, 2),))],
        [(-1, 2), (1, 2)],
    ),
    "more than came": ([some(2, runs=((1, 1), (2, 4)))], [(1, 1), (2, 1)]),
    "more than came, of the second generation": (
        [some(3, 1), BEGINS, some(2, runs=((2, 4),))],
        [(1, 3), (2, 2)],
    ),
    "fewer than came": ([some(2, 3), some(1, 4, runs=((2, 1), (3, 1)))], [(2, 1), (3, 1), (4, 1)]),
    "fewer than came, and nothing before": (
        [some(2), some(1, runs=((2, 1),))],
        [(2, 1), (-1, 2)],
    ),
    "less than nothing": ([some(3, runs=((1, 2), (2, -1), (3, 1)))], [(1, 2), (3, 1)]),
    "a label that is no number": ([some(2), some(1, runs=((None, 3),))], None),
    "a label that is no number, then one": (
        [some(3, runs=((None, 2), (1, 1)))],
        [(-1, 2), (1, 1)],
    ),
}


@pytest.mark.parametrize(("came", "runs"), CASES.values(), ids=CASES)
def test_runs_cover_every_token_if_any_is_known(
    came: list[Tokens | None], runs: list[tuple[int, int]] | None
) -> None:
    sampled = Sampled()
    for tokens in came:
        if tokens is BEGINS:
            sampled.begin()
        else:
            sampled.add(tokens)
    assert sampled.weight_versions == runs
    sampled.run_has_versions = True
    unknown = [(-1, len(sampled.ids))] if sampled.ids else None
    assert sampled.weight_versions == (runs or unknown)
    assert sum(count for _, count in sampled.versions) == len(sampled.ids)
