"""The frames of an answer, byte for byte as SGLang and vLLM write them, made before the load.

    /generate                SGLang 0.5.23 with --incremental-streaming-output, or without
    /inference/v1/generate   vLLM 0.32.0, ids in and ids out
    /v1/chat/completions     vLLM's chat API, asked for token ids and logprobs

A frame is what a server writes at once: an event, each an HTTP chunk. What differs from request
to request, its id, is a placeholder of the same length as the gateway's, so that a frame is
finished by `replace`.

Invariant: the frames of an answer hold every id and every logprob of it, in order.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from benchmarks.gateway_script import MODEL, Answer

REQUEST_ID = b"0123456789abcdef0123456789abcdef"
"""In frames, instead of the id of the request."""
HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"
_CREATED = 1_767_225_600
_ID = REQUEST_ID.decode()
_THOUGHT, _CALL, _CALLED = "</think>", "<tool_call>", "</tool_call>"

Frames = Callable[[Answer, int, int], list[bytes]]
"""Of an answer, of the prompt's tokens, and of tokens an event."""


def chunk(event: bytes) -> bytes:
    """An event as uvicorn sends it."""
    data = b"data: " + event + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def sglang(answer: Answer, prompt_tokens: int, per_event: int) -> list[bytes]:
    """New tokens in every event."""
    return _sglang(answer, prompt_tokens, per_event, incremental=True)


def sglang_cumulative(answer: Answer, prompt_tokens: int, per_event: int) -> list[bytes]:
    """All tokens so far in every event, the server's default."""
    return _sglang(answer, prompt_tokens, per_event, incremental=False)


def _sglang(
    answer: Answer, prompt_tokens: int, per_event: int, *, incremental: bool
) -> list[bytes]:
    entries = [[value, token, None] for value, token in _pairs(answer)]
    frames = []
    for start, end, last in _events(answer, per_event):
        since = start if incremental else 0
        meta: dict[str, Any] = {
            "id": _ID,
            "finish_reason": {"type": "stop", "matched": answer.ids[-1]} if last else None,
            "prompt_tokens": prompt_tokens,
            "weight_version": "1",
            "num_retractions": 0,
            "input_token_logprobs": [],
            "output_token_logprobs": entries[since:end],
            "output_token_logprobs_length": end,
            "reasoning_tokens": 0,
            "completion_tokens": end,
            "cached_tokens": prompt_tokens - 1,
            "weight_versions": [{"version": "1", "start": 0, "end": end}],
        }
        if last:
            meta["e2e_latency"] = 1.234567890123456
        if last or not start:
            meta["response_sent_to_client_ts"] = 1767225600.1234567
        text, ids = "".join(answer.pieces[since:end]), answer.ids[since:end]
        frames.append(_encoded({"text": text, "output_ids": ids, "meta_info": meta}))
    return _done(frames)


def vllm(answer: Answer, prompt_tokens: int, per_event: int) -> list[bytes]:
    """New tokens in every event; the versions of all on the last."""
    del prompt_tokens
    frames = []
    for start, end, last in _events(answer, per_event):
        content = []
        for value, token in _pairs(answer)[start:end]:
            sampled = {"token_id": token, "logprob": value, "rank": 1}
            content.append({**sampled, "top_logprobs": [sampled]})
        choice = {
            "index": 0,
            "finish_reason": "stop" if last else None,
            "stop_reason": None,
            "token_ids": answer.ids[start:end],
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": [{"version": "1", "start": 0, "end": end}] if last else None,
            "logprobs": {"content": content},
        }
        event = {"request_id": f"generate-tokens-{_ID}", "usage": None, "output_mode": "tokens"}
        frames.append(_encoded({**event, "choices": [choice]}))
    return _done(frames)


def vllm_chat(answer: Answer, prompt_tokens: int, per_event: int) -> list[bytes]:
    """Messages in, text out; ids and logprobs beside it, the prompt's ids on the first event."""
    # How many ids a prompt has counts, not which.
    prompt_ids = [10_000 + number % 1000 for number in range(prompt_tokens)]
    opening = {"role": "assistant", "content": ""}
    first = {"index": 0, "delta": opening, "logprobs": None, "finish_reason": None}
    role = _encoded({**_chat_event(first), "prompt_token_ids": prompt_ids})
    frames = []
    deltas = _deltas(answer)
    for start, end, last in _events(answer, per_event):
        logprobs = [
            {"token": piece, "logprob": value, "bytes": list(piece.encode()), "top_logprobs": []}
            for piece, value in zip(
                answer.pieces[start:end], answer.logprobs[start:end], strict=True
            )
        ]
        choice: dict[str, Any] = {
            "index": 0,
            "delta": _joined(deltas[start:end]),
            "logprobs": {"content": logprobs},
            "finish_reason": "tool_calls" if last else None,
        }
        if last:
            choice["stop_reason"] = None
        frames.append(_encoded(_chat_event({**choice, "token_ids": answer.ids[start:end]})))
    return _done([role + frames[0], *frames[1:]])


def _chat_event(choice: dict[str, Any]) -> dict[str, Any]:
    event = {"id": f"chatcmpl-{_ID}", "object": "chat.completion.chunk", "created": _CREATED}
    return {**event, "model": MODEL, "choices": [choice]}


def _deltas(answer: Answer) -> list[dict[str, Any]]:
    """What a parser makes of each token; the arguments of the call come whole, at its end."""
    deltas: list[dict[str, Any]] = []
    field = "reasoning"
    arguments = msgspec.json.encode(answer.arguments).decode()
    for piece in answer.pieces:
        delta: dict[str, Any] = {}
        if piece == _THOUGHT:
            field = "content"
        elif piece == _CALL:
            field = ""
            function = {"name": "search", "arguments": ""}
            call = {"id": "chatcmpl-tool-0", "type": "function", "index": 0, "function": function}
            delta = {"tool_calls": [call]}
        elif piece == _CALLED:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}
        elif field and deltas:
            delta = {field: piece}
        deltas.append(delta)
    return deltas


def _joined(deltas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for delta in deltas:
        for field, value in delta.items():
            joined[field] = joined[field] + value if field in joined else value
    return joined


def _events(answer: Answer, per_event: int) -> Iterator[tuple[int, int, bool]]:
    count = len(answer.ids)
    for start in range(0, count, per_event):
        end = min(start + per_event, count)
        yield start, end, end == count


def _pairs(answer: Answer) -> list[tuple[float, int]]:
    return list(zip(answer.logprobs, answer.ids, strict=True))


def _done(frames: list[bytes]) -> list[bytes]:
    """What the server writes at once stays together."""
    return [*frames[:-1], frames[-1] + chunk(b"[DONE]") + _END]


def _encoded(event: dict[str, Any]) -> bytes:
    return chunk(msgspec.json.encode(event))
