"""What a trace says of its session, with the numbers that its samples have."""

import json
from typing import Any

import pytest

from schemas import codec
from schemas.record import COUNT_MAX
from streams.core.partition import Partition
from streams.core.state import Rules
from tests.core.life import NAN, T1, T2, T3, end, expired, feed, opened, read, reward
from tests.core.notation import Json, insert, turn

CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}, {"id": "c2"}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x"}


def told(*events: Json, share: float = 1.0) -> tuple[Json | None, list[Json]]:
    """The session's trace and its samples, through their wire bytes."""
    partition = Partition(rules=Rules(trace_share=share))
    trace, samples = None, []
    for position, given in enumerate(events, 1):
        effects = feed(partition, read(given), position)
        assert effects.refusals == ()
        samples += [strictly(codec.to_json(sample)) for sample in effects.samples]
        if effects.trace is not None:
            assert trace is None
            trace = strictly(codec.to_json(codec.from_msgpack(codec.to_msgpack(effects.trace))))
    return trace, samples


def strictly(line: bytes) -> Json:
    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    fields: Json = json.loads(line, parse_constant=refuse)
    return fields


def traced(*events: Json) -> Json:
    trace, _ = told(*events)
    assert trace is not None
    return trace


def picked(records: list[Json], *names: str) -> list[Any]:
    return [tuple(record.get(name) for name in names) for record in records]


# --- messages ------------------------------------------------------------------------------------


def branch(trace: Json, leaf: int) -> list[Json]:
    messages = []
    while leaf >= 0:
        messages.append(trace["messages"][leaf])
        leaf = trace["parents"][leaf]
    return messages[::-1]


def test_messages_keep_calls_ids_reasoning_parts_and_failed_calls() -> None:
    asked = {"role": "user", "content": [{"type": "text", "text": "a\n"}, {"type": "image"}]}
    called = CALL | {"reasoning_content": "hm", "invalid_tool_calls": [{"name": "?", "args": "{"}]}
    one = turn("<u>", "ok", turn_id="t1", prompt_messages=[asked], response_message=called)
    two = T2 | {"prompt_messages": [asked, called, RESULT]}
    trace = traced(one | {"ill_formed": True}, two, end(reward=1.0))
    assert trace["messages"][:3] == [asked, called, RESULT]
    assert branch(trace, trace["turns"][1]["message"])[:3] == [asked, called, RESULT]
    assert picked(trace["turns"], "ill_formed") == [(True,), (None,)]


def test_messages_that_branches_share_stand_once() -> None:
    other = turn("<u>{ok}(y)", "else", turn_id="t3")
    trace = traced(T1, T2, other, T3 | {"turn_id": "t4"}, end(reward=1.0))
    texts = [
        "".join(message["content"] for message in branch(trace, row["message"]))
        for row in trace["turns"]
    ]
    assert texts == ["uok", "uokxdone", "uokyelse", "vhm"]
    assert len(trace["messages"]) == 8
    assert picked(trace["turns"], "attach") == [("root",), ("extend",), ("extend",), ("root",)]


def test_a_message_that_a_rewrite_took_the_place_of_is_not_shown_as_the_models() -> None:
    rewritten = turn("<u>{OK}(x)", "done", turn_id="t2")
    trace = traced(T1, rewritten, end(reward=1.0))
    assert picked(trace["turns"], "message") == [(None,), (3,)]
    assert [message["content"] for message in trace["messages"]] == ["u", "OK", "x", "done"]


# --- one definition of lengths and versions ------------------------------------------------------

VERSIONED = (
    T1 | {"weight_versions": [[7, 2], [8, 1]], "untrained_runs": [[0, 1, "forced"]]},
    T2 | {"weight_versions": [[8, 5]]},
    T3 | {"weight_versions": [[9, 3]]},
)


def test_a_trace_has_the_numbers_of_the_samples() -> None:
    trace, samples = told(*VERSIONED, end(reward=1.0))
    assert trace is not None
    names = ("sample_id", "prompt_len", "trained", "reward")
    assert picked(trace["samples"], *names) == picked(samples, *names)
    lengths = [len(sample["tokens"]) - sample["prompt_len"] for sample in samples]
    assert [row["response_len"] for row in trace["samples"]] == lengths == [11, 3]
    # The versions of trained tokens alone, in the order they were sampled.
    assert picked(trace["samples"], "weight_versions") == [([[7, 1], [8, 6]],), ([[9, 3]],)]
    assert picked(trace["samples"], "turn_id") == [("t2",), ("t3",)]
    assert picked(trace["turns"], "prompt_len", "response_len", "trained") == [
        (4, 3, 2),
        (11, 5, 5),
        (4, 3, 3),
    ]


@pytest.mark.parametrize(
    "ending",
    [end(reward=1.0, split="eval"), end("error", reward=1.0), end(reward=1.0, accepted=False)],
    ids=["eval", "a failure", "rejected"],
)
def test_a_session_that_gives_no_sample_has_the_numbers_it_would_have_given(ending: Json) -> None:
    """Train and eval go through one path: equal fields of an equal session."""
    train = traced(*VERSIONED, end(reward=1.0))
    trace, samples = told(*VERSIONED, ending)
    assert trace is not None
    assert samples == []
    names = ("turn_id", "prompt_len", "response_len", "trained", "weight_versions")
    assert picked(trace["samples"], *names) == picked(train["samples"], *names)
    assert picked(trace["samples"], "sample_id", "reward") == [(None, None)] * 2
    assert "trained" not in trace
    assert sum(trace["untrained"].values()) == trace["generated"]


# --- rewards, ends, what is the session's --------------------------------------------------------


def test_rewards_are_numbers_and_the_payload_is_passed_on() -> None:
    payload = {"score": 0.1, "terms": [1, 2.5, -0.25], "why": "x", "score_of": {"style": 1e-3}}
    trace = traced(T1 | {"reward": 0.25}, T2, reward(2, turn_id="t2"), end(reward=payload))
    assert trace["reward_payload"] == payload
    assert (trace["reward"], picked(trace["turns"], "reward")) == (0.1, [(0.25,), (2.0,)])
    assert "reward_invalid" not in trace


def test_what_is_no_finite_number_is_none_and_said() -> None:
    trace = traced(T1, end(reward=NAN))
    assert (trace.get("reward"), trace["reward_invalid"]) == (None, True)
    assert trace["withheld"] == "no_reward"


def test_a_trace_says_how_its_session_ended() -> None:
    reason = {"stage": "agent", "category": "tool", "type": "E", "message": "m", "retryable": True}
    said = {
        "reason": reason,
        "finish_reason": "content_filter",
        "accepted": False,
        "will_retry": True,
        "final_message": {"role": "assistant", "content": "bye", "info": {"n": 2**70}},
    }
    started = opened(metadata={"answer": 42}, group_id="g", rollout_index=2, step=9)
    trace = traced(started, T1 | {"tools": [{"name": "sh"}]}, end("timeout", reward=1, **said))
    assert {name: trace[name] for name in said} == said
    assert (trace["end_status"], trace["withheld"]) == ("timeout", "rejected")
    assert (trace["metadata"], trace["tools"]) == ({"answer": 42}, [{"name": "sh"}])
    assert (trace["group_id"], trace["rollout_index"], trace["step"]) == ("g", 2, 9)
    assert trace["policy"] == "seed"


def test_finish_reasons_stay_as_the_engine_said_them_in_order() -> None:
    reasons = ["stop", "length", "content_filter", None]
    turns = [
        turn(f"<{number}>", "ok", turn_id=f"t{number}", finish_reason=given)
        for number, given in enumerate(reasons)
    ]
    trace = traced(*turns, end(reward=1.0))
    assert [row.get("finish_reason") for row in trace["turns"]] == reasons
    assert trace["end_status"] == "completed"


def test_a_session_without_a_turn_leaves_a_trace() -> None:
    trace = traced(opened(group_id="g"), end("truncated", reward=0.0))
    assert (trace["messages"], trace["turns"], trace["group_id"]) == ([], [], "g")
    assert "samples" not in trace


def test_unset_fields_are_absent() -> None:
    trace = traced(T1, end(reward=1.0))
    assert set(trace) == {
        *("type", "session_id", "end_status", "messages", "parents", "turns", "samples"),
        *("reward", "policy", "generated", "trained"),
    }
    row = {"turn_id", "message", "attach", "prompt_len", "response_len", "trained"}
    assert set(trace["turns"][0]) == row


def test_tool_turns_are_calls_with_tool_calls_each_once() -> None:
    """Parallel calls are one turn; a call that two branches share counts once."""
    one = T1 | {"response_message": CALL}
    prompt = [*T1["prompt_messages"], CALL]
    two = T2 | {"prompt_messages": [*prompt, RESULT], "response_message": CALL}
    three = turn("<u>{ok}(y)", "z", turn_id="t3") | {
        "prompt_messages": [*prompt, RESULT | {"n": 1}]
    }
    assert traced(one, two, three, end(reward=1.0))["tool_turns"] == 2
    plain = traced(T1 | {"response_message": CALL | {"tool_calls": []}}, end(reward=1.0))
    assert "tool_turns" not in plain


def test_raw_prompts_are_those_of_roots() -> None:
    turns = [one | {"raw_prompt": f"raw {one['turn_id']}"} for one in (T1, T2, T3)]
    trace = traced(*turns, end(reward=1.0))
    assert [row.get("raw_prompt") for row in trace["turns"]] == ["raw t1", None, "raw t3"]


# --- time ----------------------------------------------------------------------------------------


def at(event: Json, started_ms: int, finished_ms: int) -> Json:
    return event | {"started_ms": started_ms, "finished_ms": finished_ms}


def phases(trace: Json) -> list[int | None]:
    return [trace.get(name) for name in ("generate_ms", "tool_ms", "reward_ms")]


def test_phases_are_sums_of_event_times() -> None:
    again = turn("<u>{ok}(y)", "else", turn_id="t3")
    trace = traced(
        at(T1, 1_000, 1_400),
        at(T2, 1_900, 2_000),
        at(again, 5_000, 5_050),  # a second way on from t1: its tools ran once
        reward(0.5, "a", final=False, judged_ms=30),
        reward(0.5, "a", final=False, judged_ms=30),  # told twice, done once
        reward(0.5, "t", turn_id="t1", judged_ms=4),
        end(reward=1.0, judged_ms=200),
    )
    assert phases(trace) == [550, 500, 234]


def test_steps_without_tokens_are_time_between_calls() -> None:
    step = turn("<u>", None, turn_id="t1", response_message={"role": "assistant", "content": "up"})
    trace = traced(at(step, 1_000, 1_040), at(T3, 3_000, 3_500), end(reward=1.0))
    assert phases(trace) == [500, 40, None]


def test_phases_that_nobody_timed_are_absent() -> None:
    assert phases(traced(T1, at(T2, 5, 9), end(reward=1.0))) == [4, None, None]
    assert phases(traced(T1, T2, end(reward=1.0))) == [None, None, None]


def test_absurd_times_can_be_written_and_read() -> None:
    least, most = -(2**63), 2**63 - 1
    first, last = at(T1, least, most), at(T2, most, least)
    trace = traced(first, last, reward(1, "a", judged_ms=most), end(reward=1, judged_ms=most))
    assert phases(trace) == [COUNT_MAX, 0, COUNT_MAX]


# --- which sessions leave one --------------------------------------------------------------------

FAILURES = ("error", "interrupted", "closed", "cancelled", "expired")


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0], ids=["off", "sampled", "on"])
def test_the_gate_is_by_session_id_and_changes_no_sample(share: float) -> None:
    left, every = [], []
    for number in range(400):
        events = [event | {"session_id": f"s{number}"} for event in (T1, end(reward=1.0))]
        trace, samples = told(*events, share=share)
        left.append(trace is not None)
        every.append((samples, told(*events, share=0.0)[1]))
    assert all(given == without for given, without in every)
    assert abs(sum(left) / 400 - share) < 0.08
    again = [told(T1 | {"session_id": "s1"}, end(session_id="s1", reward=1.0), share=share)[0]]
    assert left[1] is (again[0] is not None)


@pytest.mark.parametrize("share", [0.0, 1e-9], ids=["off", "sampled"])
def test_every_failure_and_eval_session_leaves_one_unless_they_are_off(share: float) -> None:
    endings = [end(status) for status in FAILURES] + [end(reward=1.0, split="eval")]
    assert [told(T1, one, share=share)[0] is not None for one in endings] == [share > 0] * 6
    assert (told(T1, expired(1), share=share)[0] is not None) is (share > 0)
    assert told(T1, end("timeout", reward=0.0), share=share)[0] is None


# --- size ----------------------------------------------------------------------------------------


def test_what_is_the_sessions_stands_once_however_many_branches() -> None:
    artefact = "x" * 200_000
    started = opened(metadata={"artefact": artefact})
    payload = {"score": 1.0, "log": artefact}
    branches = [turn("<u>", f"b{n}", drift=insert(n), turn_id=f"t{n}") for n in range(5)]
    trace = traced(started, *branches, end(reward=payload))
    assert len(trace["samples"]) == 5
    assert len(json.dumps(trace)) < 2 * 200_000 + 5_000


def test_a_trace_grows_with_its_turns_and_not_with_their_prompts() -> None:
    def size(turns: int) -> int:
        chain, prompt = [], "<u>"
        for number in range(turns):
            chain.append(turn(prompt, "ok", turn_id=f"t{number:03}"))
            prompt += "{ok}(x)"
        return len(json.dumps(traced(*chain, end(reward=1.0))))

    assert size(200) < 2.2 * size(100)
