"""OpenAI's Responses: answers as responses, as the events of a stream, and as errors.

    start        response.created, response.in_progress
    piece        output_item.added, its deltas; the item before it is done first
    keep_alive   response.in_progress
    end          the last item is done; response.completed | response.incomplete
    error        error, for clients that raise it; response.failed, for those that act on its code

An item is done as soon as anything follows it: clients keep the finished items of a stream that
breaks.

Invariant: the items of a stream are those that its last event holds, and their texts add up to
what the body would have held.
"""

from typing import Any

from streams.adapters.dialects.calls import (
    Answer,
    Call,
    CallRefused,
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
    to_json,
)
from streams.adapters.dialects.dialect import AnswerNames, AnswerStream, Route
from streams.adapters.dialects.openai_chat import error_body, models_body
from streams.adapters.dialects.openai_responses_items import ANSWER_PREFIX
from streams.adapters.dialects.openai_responses_output import (
    Item,
    Status,
    call_item,
    is_cut,
    message_item,
    output,
    reasoning_item,
    reasoning_part,
    text_part,
)
from streams.adapters.dialects.openai_responses_request import echo_of, read_call

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
    "ResponsesStream",
    "answer_body",
    "count_body",
    "error_body",
    "models_body",
    "read_call",
    "refuses_in_stream",
    "stream",
]

NAME = "openai_responses"
ROUTES: tuple[Route, ...] = (("POST", "/v1/responses"),)
COUNT_ROUTES: tuple[Route, ...] = (("POST", "/v1/responses/input_tokens"),)
MODELS_ROUTE: Route = ("GET", "/v1/models")
MARK_HEADER: str | None = None
CALL_PREFIX = "call_"
KEY_HEADERS: tuple[str, ...] = ("authorization", "x-api-key")
BODY_TYPE = JSON_TYPE
STREAM_TYPE = EVENTS_TYPE

_TOO_MANY_REQUESTS = 429
_SERVER_ERROR = 500
_AGAIN = "try again in"


def answer_body(call: Call, answer: Answer) -> bytes:
    """A `response` object."""
    return _response(call, answer, **_ended(answer, output(call, answer)))


def count_body(tokens: int) -> bytes:
    """A count of input tokens."""
    return to_json({"object": "response.input_tokens", "input_tokens": tokens})


def stream(call: Call, names: AnswerNames) -> AnswerStream:
    """The answer to one call, event by event."""
    return ResponsesStream(call, names)


def refuses_in_stream(refusal: CallRefused) -> bool:
    """A full context: a client that compacts on the event gives up on the status."""
    return isinstance(refusal, ContextOverflow)


class ResponsesStream:
    """Events of one answer. At most one item is open, and it is the last."""

    def __init__(self, call: Call, names: AnswerNames) -> None:
        """The same id, time and model stand on every response."""
        self._call = call
        self._names = names
        self._sent = 0
        self._done: list[Item] = []
        self._texts: list[str] = []
        self._open: type[Reasoning | Text] | None = None
        self._delta_head = b""

    def start(self) -> bytes:
        """The response, with nothing in it yet."""
        under_way = _response(self._call, self._names, status="in_progress")
        return self._event("response.created", under_way) + self.keep_alive()

    def piece(self, piece: Piece) -> bytes:
        """More of the open item, or the next one."""
        match piece:
            case ToolCall():
                return self._close("completed") + self._called(piece)
            case Reasoning(text) | Text(text) if text:
                return self._said(type(piece), text)
        return b""

    def end(self, answer: Answer) -> bytes:
        """The last item done, and the response with all of them."""
        frames = b""
        if not any(item["type"] != "reasoning" for item in self._done) and self._open is not Text:
            frames = self._close("completed") + self._begin(Text)
        frames += self._close("incomplete" if is_cut(answer) else "completed")
        ended = _ended(answer, self._done)
        return frames + self._event(
            f"response.{ended['status']}", _response(self._call, answer, **ended)
        )

    def error(self, refusal: CallRefused) -> bytes:
        """What went wrong, and the response as failed."""
        error = _failure(refusal)
        failed = _response(self._call, self._names, status="failed", output=self._done, error=error)
        told = error | {"error": error, "type": "error"}
        return self._send(to_json(told)[:-1], "error") + self._event("response.failed", failed)

    def keep_alive(self) -> bytes:
        """That the response is under way; a comment would not count for every client."""
        under_way = _response(self._call, self._names, status="in_progress")
        return self._event("response.in_progress", under_way)

    def _said(self, kind: type[Reasoning | Text], text: str) -> bytes:
        begun = b""
        if self._open is not kind:
            begun = self._close("completed") + self._begin(kind)
        self._texts.append(text)
        return begun + self._send(self._delta_head + to_json(text), self._delta_name)

    @property
    def _delta_name(self) -> str:
        return f"response.{'output' if self._open is Text else 'reasoning'}_text.delta"

    def _begin(self, kind: type[Reasoning | Text]) -> bytes:
        self._open = kind
        self._texts = []
        item, part = self._item(None, "in_progress"), self._part("")
        place = self._place(item) | {"content_index": 0}
        extra: dict[str, Any] = {"logprobs": []} if kind is Text else {}
        self._delta_head = to_json({"type": self._delta_name, **place, **extra})[:-1] + b',"delta":'
        return self._added(item) + self._tell("response.content_part.added", place, part=part)

    def _close(self, status: Status) -> bytes:
        """The open item, if there is one, is done."""
        if self._open is None:
            return b""
        text = "".join(self._texts)
        item, part = self._item(text, status), self._part(text)
        place = self._place(item) | {"content_index": 0}
        name = self._delta_name.removesuffix("delta") + "done"
        extra: dict[str, Any] = {"logprobs": []} if self._open is Text else {}
        self._open = None
        return (
            self._tell(name, place, text=text, **extra)
            + self._tell("response.content_part.done", place, part=part)
            + self._finished(item)
        )

    def _called(self, called: ToolCall) -> bytes:
        item = call_item(self._call, self._names, len(self._done), called)
        place = self._place(item)
        empty: dict[str, Any] = {"status": "in_progress"}
        frames = b""
        for kind, field, name in (
            ("function_call", "arguments", "response.function_call_arguments"),
            ("custom_tool_call", "input", "response.custom_tool_call_input"),
        ):
            if item["type"] == kind:
                empty[field] = ""
                frames += self._added(item | empty)
                frames += self._tell(f"{name}.delta", place, delta=item[field])
                frames += self._tell(f"{name}.done", place, **{field: item[field]})
        return (frames or self._added(item | empty)) + self._finished(item)

    def _item(self, text: str | None, status: Status) -> Item:
        make = message_item if self._open is Text else reasoning_item
        return make(self._names, len(self._done), text, status)

    def _part(self, text: str) -> dict[str, Any]:
        return text_part(text) if self._open is Text else reasoning_part(text)

    def _place(self, item: Item) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": len(self._done)}

    def _added(self, item: Item) -> bytes:
        place = {"output_index": len(self._done)}
        return self._tell("response.output_item.added", place, item=item)

    def _finished(self, item: Item) -> bytes:
        place = {"output_index": len(self._done)}
        self._done.append(item)
        return self._tell("response.output_item.done", place, item=item)

    def _tell(self, name: str, place: dict[str, Any], **fields: Any) -> bytes:
        return self._send(to_json({"type": name, **place, **fields})[:-1], name)

    def _event(self, name: str, response: bytes) -> bytes:
        return self._send(b'{"type":"' + name.encode() + b'","response":' + response, name)

    def _send(self, data: bytes, name: str) -> bytes:
        """An event whose object is not closed yet."""
        number = self._sent
        self._sent += 1
        return event(data + f',"sequence_number":{number}}}'.encode(), name)


def _response(call: Call, names: AnswerNames | Answer, **fields: Any) -> bytes:
    response = {
        "id": names.id,
        "object": "response",
        "created_at": names.created_s,
        "model": names.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
    }
    return to_json(response | fields)[:-1] + b"," + echo_of(call)[1:]


def _ended(answer: Answer, items: list[Item]) -> dict[str, Any]:
    cut = is_cut(answer)
    return {
        "status": "incomplete" if cut else "completed",
        # The API has one word for an answer that is not whole.
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items,
        "usage": _usage(answer.usage),
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.reused, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.output,
    }


def _failure(refusal: CallRefused) -> dict[str, Any]:
    """The error of a failed response, under a code that says whether to try again."""
    message = refusal.message
    if refuses_in_stream(refusal):
        code = refusal.code
    elif refusal.status == _TOO_MANY_REQUESTS:
        code = "rate_limit_exceeded"
        if _AGAIN not in message.lower():
            message += f" Please {_AGAIN} 1s."
    else:
        # The first is final for clients, the second is not.
        code = "invalid_prompt" if refusal.status < _SERVER_ERROR else "server_error"
    return {"type": refusal.kind, "code": code, "message": message, "param": refusal.param}
