"""The 14 points of fine print that decide cases, each by name, in both exact profiles."""

import json
from typing import Any

import pytest

from schemas.codec import to_json
from streams.core.partition import Partition
from streams.core.policy import PROFILES
from tests.core.fine_print_boundaries import BOUNDARIES, EMPTINESS_AND_DUPLICATES
from tests.core.fine_print_cases import DRAIN_AND_MERGE
from tests.core.golden import Case, by_case_and_profile, decoded
from tests.core.notation import Json, drawn_samples, insert, messages, replace, session, turn
from tests.harness import linearized

CASES = by_case_and_profile(DRAIN_AND_MERGE | BOUNDARIES | EMPTINESS_AND_DUPLICATES)
BOTH_PROFILES = pytest.mark.parametrize("profile", ["seed", "slime"])


@pytest.mark.parametrize(("case", "profile"), CASES.values(), ids=CASES)
def test_fine_print(case: Case, profile: str) -> None:
    assert case.actual(profile) == case.expected(profile)


# A value in a recorded message, the value a replay has in its place, and the profiles in which
# the two messages are the same.
IDENTITY: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "0 and false": (0, False, ("slime",)),
    "0.0 and -0.0": (0.0, -0.0, ("slime",)),
    "100 and 100.0": (100, 100.0, ("slime",)),
    "10^22 and 1e22": (10**22, 1e22, ("slime",)),
    "2^53 and 2.0^53": (2**53, 2.0**53, ("slime",)),
    "2^53+1 and 2.0^53": (2**53 + 1, 2.0**53, ()),
    "1 and '1'": (1, "1", ()),
    "null and false": (None, False, ()),
    "a text and itself": ("x", "x", ("seed", "slime")),
    "a text and one with a blank more": ("x", "x ", ()),
    "keys in another order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ("seed", "slime")),
    "a list in another order": ([1, 2], [2, 1], ()),
    "a string and one text block": ("x", [{"type": "text", "text": "x"}], ()),
    "a block and one with cache_control": (
        [{"type": "text", "text": "x"}],
        [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        (),
    ),
}


def replayed(recorded: Any, echoed: Any, third: Any) -> list[Json]:
    """Three turns whose first answer holds these values: as recorded, then as echoed twice."""

    def answer(value: Any) -> Json:
        return {"role": "assistant", "content": "ok", "value": value}

    start = messages("«S»<u>")
    second = [*start, answer(echoed), *messages("(x)")]
    last = [*start, answer(third), *messages("(x){mid}(y)")]
    return session(
        turn("«S»<u>", "ok", response_message=answer(recorded)),
        turn("«S»<u>{ok}(x)", "mid", prompt_messages=second),
        turn("«S»<u>{ok}(x){mid}(y)", "done", prompt_messages=last),
    )


SAME = "«S»<u>{[ok}](x){[mid}](y){[done}]  reward 1"
# t2 and t3 share the echoed spelling, so they stay together whether or not it matched t1.
DIFFERENT = {
    "seed": "«S»<u>{[ok}]  reward 1/2\n«S»<u>{ok}(x){[mid}](y){[done}]  reward 1/2",
    "slime": "«S»<u>{[ok}]  reward 1\n«S»<u>{ok}(x){[mid}](y){[done}]  reward 1",
}


@BOTH_PROFILES
@pytest.mark.parametrize(("recorded", "echoed", "same_in"), IDENTITY.values(), ids=IDENTITY)
def test_point_07_which_messages_are_the_same(
    recorded: Any, echoed: Any, same_in: tuple[str, ...], profile: str
) -> None:
    events = replayed(recorded, echoed, echoed)
    run = linearized(events, profile=profile, fork_threshold=0)
    expected = SAME if profile in same_in else DIFFERENT[profile]
    assert drawn_samples(run.samples) == expected


def test_point_07_in_slime_the_first_spelling_stays() -> None:
    # Equal values route alike under either spelling, so only the drawn node can tell.
    answer = {"role": "assistant", "content": [100]}
    echo = {"role": "assistant", "content": [100.0]}
    events = session(
        turn("<u>", "ok", response_message=answer),
        turn("<u>{ok}(x)", "done", prompt_messages=[*messages("<u>"), echo, *messages("(x)")]),
    )
    run = linearized(events, profile="slime", fork_threshold=0)
    assert run.trees["s"].splitlines() == [
        "user u",
        "assistant [100]  <- t1 root 3/3",
        "tool x",
        "assistant done  <- t2 extend 5/5",
    ]


@BOTH_PROFILES
def test_point_13_linearizing_twice_gives_the_same(profile: str) -> None:
    events = session(
        turn("«S»<u>", "call"),
        turn("«S»<u>{call}(x)", "ax", drift=replace(11)),
        turn("«S»<u>{call}(y)", "ay", drift=insert(1)),
    )
    first = linearized(events, profile=profile)
    second = linearized(events, profile=profile)
    # t1 is owned by branch x, which realigns over it: branch y must not train it instead.
    assert drawn_samples(first.samples).replace("1/2", "1") == (
        "«S»<u>{call!(x){[ax}]  reward 1\n«!S»<u>{call}(y){[ay}]  reward 1"
    )
    assert (first.samples, first.closed) == (second.samples, second.closed)


@BOTH_PROFILES
def test_point_13_the_callers_dict_is_not_kept(profile: str) -> None:
    partition = Partition(forced_policy=PROFILES[profile])
    samples = []
    for position, event in enumerate(
        session(turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "done")), start=1
    ):
        effects = partition.feed(decoded(event), position)
        for message in [*event.get("prompt_messages", []), event.get("response_message", {})]:
            message["content"] = "changed by the caller"
        for tokens in (event.get("prompt_ids", []), event.get("output_ids", [])):
            tokens.clear()
        samples += [json.loads(to_json(record)) for record in effects.records()]
    assert drawn_samples(record for record in samples if record["type"] == "sample") == (
        "«S»<u>{[ok}](x){[done}]  reward 1"
    )


@pytest.mark.parametrize(("profile", "share"), [("seed", 0.5), ("slime", 1.0)])
def test_point_14_a_payload_is_split_by_its_score_and_passed_whole(
    profile: str, share: float
) -> None:
    payload = {"score": 1.0, "detail": {"tests": [True, False], "note": "ok "}}
    two_leaves = session(turn("«S»<u>", "one"), turn("«S»<v>", "two"), reward=payload)
    run = linearized(two_leaves, profile=profile)
    assert [sample["reward"] for sample in run.samples] == [share, share]
    assert [sample["session_reward"] for sample in run.samples] == [1.0, 1.0]
    assert [sample["reward_payload"] for sample in run.samples] == [payload, payload]
