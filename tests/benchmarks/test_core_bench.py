"""What the benchmark compares is comparable: both sides make the same samples.

Nothing is timed here; sessions are tiny, so every class of turn occurs within a few tokens.
"""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from benchmarks.agreement import difference, of_baseline
from benchmarks.baseline import common_prefix
from benchmarks.contenders import Session, core, core_bytes
from benchmarks.measure import held_bytes, open_baseline_session, open_core_session, wire_bytes
from benchmarks.workloads import Call, Sizes, appending, drifting
from schemas.events import Turn

TINY = Sizes(first_prompt=24, output=5, tool=4)
WORKLOADS = {"append": appending, "drift": drifting}
Make = Callable[[int, int, Sizes], list[Call]]


def tiny(make: Make, turns: int, seed: int = 0) -> Session:
    return Session(make(turns, seed, TINY), "tiny")


@pytest.mark.parametrize("make", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("turns", [1, 2, 9, 45])
def test_core_and_baseline_make_the_same_samples(make: Make, turns: int) -> None:
    for seed in range(5):
        session = tiny(make, turns, seed)
        assert difference(session) is None
        assert any(1 in sample.mask for sample in of_baseline(session))


def test_a_side_that_saw_another_session_is_told() -> None:
    session = tiny(appending, 3)
    assert session.events, "the core's side is fixed here"
    session.calls = tiny(appending, 3, seed=1).calls
    assert difference(session) == "sample 0: `tokens` differs"


def test_wire_bytes_and_decoded_events_give_the_same_samples() -> None:
    session = tiny(drifting, 45)
    decoded = core("seed").run(session.events)
    from_bytes = core_bytes("seed").run(session.wire)
    assert decoded.samples == from_bytes.samples
    assert decoded.outcome == from_bytes.outcome


def test_the_append_workload_only_grows() -> None:
    calls = appending(4, 0, TINY)
    assert [call.prompt_T.size for call in calls] == [24, 33, 42, 51]
    for last, call in pairwise(calls):
        whole = [*last.prompt_T.tolist(), *last.output_T.tolist()]
        assert call.prompt_T.tolist()[: len(whole)] == whole
        assert call.messages[: len(last.messages) + 1] == (*last.messages, last.response)


def test_the_drift_workload_holds_every_class_of_turn() -> None:
    session = tiny(drifting, 40)
    outcome = core("slime").run(session.events).outcome
    # 40 main turns, 2 retries, 4 sub-agents of 3 turns; drifts before turns 5, 15, 25, 35, and
    # before 20 and 40.
    assert Counter(row.attach for row in outcome.ledger) == {
        "root": 5,
        "extend": 43,
        "realign": 4,
        "fork": 2,
    }


def test_turns_are_published_in_delta_form() -> None:
    turns = [event for event in tiny(appending, 3).events if isinstance(event, Turn)]
    assert [turn.base_turn_id for turn in turns] == [None, "turn-1", "turn-2"]
    assert [turn.prompt_ids.size for turn in turns] == [24, 4, 4]
    assert [turn.kept_ids for turn in turns] == [None, 29, 38]
    assert [len(turn.prompt_messages) for turn in turns] == [2, 1, 1]
    assert all(turn.prompt_digest is not None for turn in turns)


def test_text_has_its_characters_a_token() -> None:
    (call,) = appending(1, 0, TINY)
    contents = [msgspec.json.decode(text)["content"] for text in (*call.messages, call.response)]
    assert [len(content) for content in contents] == [24, 72, 20]


def test_wire_bytes_add_up() -> None:
    session = tiny(appending, 10)
    sizes = wire_bytes(session)
    assert sizes["ids"] == 4 * (24 + 9 * 4 + 10 * 5)
    assert sizes["logprobs"] == 4 * 10 * 5
    assert sizes["message_text"] == 4 * (24 + 9 * 4 + 10 * 5)
    assert sizes["total"] == sum(map(len, session.wire))
    assert sum(sizes.values()) == 2 * sizes["total"]


def test_an_open_session_is_held_while_it_is_measured() -> None:
    session = tiny(appending, 20)
    ids = 4 * session.calls[-1].prompt_T.size
    assert held_bytes(open_core_session(session)) > ids
    assert held_bytes(open_baseline_session(session)) > 20 * ids


@pytest.mark.parametrize(
    ("held", "prompt", "shared"),
    [
        ([], [], 0),
        ([1], [2], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3, 4], [1, 2, 3], 3),
        ([1, 2, 3, 4, 5], [1, 2, 9, 4, 5], 2),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 9, 9], 4),
        ([7, 2, 3, 4, 5], [1, 2, 3, 4, 5], 0),
    ],
)
def test_the_baseline_finds_the_first_difference(
    held: list[int], prompt: list[int], shared: int
) -> None:
    assert common_prefix(held, prompt) == shared
