"""OpenAI's Chat Completions: answers as completions, as chunks of a stream, and as errors.

    start        delta {role, content: null}
    piece        delta {reasoning_content} | {content} | {tool_calls: [one whole call]}
    keep_alive   delta {}
    end          delta {}, finish_reason; then usage if asked for; then [DONE]
    error        {"error": ...} and no [DONE]

Invariant: the deltas of a stream add up to the message that the body would have held.
"""

from collections.abc import Sequence
from typing import Any

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
from streams.adapters.dialects.common import EVENTS_TYPE, JSON_TYPE, event, to_json
from streams.adapters.dialects.dialect import AnswerNames, AnswerStream, Route
from streams.adapters.dialects.openai_chat_request import read_call

__all__ = [
    "ANSWER_PREFIX",
    "BODY_TYPE",
    "CALL_PREFIX",
    "KEY_HEADERS",
    "MARK_HEADER",
    "MODELS_ROUTE",
    "NAME",
    "ROUTES",
    "STREAM_TYPE",
    "ChatStream",
    "answer_body",
    "error_body",
    "models_body",
    "read_call",
    "refuses_in_stream",
    "stream",
]

NAME = "openai_chat"
ROUTES: tuple[Route, ...] = (("POST", "/v1/chat/completions"),)
MODELS_ROUTE: Route = ("GET", "/v1/models")
MARK_HEADER: str | None = None
ANSWER_PREFIX = "chatcmpl-"
CALL_PREFIX = "call_"
KEY_HEADERS: tuple[str, ...] = ("authorization", "x-api-key")
BODY_TYPE = JSON_TYPE
STREAM_TYPE = EVENTS_TYPE

FINISH_REASONS: dict[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    # The API has one word for an answer that is not whole.
    "abort": "length",
    "error": "length",
}

_INVALID_REQUEST = "invalid_request_error"
_TOO_MANY_REQUESTS = 429
_SERVER_ERROR = 500


def answer_body(call: Call, answer: Answer) -> bytes:
    """A `chat.completion` object."""
    message: dict[str, Any] = {
        "role": "assistant",
        # Null beside calls, as clients expect it; else a text, be it empty.
        "content": None if answer.tool_calls and not answer.text else answer.text,
        "refusal": None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [_call(tool_call) for tool_call in answer.tool_calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _finish_reason(answer),
    }
    completion = {
        "id": answer.id,
        "object": "chat.completion",
        "created": answer.created_s,
        "model": answer.model,
        "choices": [choice],
        "usage": _usage(answer.usage),
    }
    return to_json(completion)


def stream(call: Call, names: AnswerNames) -> AnswerStream:
    """The answer to one call, chunk by chunk."""
    return ChatStream(call, names)


def refuses_in_stream(refusal: CallRefused) -> bool:
    """Never: clients read the status."""
    return False


class ChatStream:
    """Chunks of one answer; all but the delta is written once, at the beginning."""

    def __init__(self, call: Call, names: AnswerNames) -> None:
        """The same id, time and model stand on every chunk."""
        same = {
            "id": names.id,
            "object": "chat.completion.chunk",
            "created": names.created_s,
            "model": names.model,
        }
        self._names = to_json(same)[:-1]
        self._head = self._names + b',"choices":[{"index":0,"delta":'
        self._usage_wanted = call.stream_usage
        # A stream that ends with the counts has them on every chunk, null until then.
        self._tail = b',"usage":null}' if call.stream_usage else b"}"
        self._content_given = False

    def start(self) -> bytes:
        """Whose message it is; its content stays null until there is some."""
        return self._chunk({"role": "assistant", "content": None, "refusal": None})

    def piece(self, piece: Piece) -> bytes:
        """More reasoning, more text or a whole call."""
        match piece:
            case ToolCall():
                self._content_given = True
                return self._chunk({"tool_calls": [{"index": piece.index, **_call(piece)}]})
            case Text(text) if text:
                self._content_given = True
                return self._chunk({"content": text})
            case Reasoning(text) if text:
                return self._chunk({"reasoning_content": text})
        return b""

    def end(self, answer: Answer) -> bytes:
        """Why it ends, the counts if asked for, and the mark that nothing follows."""
        delta = {} if self._content_given else {"content": ""}
        frames = self._chunk(delta, _finish_reason(answer))
        if self._usage_wanted:
            usage = to_json(_usage(answer.usage))
            frames += event(self._names + b',"choices":[],"usage":' + usage + b"}")
        return frames + event(b"[DONE]")

    def error(self, refusal: CallRefused) -> bytes:
        """What went wrong, without [DONE]: some clients keep what precedes one as a whole turn."""
        return event(error_body(refusal))

    def keep_alive(self) -> bytes:
        """A chunk without news; a comment would not count for every client."""
        return self._chunk({})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        rest = b',"logprobs":null,"finish_reason":' + to_json(finish_reason) + b"}]"
        return event(self._head + to_json(delta) + rest + self._tail)


def error_body(refusal: CallRefused) -> bytes:
    """An `error` object."""
    kind = refusal.kind
    if kind == _INVALID_REQUEST and refusal.status == _TOO_MANY_REQUESTS:
        kind = "rate_limit_error"
    elif kind == _INVALID_REQUEST and refusal.status >= _SERVER_ERROR:
        kind = "server_error"
    error = {
        "message": refusal.message,
        "type": kind,
        "param": refusal.param,
        "code": refusal.code,
    }
    return to_json({"error": error})


def models_body(names: Sequence[str]) -> bytes:
    """A list of `model` objects."""
    models = [
        {"id": name, "object": "model", "created": 0, "owned_by": "turnstream"} for name in names
    ]
    return to_json({"object": "list", "data": models})


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _finish_reason(answer: Answer) -> str:
    if answer.finish_reason == "stop" and answer.tool_calls:
        return "tool_calls"  # clients run the calls only if it says so
    return FINISH_REASONS[answer.finish_reason]


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.reused},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
