"""Answers for tests, as the Messages API names them."""

import dataclasses

from streams.adapters.dialects.calls import Answer, FinishReason, Piece, ToolCall
from streams.adapters.dialects.dialect import AnswerNames
from tests.adapters.dialects import chat_answers

LS = ToolCall(index=0, id="toolu_a", name="bash", arguments='{"command":  "ls", "timeout": 5.0}')
PWD = ToolCall(index=1, id="toolu_b", name="bash", arguments="{}")
NAMES = AnswerNames(id="msg_1", carrier="rs_1", created_s=1_700_000_000, model="qwen")


def answer(*pieces: Piece, finish: FinishReason = "stop") -> Answer:
    """The answer whose pieces these are."""
    made = chat_answers.answer(*pieces, finish=finish)
    return dataclasses.replace(made, id=NAMES.id, carrier=NAMES.carrier)
