"""Responses' answers for tests: the pieces of a stream, and what they add up to."""

import dataclasses

from streams.adapters.dialects.calls import Answer, FinishReason, Piece, ToolCall
from streams.adapters.dialects.dialect import AnswerNames
from tests.adapters.dialects import chat_answers

LETTERS = "7Qm2Zr81xKc0Wd5Tn4Vb6Yh3Lp9Gs1A"
OTHER_LETTERS = "8Qm2Zr81xKc0Wd5Tn4Vb6Yh3Lp9Gs1B"
ANSWER_ID = f"resp_{LETTERS}"
CARRIER = "rs_3Lp9Gs1A7Qm2Zr81xKc0Wd5Tn4Vb6Yh"
NAMES = AnswerNames(id=ANSWER_ID, carrier=CARRIER, created_s=1_700_000_000, model="qwen")

LS = chat_answers.LS
PWD = chat_answers.PWD
PATCH = ToolCall(index=0, id="call_p", name="apply_patch", arguments='{"input": "*** Begin\\n"}')
SPAWN = ToolCall(index=1, id="call_s", name="agents__spawn", arguments='{"message": "go"}')
SEARCH = ToolCall(index=2, id="call_t", name="tool_search", arguments='{"query": "mail"}')


def answer(*pieces: Piece, finish: FinishReason = "stop") -> Answer:
    """The answer whose pieces these are."""
    plain = chat_answers.answer(*pieces, finish=finish)
    return dataclasses.replace(plain, id=ANSWER_ID, carrier=CARRIER)
