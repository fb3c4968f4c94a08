"""A session's samples as one tree: nothing is lost, and no prefix stands twice."""

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.packed import Packed
from schemas.samples import Sample
from streams.core.packing import packed, path_of, unpacked
from tests.harness import linearized
from tests.oracle.sessions import Session, sessions
from tests.trainer.records import sample

PATHS = st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=8)


def of_tokens(paths: list[list[int]]) -> list[Sample]:
    """Samples of one session with these tokens, every second one of them trained."""
    made = []
    for index, path in enumerate(paths):
        tokens = np.array(path, np.int32)
        mask = [(at, at + 1) for at in range(1, len(path), 2)]
        logprobs = np.zeros(len(path), np.float32)
        logprobs[1::2] = -1.0 - index
        fields = {"tokens": tokens, "loss_mask": mask, "logprobs": logprobs}
        made.append(sample("s", index, len(paths), **fields))
    return made


def trie_size(paths: list[list[int]]) -> int:
    """Distinct prefixes: what no form that keeps the order of tokens can go below."""
    return len({tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)})


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(paths=PATHS)
def test_unpacking_gives_the_samples_and_every_prefix_stands_once(paths: list[list[int]]) -> None:
    samples = of_tokens(paths)
    tree = packed(samples)
    assert unpacked(tree) == samples
    assert tree.tokens == trie_size(paths)
    assert all(node.parent < number for number, node in enumerate(tree.nodes))
    assert all(node.tokens.size for node in tree.nodes)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(session=sessions())
def test_what_the_core_gives_for_a_session_comes_back_from_both_spellings(session: Session) -> None:
    lines = linearized(session.events, profile="lossless").samples
    samples = [codec.from_json(msgspec.json.encode(line)) for line in lines]
    given_samples = [one for one in samples if isinstance(one, Sample)]
    if not given_samples:
        return
    tree = packed(given_samples)
    for again in (codec.from_json(codec.to_json(tree)), codec.from_msgpack(codec.to_msgpack(tree))):
        assert isinstance(again, Packed)
        assert again == tree
        assert unpacked(again) == given_samples


def test_a_branch_walks_down_its_nodes() -> None:
    tree = packed(of_tokens([[1, 2, 3], [1, 2, 4, 5], [1, 2]]))
    assert [node.tokens.tolist() for node in tree.nodes] == [[1, 2], [3], [4, 5]]
    assert [path_of(tree, branch) for branch in tree.branches] == [[0, 1], [0, 2], [0]]
    steps = [step for branch in tree.branches for step in pairwise(path_of(tree, branch))]
    assert all(tree.nodes[lower].parent == upper for upper, lower in steps)


def test_samples_of_two_sessions_are_no_tree() -> None:
    with pytest.raises(ValueError, match="not of one session"):
        packed([sample("a"), sample("b")])
