"""An outcome always fits into the log: what is large in it goes, the largest text first."""

import json
import tracemalloc
from typing import Any

import pytest

from schemas import codec
from schemas.events import EndReason, Event, SessionEnded, Turn
from streams.core.partition import Partition
from streams.core.state import Rules
from streams.core.tracing import TRACE_BYTES_MAX
from tests.harness import linearized

TURN: dict[str, Any] = {
    "type": "turn",
    "session_id": "s",
    "turn_id": "t1",
    "prompt_messages": [{"role": "user", "content": "u"}],
    "prompt_ids": [1, 2],
    "output_ids": [3, 4],
    "response_message": {"role": "assistant", "content": "ok"},
}
LIMIT = 3_000
LARGE = "x" * 2_500


def closed(*, final: str = "", payload: str = "", metadata: str = "") -> dict[str, Any]:
    opened = {
        "type": "session_opened",
        "session_id": "s",
        "budgets": {"sample_bytes": LIMIT},
        "metadata": {"told": metadata},
    }
    ended = {
        "type": "session_ended",
        "session_id": "s",
        "end_status": "completed",
        "reward": {"score": 1.0, "told": payload},
        "final_message": {"role": "assistant", "content": final},
    }
    result = linearized([opened, TURN, ended])
    (outcome,) = result.closed
    outcome["letters"] = [letter["detail"] for letter in result.dead_letters]
    return outcome


def test_what_fits_stays() -> None:
    outcome = closed(final=LARGE[:500], metadata=LARGE[:500], payload=LARGE[:500])
    assert {"final_message", "metadata", "reward_payload"} <= outcome.keys()
    assert outcome["letters"] == []


def test_the_largest_goes_first() -> None:
    outcome = closed(final=LARGE, metadata=LARGE)
    assert "final_message" not in outcome
    assert outcome["metadata"] == {"told": LARGE}
    assert outcome["end_status"] == "completed"
    assert ["`final_message`" in letter for letter in outcome["letters"]] == [True]


def test_no_more_goes_than_has_to() -> None:
    outcome = closed(final=LARGE, metadata=LARGE * 2, payload=LARGE[:-1000])
    assert "metadata" not in outcome
    assert "final_message" not in outcome
    assert outcome["reward_payload"] == {"score": 1.0, "told": LARGE[:-1000]}
    outcome = closed(payload=LARGE * 2, final="done")
    assert "reward_payload" not in outcome
    assert outcome["reward"] == 1.0
    assert outcome["final_message"]["content"] == "done"


def test_a_payload_counts_for_the_size_of_a_sample() -> None:
    outcome = closed(payload=LARGE + LARGE[:400])
    assert outcome["sample_ids"] == []
    assert outcome["ledger"][0]["untrained"] == {"oversize": 2}


def test_a_session_cannot_raise_what_a_sample_may_be() -> None:
    opened = {"type": "session_opened", "session_id": "s", "budgets": {"sample_bytes": 10**9}}
    many = TURN | {"prompt_ids": [1] * 1_000_000}
    ended = {
        "type": "session_ended",
        "session_id": "s",
        "end_status": "completed",
        "reward": 1.0,
    }
    assert linearized([opened, many, ended]).samples == []


def test_reasons_are_cut_to_what_a_person_reads() -> None:
    ended = {
        "type": "session_ended",
        "session_id": "s",
        "end_status": "error",
        "finish_reason": "f" * 100_000,
        "reason": {"message": "m" * 8_000_000, "retryable": True},
    }
    (outcome,) = linearized([TURN, ended]).closed
    assert len(outcome["reason"]["message"]) == len(outcome["finish_reason"]) == 20_000
    assert outcome["reason"]["retryable"] is True


def test_a_trace_leaves_out_raw_prompts_that_do_not_fit() -> None:
    rules = Rules(trace_share=1.0)
    partition = Partition(rules=rules)
    for number, size in enumerate((10, 600_000, 600_000)):
        turn = TURN | {"turn_id": f"t{number}", "raw_prompt": "r" * size}
        turn["prompt_messages"] = [{"role": "user", "content": str(number)}]
        record = codec.from_json(json.dumps(turn).encode())
        assert isinstance(record, Turn)
        partition.feed(record, number)
    (effects,) = partition.finish()
    assert effects.trace is not None
    assert [turn.raw_prompt for turn in effects.trace.turns] == [None] * 3
    assert len(codec.to_msgpack(effects.trace)) < 10_000


def test_versions_count_for_the_size_of_a_sample() -> None:
    opened = {"type": "session_opened", "session_id": "s", "budgets": {"sample_bytes": 10_000}}
    outputs = list(range(600))
    many = TURN | {"output_ids": outputs, "weight_versions": [[n, 1] for n in outputs]}
    ended = {"type": "session_ended", "session_id": "s", "end_status": "completed", "reward": 1}
    assert linearized([opened, many, ended]).samples == []
    one = many | {"weight_versions": [[0, 600]]}
    assert len(linearized([opened, one, ended]).samples) == 1


def test_a_trace_tells_the_reason_as_the_outcome_does() -> None:
    partition = Partition(rules=Rules(trace_share=1.0))
    reason = EndReason(message="m" * 8_000_000)
    ended = SessionEnded(session_id="s", end_status="error", reason=reason)
    effects = partition.feed(ended, 0)
    assert effects.trace is not None
    assert effects.outcome is not None
    assert effects.trace.reason == effects.outcome.reason
    assert len(codec.to_msgpack(effects.trace)) < 100_000


LARGE_WORDS = {
    "finish reasons": {"finish_reason": "f" * 1_000_000},
    "agents": {"agent_id": "ä" * 200_000},
    "versions": {
        "output_ids": list(range(1_000)),
        "logprobs": [-0.5] * 1_000,
        "weight_versions": [[2**60 + n, 1] for n in range(1_000)],
    },
}


def traced(words: dict[str, Any], reward: float | None, share: float) -> tuple[int, int]:
    """Of a session of 200 such turns: bytes of its trace, and what the close takes at its peak."""
    partition = Partition(rules=Rules(trace_share=share))
    for number in range(200):
        turn = TURN | words | {"turn_id": f"t{number}"}
        turn["prompt_messages"] = [{"role": "user", "content": str(number)}]
        record = codec.from_json(json.dumps(turn).encode())
        assert isinstance(record, Turn)
        assert partition.feed(record, number).refusals == ()
    ended = SessionEnded(
        session_id="s", end_status="completed", reward=reward, reward_pending=False
    )
    tracemalloc.start()
    try:
        effects = partition.feed(ended, 200)
        assert (effects.trace is not None) is (share > 0)
        size = len(codec.to_msgpack(effects.trace)) if effects.trace is not None else 0
        return size, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("words", LARGE_WORDS.values(), ids=LARGE_WORDS)
@pytest.mark.parametrize("reward", [None, 1.0], ids=["without a sample", "with samples"])
def test_a_trace_is_small_whatever_turns_say_of_themselves(
    words: dict[str, Any], reward: float | None
) -> None:
    (_, without), (size, peak) = (traced(words, reward, share) for share in (0.0, 1.0))
    assert size < TRACE_BYTES_MAX + 200_000
    assert peak - without < 10 * TRACE_BYTES_MAX, (peak, without)


def test_what_is_least_wanted_is_left_out_of_a_trace_first() -> None:
    partition = Partition(rules=Rules(trace_share=1.0))
    half = "x" * (TRACE_BYTES_MAX * 5 // 8)
    message = {"role": "user", "content": half}
    events = [
        {"type": "session_opened", "session_id": "s", "metadata": {"a": half[:900_000]}},
        TURN | {"prompt_messages": [message], "tools": [half], "agent_id": "main"},
        {"type": "session_ended", "session_id": "s", "end_status": "completed"}
        | {"reward": {"score": 1.0, "a": half[:900_000]}, "final_message": "done"},
    ]
    for position, given in enumerate(events):
        record = codec.from_json(json.dumps(given).encode())
        assert isinstance(record, Event)
        effects = partition.feed(record, position)
    trace = effects.trace
    assert trace is not None
    assert (trace.messages_left_out, bytes(trace.tools)) == (0, b"")
    assert bytes(trace.final_message) == b'"done"'
    assert bytes(trace.metadata)
    assert bytes(trace.reward_payload) == b""
    assert (trace.reward, trace.turns[0].agent_id) == (1.0, "main")
