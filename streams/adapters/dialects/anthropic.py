"""Anthropic's Messages: answers as messages, as events of a stream, and as errors.

    start        message_start
    piece        content_block_start, then content_block_delta with thinking or text; one of the
                 other kind ends the block before it: content_block_stop
                 a call and all that follows it waits for the end; meanwhile ping
    keep_alive   ping
    end          what waits; the last content_block_stop; message_delta: why it ends, the counts;
                 message_stop
    error        error, and no more

Thinking is given as text with the answer's carrier for its signature, whether the client asked
to see it or not: every client sends such a block back as it was, and some drop one without text.
An answer without thinking has no such block: programs that know of none read the text of the
first block. Its calls name it, or its text does.

Claude Code keeps the blocks that have ended when a stream breaks off, also by an error, and runs
the calls among them. Before its end a turn is not durable, so no call is given before it, and the
last block stays open: then the client throws the answer away and asks again.

Invariant: the blocks of a stream hold what the body would have held.
"""

from collections.abc import Sequence
from typing import Any

from streams.adapters.dialects.anthropic_messages import UNPARSED
from streams.adapters.dialects.anthropic_request import ThreadRefused, read_call, told, warms_up
from streams.adapters.dialects.calls import (
    Answer,
    Call,
    CallRefused,
    FinishReason,
    Piece,
    Reasoning,
    Text,
    ToolCall,
    Usage,
)
from streams.adapters.dialects.common import (
    EVENTS_TYPE,
    JSON_TYPE,
    ContextOverflow,
    event,
    read_arguments,
    to_json,
)
from streams.adapters.dialects.dialect import AnswerNames, AnswerStream, Route

__all__ = [
    "ANSWER_PREFIX",
    "BODY_TYPE",
    "CALL_PREFIX",
    "COUNT_ROUTES",
    "KEY_HEADERS",
    "MARK_HEADER",
    "MODELS_ROUTE",
    "NAME",
    "ROUTES",
    "STREAM_TYPE",
    "MessageStream",
    "answer_body",
    "count_body",
    "error_body",
    "models_body",
    "read_call",
    "refuses_in_stream",
    "stream",
]

NAME = "anthropic"
ROUTES: tuple[Route, ...] = (("POST", "/v1/messages"),)
COUNT_ROUTES: tuple[Route, ...] = (("POST", "/v1/messages/count_tokens"),)
MODELS_ROUTE: Route = ("GET", "/v1/models")
MARK_HEADER: str | None = "anthropic-version"
ANSWER_PREFIX = "msg_"
CALL_PREFIX = "toolu_"
KEY_HEADERS: tuple[str, ...] = ("x-api-key", "authorization")
BODY_TYPE = JSON_TYPE
STREAM_TYPE = EVENTS_TYPE

STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    # The API has one word for an answer that is not whole.
    "abort": "max_tokens",
    "error": "max_tokens",
}

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    # Not for 503: after a few of these Claude Code gives some models up.
    529: "overloaded_error",
}
_SERVER_ERROR = 500
_NO_DATE = "1970-01-01T00:00:00Z"


def answer_body(call: Call, answer: Answer) -> bytes:
    """A `message` object."""
    answer = told(call, answer)
    content: list[dict[str, Any]] = []
    if answer.reasoning:
        thinking = {"thinking": answer.reasoning, "signature": answer.carrier}
        content.append({"type": "thinking", **thinking})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    content += [_call(tool_call, _input(tool_call)) for tool_call in answer.tool_calls]
    message = _message(answer.id, answer.model, content, answer.usage)
    return to_json(message | _stopped(answer))


def stream(call: Call, names: AnswerNames) -> AnswerStream:
    """The answer to one call, event by event."""
    return MessageStream(call, names)


def refuses_in_stream(refusal: CallRefused) -> bool:
    """Never: clients read the status."""
    return False


class MessageStream:
    """Events of one answer."""

    def __init__(self, call: Call, names: AnswerNames) -> None:
        """The signature is known before the thought."""
        self._call = call
        self._names = names
        self._index = -1
        """Of the last block."""
        self._open: str | None = None
        """The type of the block that has not ended."""
        self._calls = False
        self._held = b""
        """From the first call on."""

    def start(self) -> bytes:
        """A message without content; the counts come with its end."""
        message = _message(self._names.id, self._names.model, [], Usage(prompt=0, output=0))
        return _event("message_start", message=message)

    def piece(self, piece: Piece) -> bytes:
        """More reasoning or text; a call is kept for the end, a sign of life stands for it."""
        if warms_up(self._call):
            return b""
        news = self._news(piece)
        self._calls = self._calls or isinstance(piece, ToolCall)
        if not self._calls or not news:
            return news
        self._held += news
        return self.keep_alive()

    def end(self, answer: Answer) -> bytes:
        """The calls, the end of the last block, why the answer ends, and the counts."""
        answer = told(self._call, answer)
        last = _event("message_delta", delta=_stopped(answer), usage=_usage(answer.usage))
        return self._held + self._close() + last + _event("message_stop")

    def error(self, refusal: CallRefused) -> bytes:
        """What went wrong; the block under way stays open, so that no client keeps the answer."""
        return event(error_body(refusal), "error")

    def keep_alive(self) -> bytes:
        """An event that every client of this API passes over."""
        return _event("ping")

    def _news(self, piece: Piece) -> bytes:
        match piece:
            case ToolCall():
                text = to_json(_input(piece)).decode()
                delta = {"type": "input_json_delta", "partial_json": text}
                return self._begin(_call(piece, {})) + self._delta(delta)
            case Text(text) if text:
                begin = self._within({"type": "text", "text": ""})
                return begin + self._delta({"type": "text_delta", "text": text})
            case Reasoning(text) if text:
                begin = self._within({"type": "thinking", "thinking": "", "signature": ""})
                return begin + self._delta({"type": "thinking_delta", "thinking": text})
        return b""

    def _within(self, block: dict[str, Any]) -> bytes:
        """Go on in a block of this type, or begin one."""
        return b"" if self._open == block["type"] else self._begin(block)

    def _begin(self, block: dict[str, Any]) -> bytes:
        ended = self._close()
        self._index += 1
        self._open = block["type"]
        return ended + _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta({"type": "signature_delta", "signature": self._names.carrier})
        self._open = None
        return signed + _event("content_block_stop", index=self._index)


def error_body(refusal: CallRefused) -> bytes:
    """An `error` object."""
    other = "api_error" if refusal.status >= _SERVER_ERROR else "invalid_request_error"
    message = refusal.message
    if isinstance(refusal, ContextOverflow):
        # Claude Code reads the two numbers.
        message = (
            f"prompt is too long: {refusal.prompt_tokens} tokens > {refusal.limit_tokens} maximum"
        )
    error: dict[str, Any] = {"type": ERROR_TYPES.get(refusal.status, other), "message": message}
    if isinstance(refusal, ThreadRefused):
        error["details"] = {"error_code": refusal.error_code}
    return to_json({"type": "error", "error": error})


def count_body(tokens: int) -> bytes:
    """How long the prompt of a call is."""
    return to_json({"input_tokens": tokens})


def models_body(names: Sequence[str]) -> bytes:
    """A list of `model` objects."""
    same = {"type": "model", "created_at": _NO_DATE, "lifecycle": "active"}
    listed = {
        "data": [{"id": name, "display_name": name, **same} for name in names],
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }
    return to_json(listed)


def _event(name: str, **fields: Any) -> bytes:
    return event(to_json({"type": name, **fields}), name)


def _message(
    answer_id: str, model: str, content: list[dict[str, Any]], usage: Usage
) -> dict[str, Any]:
    return {
        "id": answer_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(usage),
    }


def _call(call: ToolCall, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _input(call: ToolCall) -> dict[str, Any]:
    """The arguments as an object; a text that is none is wrapped as a client would send it back."""
    arguments = read_arguments(call.arguments)
    if isinstance(arguments, dict):
        return arguments
    return {UNPARSED: {"raw": arguments, "len": len(arguments)}}


def _stopped(answer: Answer) -> dict[str, str | None]:
    reason, sequence = STOP_REASONS[answer.finish_reason], None
    if answer.finish_reason == "stop" and answer.tool_calls:
        reason = STOP_REASONS["tool_calls"]  # clients run the calls only if it says so
    elif answer.finish_reason == "stop" and answer.stop_string is not None:
        reason, sequence = "stop_sequence", answer.stop_string
    return {"stop_reason": reason, "stop_sequence": sequence}


def _usage(usage: Usage) -> dict[str, Any]:
    """Counts whose sum is the length of the context, which is what clients compact by."""
    return {
        "input_tokens": usage.prompt - usage.reused,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.reused,
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }
