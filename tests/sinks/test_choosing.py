"""Which sessions a cap leaves, and how a trace becomes conversations: without trackio."""

import random
from typing import Any

import msgspec
import pytest

from schemas.traces import Trace
from streams.log.interface import Position
from streams.sinks.choosing import STEPS_HELD_MAX, Branch, Choosing, Shown, Step
from streams.sinks.conversations import branches_of
from streams.sinks.metadata import metadata_of, was_rejected
from streams.sinks.trackio import STEPS_QUEUED_MAX, TrackioSink
from tests.sinks.scenes import ROLES, branched_session, made, tool_session, trace_named

FIRST = Step(None, 1, "train")


def at(offset: int) -> Position:
    return Position("traces", offset % 3, offset)


def offered(choosing: Choosing, traces: list[Trace], now_s: float = 0.0) -> None:
    for offset, trace in enumerate(traces):
        choosing.offer(trace, at(offset), now_s)


def chosen(choosing: Choosing) -> dict[Step, list[Shown]]:
    ripe = choosing.ripe(0.0, everything=True)
    return {step: [branch.shown for branch in branches] for step, branches in ripe}


def sessions(count: int, prefix: str = "s", **opened: Any) -> list[Trace]:
    return [trace_named(f"{prefix}{number}", **({"step": 1} | opened)) for number in range(count)]


def test_in_every_order_the_same_are_chosen_and_no_more_than_the_cap() -> None:
    traces = sessions(50)
    found = []
    for seed in range(10):
        random.Random(seed).shuffle(traces)
        choosing = Choosing(8, 1.0)
        offered(choosing, [*traces, *traces[:10]])  # some of them twice
        assert choosing.held == 8
        found.append(chosen(choosing))
    assert all(one == found[0] for one in found)
    assert len(found[0][FIRST]) == 8
    assert {shown.session_id for shown in found[0][FIRST]} != {f"s{number}" for number in range(8)}


def test_branches_count_and_splits_and_runs_do_not_share_a_cap() -> None:
    several = [made(*branched_session(f"b{n}", 3, step=1))[0][0] for n in range(4)]
    choosing = Choosing(8, 1.0)
    offered(
        choosing, [*several, *sessions(3, "e", split="eval"), *sessions(9, "o", run_id="other")]
    )
    found = chosen(choosing)
    assert {step: len(shown) for step, shown in found.items()} == {
        FIRST: 8,
        Step(None, 1, "eval"): 3,
        Step("other", 1, "train"): 8,
    }
    # A session that is cut is cut behind its first branches.
    names = [shown.session_id for shown in found[FIRST]]
    assert sorted(names.count(name) for name in set(names)) == [2, 3, 3]


def test_a_step_is_held_until_nothing_comes_for_a_while() -> None:
    choosing = Choosing(2, 10.0)
    choosing.offer(trace_named("a", step=1), at(5), 0.0)
    choosing.offer(trace_named("b", step=1), at(2), 9.0)
    assert choosing.ripe(18.9) == []
    # Partition 2 of both; a crash now reads from there on.
    assert choosing.first_held() == {2: 2}
    ((step, branches),) = choosing.ripe(19.0)
    assert (step, len(branches)) == (FIRST, 2)
    assert choosing.first_held() == {}
    # A straggler finds its step full.
    choosing.offer(trace_named("c", step=1), at(9), 20.0)
    assert choosing.held == 0
    assert choosing.counts["over_cap"] == 1


def test_sessions_without_a_step_are_chosen_while_by_while() -> None:
    choosing = Choosing(1, 10.0)
    for second in range(20):
        choosing.offer(trace_named(f"s{second}"), at(second), float(second))
        if ripe := choosing.ripe(float(second)):
            assert second == 10
            assert len(ripe[0][1]) == 1
    assert choosing.held == 1


def test_the_oldest_steps_are_given_up_when_too_many_are_held() -> None:
    choosing = Choosing(1, 1e9)
    for step in range(STEPS_HELD_MAX + 3):
        choosing.offer(trace_named(f"s{step}", step=step), at(step), 0.0)
    assert [step.step for step, _ in choosing.ripe(0.0)] == [0, 1, 2]


def test_what_an_earlier_life_showed_counts_and_is_not_shown_again() -> None:
    first = Choosing(8, 1.0)
    offered(first, sessions(5))
    before = dict.fromkeys(chosen(first)[FIRST], FIRST)
    second = Choosing(8, 1.0, before)
    offered(second, sessions(8))
    assert {shown.session_id for shown in chosen(second)[FIRST]} == {"s5", "s6", "s7"}


def test_a_cap_of_nothing_holds_nothing() -> None:
    choosing = Choosing(0, 1.0)
    offered(choosing, sessions(3))
    assert (choosing.held, chosen(choosing)) == (0, {})


def test_a_trackio_that_hangs_costs_what_comes_then_and_holds_nobody_up() -> None:
    said: list[str] = []
    sink = TrackioSink("p", None, 1, 1e-9, said.append)
    sink._choosing = Choosing(1, 1e-9)  # opened, but nobody takes from its queue
    for step in range(STEPS_QUEUED_MAX + 8):
        sink.take(trace_named(f"s{step}", step=step), Position("traces", 0, step))
        sink.settle()
        assert sink.settled({0: step + 1}) == {0: step + 1}
    assert sink.counts["dropped"] == 8
    assert len(said) == 1


# --- conversations -------------------------------------------------------------------------------


def roles(trace: Trace) -> list[list[str]]:
    return [[message["role"] for message in one.messages] for one in branches_of(trace)]


def test_a_branch_is_a_walk_from_its_root() -> None:
    assert roles(trace_named("s")) == [ROLES]
    (several,), _ = made(*branched_session("b", 3))
    assert roles(several) == [["user", "assistant"]] * 3
    texts = [one.messages[-1]["content"] for one in branches_of(several)]
    assert texts == ["done 0", "done 1", "done 2"]


def test_without_messages_lengths_make_the_roles() -> None:
    bare = msgspec.structs.replace(
        trace_named("s"), messages=msgspec.Raw(b"[]"), parents=[], messages_left_out=5
    )
    assert roles(bare) == [["user", "assistant", "tool", "assistant"]]
    (one,) = branches_of(bare)
    assert [message["content"] for message in one.messages] == [
        *("[3 tokens]", "[2 tokens]", "[2 tokens]", "[3 tokens]")
    ]


def test_half_a_character_is_no_text() -> None:
    raw = msgspec.Raw(b'[{"role":"user","content":"a\\ud800"}]')
    odd = msgspec.structs.replace(trace_named("s"), messages=raw, parents=[-1])
    assert branches_of(odd)[0].messages == [{"role": "user", "content": "a?"}]


@pytest.mark.parametrize("number", ["1e999", "9" * 5_000])
def test_a_number_that_no_reader_holds_costs_that_number_alone(number: str) -> None:
    raw = msgspec.Raw(b'{"answer": 1, "a": %s}' % number.encode())
    messages = b'[{"role": "user", "content": "Hi", "a": %s}]' % number.encode()
    odd = msgspec.structs.replace(
        trace_named("s"),
        **{"messages": msgspec.Raw(messages), "parents": [-1]},
        **{"metadata": raw, "reward_payload": raw},
    )
    (one,) = branches_of(odd)
    told = metadata_of(Branch(odd, Shown("s", 0), 1, one))
    assert told["session_metadata"] == told["reward_payload"]
    assert told["session_metadata"]["answer"] == 1
    assert one.messages[0]["content"] == "Hi"


@pytest.mark.parametrize("parents", [[0], [-1, -1], [], [-2]], ids=str)
def test_a_trace_whose_messages_are_no_tree_costs_itself_alone(parents: list[int]) -> None:
    raw = msgspec.Raw(b'[{"role":"user","content":"a"}]')
    foreign = msgspec.structs.replace(trace_named("x", step=1), messages=raw, parents=parents)
    choosing = Choosing(8, 1.0)
    offered(choosing, [foreign, *sessions(2)])
    assert {shown.session_id for shown in chosen(choosing)[FIRST]} == {"s0", "s1"}
    assert choosing.counts["unwritable"] == 1


def test_a_branch_shows_the_samples_that_end_on_it() -> None:
    (several,), samples = made(*branched_session("b", 2))
    told = [
        metadata_of(Branch(several, Shown("b", number), 2, one))
        for number, one in enumerate(branches_of(several))
    ]
    assert [one["samples"][0]["sample_id"] for one in told] == [s.sample_id for s in samples]
    assert [one["prompt_len"] for one in told] == [sample.prompt_len for sample in samples]


@pytest.mark.parametrize(
    ("fields", "rejected"),
    [
        ({"end_status": "completed", "reward": 1.0}, False),
        ({"end_status": "error"}, False),
        ({"end_status": "rejected"}, True),
        ({"end_status": "completed", "reward_pending": False}, True),
        ({"end_status": "completed", "reward": 1.0, "accepted": False}, True),
    ],
)
def test_a_failure_is_shown_and_a_rejected_session_is_not(
    fields: dict[str, Any], rejected: bool
) -> None:
    *turns, _ = tool_session("s")
    (trace,), _ = made(*turns, {"type": "session_ended", "session_id": "s"} | fields)
    assert was_rejected(trace) is rejected
