"""Stop strings on both sides of a join."""

import pytest

from streams.adapters.gateway.rendering.detokenising import Vocabulary
from streams.adapters.gateway.sampling.sampled import Sampled
from streams.adapters.gateway.sampling.straddling import straddles
from tests.adapters.gateway.prompts.prompt_setting import renderer

CASES: dict[str, tuple[str, str, list[str], bool]] = {
    "both sides": ("one two", " three", ["two three"], True),
    "one of several": ("one two", " three", ["four", "o th"], True),
    "before it": ("one two", " three", ["one two"], False),
    "behind it": ("one two", " three four", ["three"], False),
    "before it, and on both sides": ("a b a", " b c", ["a b"], True),
    "not complete": ("one two", " thr", ["two three"], False),
    "a control token": ("one<|im_end|>", "\n", ["<|im_end|>\n"], True),
    "none": ("one two", " three", [], False),
    "an empty one": ("one two", " three", [""], False),
    "nothing behind it": ("one two", "", ["two"], False),
}


@pytest.mark.parametrize(("before", "after", "stop", "seen"), CASES.values(), ids=CASES)
def test_only_what_stands_on_both_sides_is_seen(
    before: str, after: str, stop: list[str], seen: bool
) -> None:
    backend = renderer().backend
    first, rest = (backend.encode(t, add_special_tokens=False).ids for t in (before, after))
    joined = Sampled(ids=[*first, *rest], joins=[(len(first), None)])
    assert straddles(Vocabulary(backend), joined, stop) is seen
    assert not straddles(Vocabulary(backend), Sampled(ids=joined.ids), stop)


def test_a_character_may_be_parted_by_the_join() -> None:
    backend = renderer().backend
    ids = backend.encode("so \U0001fae0!", add_special_tokens=False).ids
    for join in range(2, len(ids) - 1):
        joined = Sampled(ids=ids, joins=[(join, None)])
        assert straddles(Vocabulary(backend), joined, ["\U0001fae0!"])
