"""What bounds a session, and what must not be counted against it."""

import json
from typing import Any

import pytest

from schemas import codec
from tests.harness import linearized

USER = {"role": "user", "content": "u"}


def chain(turns: int, **fields: Any) -> list[dict[str, Any]]:
    """A conversation in delta form: ten given and ten sampled tokens a turn."""
    events: list[dict[str, Any]] = []
    for number in range(turns):
        base = (
            {}
            if not number
            else {
                "base_turn_id": f"t{number - 1}",
                "kept_messages": 2 * number,
                "kept_ids": 20 * number,
            }
        )
        events.append(
            {
                "type": "turn",
                "session_id": "s",
                "turn_id": f"t{number}",
                "prompt_messages": [USER],
                "prompt_ids": [1] * 10,
                "output_ids": [2] * 10,
                "response_message": {"role": "assistant", "content": str(number)},
            }
            | base
            | fields
        )
    return events


ENDED = {"type": "session_ended", "session_id": "s", "end_status": "completed", "reward": 1.0}


def test_a_channel_counts_once_however_many_turns_have_it() -> None:
    channel = {"dtype": "int8", "shape": [10, 64], "data": "01" * 640}
    run = linearized([*chain(300, channels={"experts": channel}), ENDED])
    assert run.dead_letters == []
    assert run.closed[0]["trained"] == 3000


def test_channels_that_make_a_sample_too_large_cost_the_channels_and_not_the_sample() -> None:
    channel = {"dtype": "int8", "shape": [10, 4096], "data": "01" * 40_960}
    first = chain(1, channels={"experts": channel})
    run = linearized([*first, *chain(300)[1:], ENDED])
    assert run.dead_letters == []
    assert run.closed[0]["trained"] == 3000
    (sample,) = run.samples
    assert ("channels" in sample, sample["channels_missing"]) == (False, 300)


def test_a_sample_of_exactly_the_limit_keeps_its_channels() -> None:
    channel = {"dtype": "int8", "shape": [10, 4], "data": "01" * 40}
    turns = [*chain(1, channels={"experts": channel}), ENDED]
    (whole,) = linearized(turns).samples
    exact = len(codec.to_msgpack(codec.from_json(json.dumps(whole).encode())))

    def sample(limit: int) -> dict[str, Any]:
        opened = {"type": "session_opened", "session_id": "s", "budgets": {"sample_bytes": limit}}
        return linearized([opened, *turns]).samples[0]

    assert "channels" in sample(exact)
    assert "channels" not in sample(exact - 1)


def test_a_blob_counts_for_the_few_bytes_that_name_it() -> None:
    blob = {"dtype": "int8", "shape": [10, 4096], "blob": "ab" * 16, "length": 40_960}
    run = linearized([*chain(300, channels={"experts": blob}), ENDED])
    (sample,) = run.samples
    assert len(sample["channel_blobs"]) == 300
    assert sample["channel_blobs"][1] == {
        "name": "experts",
        "start": 30,
        "end": 40,
        "channel": blob,
    }


def test_a_payload_too_large_for_the_log_is_refused() -> None:
    huge = {"type": "reward", "session_id": "s", "reward": {"score": 1, "log": "x" * 2_000_000}}
    run = linearized([*chain(1), huge, ENDED])
    assert [letter["code"] for letter in run.dead_letters] == ["oversize"]
    assert run.closed[0]["trained"] == 10


def test_a_raw_prompt_counts_against_the_budget() -> None:
    opened = {"type": "session_opened", "session_id": "s", "budgets": {"bytes": 50_000}}
    run = linearized([opened, *chain(2, raw_prompt="x" * 40_000), ENDED])
    assert [(x["turn_id"], x["code"]) for x in run.dead_letters] == [("t1", "oversize")]


@pytest.mark.parametrize("shape", [[10, 2**40, 0], [10] + [1] * 64])
def test_a_channel_without_a_usable_shape_costs_its_turn_only(shape: list[int]) -> None:
    channel = {"dtype": "int8", "shape": shape, "data": ""}
    bad = chain(1, channels={"x": channel})[0] | {"turn_id": "bad"}
    run = linearized([*chain(1), bad, ENDED])
    assert [(x["turn_id"], x["code"]) for x in run.dead_letters] == [("bad", "invalid_field")]
    assert run.closed[0]["end_status"] == "completed"
