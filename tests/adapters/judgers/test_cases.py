"""What a judger is given of a session that is read from the log."""

from typing import Any

import msgspec
import pytest

from schemas import codec
from schemas.events import Event, SessionEnded
from schemas.record import json_text
from streams.adapters.judgers.cases import case_of
from streams.core.partition import Partition
from streams.core.state import OpenSession

FINAL: dict[str, tuple[Any, Any]] = {
    "a message": ({"role": "tool", "content": "Yes."}, {"role": "tool", "content": "Yes."}),
    "a text": ("Yes.", {"role": "assistant", "content": "Yes."}),
    "without a role": ({"content": "Yes."}, {"role": "assistant", "content": "Yes."}),
    "a number": (7, {"role": "assistant", "content": "7"}),
    "a list": ([1, 2], {"role": "assistant", "content": "[1, 2]"}),
    "an object": ({"text": "Yes."}, {"role": "assistant", "content": '{"text": "Yes."}'}),
    "messages": (
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}],
        {"role": "assistant", "content": "!"},
    ),
}


@pytest.mark.parametrize(("given", "message"), FINAL.values(), ids=FINAL)
def test_a_final_message_is_one_whatever_an_older_log_holds(given: Any, message: Any) -> None:
    partition = Partition()
    ended = SessionEnded(
        session_id="s",
        end_status="completed",
        reward_pending=True,
        final_message=json_text(given),
    )
    partition.feed(ended, 0)
    session = partition.sessions["s"]
    assert isinstance(session, OpenSession)
    assert case_of(session).final_message == message


DIGITS = "9" * 5_000
NUMBERS = {"a float out of range": ("1e999", None), "an integer of 5,000 digits": (DIGITS, DIGITS)}


@pytest.mark.parametrize(("number", "read"), NUMBERS.values(), ids=NUMBERS)
def test_a_number_that_no_reader_holds_costs_that_number_and_no_case(
    number: str, read: str | None
) -> None:
    held = msgspec.Raw(b'{"a": %s, "b": 1}' % number.encode())
    words = {"role": "assistant", "content": "Yes."}
    final = msgspec.Raw(msgspec.json.encode(words)[:-1] + b', "a": %s}' % number.encode())
    partition = Partition()
    events = (
        {"type": "session_opened", "session_id": "s", "metadata": held},
        {
            **{"type": "turn", "session_id": "s", "turn_id": "t", "tools": held},
            **{"prompt_messages": [{"role": "user", "content": "?"}], "response_message": words},
            **{"prompt_ids": [1], "output_ids": [2]},
        },
        {
            **{"type": "session_ended", "session_id": "s", "end_status": "completed"},
            **{"final_message": final, "reward_pending": True},
        },
    )
    for position, given in enumerate(events):
        event = codec.from_json(msgspec.json.encode(given))
        assert isinstance(event, Event)
        assert partition.feed(event, position).refusals == ()
    session = partition.sessions["s"]
    assert isinstance(session, OpenSession)
    case = case_of(session)
    assert case.metadata == {"a": read, "b": 1}
    assert case.tools == [case.metadata]
    assert case.final_message == {**words, "a": read}
