"""Both gates at thresholds 0, 1, N-1, N and N+1: exclusive, and closed at 0.

Golden by hand. The realign gate counts the drifted tail under seed and the new output under
slime; the merge gate counts the response of the leaf that would be merged, in both.
"""

import pytest

from tests.core.golden import Case
from tests.core.notation import Json, cut, replace, session, turn

# `okay}` is [7, 12) and `done}` has 5 tokens; the echo leaves `okay}` at 9: a tail of 3.
TAIL_3_OUTPUT_5 = session(turn("«S»<u>", "okay"), turn("«S»<u>{okay}(x)", "done", drift=replace(9)))
# The other way round: the whole `okay}` drifts, a tail of 5; `k}` has 2 tokens.
TAIL_5_OUTPUT_2 = session(turn("«S»<u>", "okay"), turn("«S»<u>{okay}(x)", "k", drift=replace(7)))
# The prompt ends after `oka`: a tail of 2 is missing; the output is empty.
TAIL_2_OUTPUT_0 = session(turn("«S»<u>", "okay"), turn("«S»<u>{okay}(x)", None, drift=cut(10)))
# A leaf of 3 tokens, rewritten.
LEAF_3 = session(turn("«S»<u>", "ok"), turn("«S»<u>{ok }(x)", "done"))
# Leaves of 3 and 5 tokens under one prompt, then an answer that is neither.
LEAVES_3_AND_5 = session(
    turn("«S»<u>", "ok"), turn("«S»<u>", "okay"), turn("«S»<u>{hm}(x)", "done")
)

FORKED_3_5 = """
    «S»<u>{[okay}]  reward 1/2 | 1
    «S»<u>{ok!y}(x){[done}]  reward 1/2 | 1
    """
REALIGNED_3_5 = "«S»<u>{ok!y}(x){[done}]  reward 1"
FORKED_5_2 = """
    «S»<u>{[okay}]  reward 1/2 | 1
    «S»<u>{!kay}(x){[k}]  reward 1/2 | 1
    """
REALIGNED_5_2 = "«S»<u>{!kay}(x){[k}]  reward 1"
# Nothing of an empty output trains: after a fork t1 is left, after a realign nothing.
FORKED_2_0 = "«S»<u>{[okay}]  reward 1"
REALIGNED_2_0 = ""
FORKED_LEAF = """
    «S»<u>{[ok}]  reward 1/2 | 1
    «S»<u>{ok·}(x){[done}]  reward 1/2 | 1
    """
MERGED_LEAF = "«S»<u>{ok·}(x){[done}]  reward 1"
THREE_LEAVES = """
    «S»<u>{[ok}]  reward 1/3 | 1
    «S»<u>{[okay}]  reward 1/3 | 1
    «S»<u>{hm}(x){[done}]  reward 1/3 | 1
    """
FIRST_LEAF_MERGED = """
    «S»<u>{hm}(x){[done}]  reward 1/2
    «S»<u>{[okay}]  reward 1/2
    """

Row = tuple[list[Json], str, dict[int, str]]
"""Events, profile, and the golden samples at each threshold."""

TABLE: dict[str, Row] = {
    "realign, tail 3, output 5": (
        TAIL_3_OUTPUT_5,
        "seed",
        {
            0: FORKED_3_5,
            1: FORKED_3_5,
            2: FORKED_3_5,
            3: FORKED_3_5,
            4: REALIGNED_3_5,
            5: REALIGNED_3_5,
            6: REALIGNED_3_5,
        },
    ),
    "realign, output 5, tail 3": (
        TAIL_3_OUTPUT_5,
        "slime",
        {
            0: FORKED_3_5,
            1: FORKED_3_5,
            2: FORKED_3_5,
            3: FORKED_3_5,
            4: FORKED_3_5,
            5: FORKED_3_5,
            6: REALIGNED_3_5,
        },
    ),
    "realign, tail 5, output 2": (
        TAIL_5_OUTPUT_2,
        "seed",
        {
            0: FORKED_5_2,
            1: FORKED_5_2,
            2: FORKED_5_2,
            3: FORKED_5_2,
            4: FORKED_5_2,
            5: FORKED_5_2,
            6: REALIGNED_5_2,
        },
    ),
    "realign, output 2, tail 5": (
        TAIL_5_OUTPUT_2,
        "slime",
        {
            0: FORKED_5_2,
            1: FORKED_5_2,
            2: FORKED_5_2,
            3: REALIGNED_5_2,
            4: REALIGNED_5_2,
            6: REALIGNED_5_2,
        },
    ),
    "realign, tail 2, output 0": (
        TAIL_2_OUTPUT_0,
        "seed",
        {0: FORKED_2_0, 1: FORKED_2_0, 2: FORKED_2_0, 3: REALIGNED_2_0},
    ),
    "realign, output 0, tail 2": (
        TAIL_2_OUTPUT_0,
        "slime",
        {0: FORKED_2_0, 1: REALIGNED_2_0, 2: REALIGNED_2_0},
    ),
    "merge, a leaf of 3": (
        LEAF_3,
        "seed",
        {0: FORKED_LEAF, 1: FORKED_LEAF, 2: FORKED_LEAF, 3: FORKED_LEAF, 4: MERGED_LEAF},
    ),
    "merge, one child, a leaf of 3": (
        LEAF_3,
        "slime",
        {0: FORKED_LEAF, 1: FORKED_LEAF, 2: FORKED_LEAF, 3: FORKED_LEAF, 4: MERGED_LEAF},
    ),
    # Under seed a leaf that is too long does not stand in the way; two short ones do.
    "merge, leaves of 3 and 5": (
        LEAVES_3_AND_5,
        "seed",
        {
            0: THREE_LEAVES,
            1: THREE_LEAVES,
            2: THREE_LEAVES,
            3: THREE_LEAVES,
            4: FIRST_LEAF_MERGED,
            5: FIRST_LEAF_MERGED,
            6: THREE_LEAVES,
        },
    ),
    "merge, two children, leaves of 3 and 5": (
        LEAVES_3_AND_5,
        "slime",
        {
            0: THREE_LEAVES,
            1: THREE_LEAVES,
            2: THREE_LEAVES,
            3: THREE_LEAVES,
            4: THREE_LEAVES,
            5: THREE_LEAVES,
            6: THREE_LEAVES,
        },
    ),
}

CASES = {
    f"{name}, threshold {threshold} [{profile}]": (
        Case(events=events, samples=golden, threshold=threshold),
        profile,
    )
    for name, (events, profile, by_threshold) in TABLE.items()
    for threshold, golden in by_threshold.items()
}


@pytest.mark.parametrize(("case", "profile"), CASES.values(), ids=CASES)
def test_a_gate_at_its_thresholds(case: Case, profile: str) -> None:
    assert case.actual(profile) == case.expected(profile)
