"""Answers for tests, made of the pieces that a stream would give."""

from streams.adapters.dialects.calls import (
    Answer,
    FinishReason,
    Piece,
    Reasoning,
    Text,
    ToolCall,
    Usage,
)
from streams.adapters.dialects.dialect import AnswerNames

LS = ToolCall(index=0, id="call_a", name="bash", arguments='{"command":  "ls"}')
PWD = ToolCall(index=1, id="call_b", name="bash", arguments="{}")


def names(answer_id: str = "chatcmpl-1", created_s: int = 0, model: str = "m") -> AnswerNames:
    """What a stream knows at its start."""
    return AnswerNames(id=answer_id, carrier="", created_s=created_s, model=model)


def answer(*pieces: Piece, finish: FinishReason = "stop") -> Answer:
    """The answer whose pieces these are."""
    return Answer(
        id="chatcmpl-1",
        model="qwen",
        created_s=1_700_000_000,
        reasoning="".join(piece.text for piece in pieces if isinstance(piece, Reasoning)),
        text="".join(piece.text for piece in pieces if isinstance(piece, Text)),
        tool_calls=tuple(piece for piece in pieces if isinstance(piece, ToolCall)),
        finish_reason=finish,
        usage=Usage(prompt=165, output=31, reasoning=12, reused=100),
    )
