"""An outcome always fits into the log: what is large in it goes, the largest text first."""

from typing import Any

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
