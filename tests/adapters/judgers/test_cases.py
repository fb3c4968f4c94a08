"""What a judger is given of a session that is read from the log."""

from typing import Any

import pytest

from schemas.events import SessionEnded
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
