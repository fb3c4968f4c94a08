"""SGLang's own `/generate`: ids in, ids with logprobs out.

A server streams either all tokens so far or the new ones, as it was started
(`--incremental-streaming-output`); when it aborts it may repeat the last. `completion_tokens`
counts in every case, so it decides what is new:

    cumulative    [a]    [a b]   [a b c]      1  2  3
    incremental   [a]    [b]     [c]          1  2  3
    aborted       [a]    [b]     [b]          1  2  2

Its logprobs follow temperature and penalties, but not what `top_p`, `top_k` and `min_p` cut off;
with `SGLANG_RETURN_ORIGINAL_LOGPROB` they follow nothing. The doctor tells.

Invariant: no token is given twice, none is left out, and each has the logprob with its own id.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from streams.adapters.engines.interface import (
    EngineError,
    Experts,
    Finish,
    Generation,
    NoLogprobs,
    Sampling,
    Tokens,
)
from streams.adapters.engines.over_http import READ_S, HttpEngine, is_passing
from streams.adapters.engines.wire import weight_version

_FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "abort"}
_EXPERT_BYTES = 4
_BAD_REQUEST = 400


class Span(msgspec.Struct):
    """Tokens from here to there and the weights they are of."""

    version: str
    start: int
    end: int


class FinishReason(msgspec.Struct):
    """Why an answer ended; an abort with a status is a failure."""

    type: str
    matched: Any = None
    message: str | None = None
    status_code: int | None = None


class MetaInfo(msgspec.Struct):
    """What is said about the tokens."""

    completion_tokens: int
    finish_reason: FinishReason | None = None
    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None
    weight_version: str | None = None
    weight_versions: list[Span] = []
    routed_experts: str | None = None


class Failure(msgspec.Struct):
    """In place of tokens."""

    message: str = ""
    code: int = _BAD_REQUEST


class Event(msgspec.Struct):
    """One event of an answer."""

    output_ids: list[int] | None = None
    meta_info: MetaInfo | None = None
    prompt_token_ids: list[int] | None = None
    error: Failure | None = None


def sglang_engine(
    addresses: Sequence[str], *, read_s: float = READ_S, api_key: str | None = None
) -> HttpEngine:
    """An engine of SGLang at these addresses."""
    return HttpEngine(SglangWire(), addresses, read_s=read_s, api_key=api_key)


class SglangWire:
    """The native API."""

    kind = "SGLang"
    generate_path = "/generate"
    abort_path = "/abort_request"
    signs: Mapping[str, str | None] = {"/model_info": "model_path"}

    def body(self, generation: Generation) -> dict[str, Any]:
        """The request."""
        body: dict[str, Any] = {
            "rid": generation.request_id,
            "routing_key": generation.routing_key,
            "input_ids": generation.input_ids.tolist(),
            "sampling_params": _sampling(generation.sampling),
            "return_logprob": True,
            "stream": True,
        }
        if generation.routed_experts:
            body["return_routed_experts"] = True
            # The pass over the prompt's last token is the one that samples the first.
            body["routed_experts_start_len"] = len(generation.input_ids) - 1
        if generation.echo:
            body["return_prompt_token_ids"] = True
        return body

    def headers(self, generation: Generation) -> dict[str, str]:
        """None are needed."""
        return {}

    def answer(self, generation: Generation) -> "_Answer":
        """A reader of one answer."""
        return _Answer()

    def abort_body(self, request_id: str) -> dict[str, Any]:
        """What stops a request."""
        return {"rid": request_id}

    def is_twin(self, message: str) -> bool:
        """It keeps a broken request until it notices, and refuses another with its id."""
        return "Duplicate request ID" in message

    def is_switched_off(self, message: str) -> bool:
        """What it forbids, it forbids for want of a key."""
        return False


class _Answer:
    """What came so far."""

    def __init__(self) -> None:
        self._seen = 0

    def tokens(self, event: bytes) -> Tokens | None:
        """What is new in an event.

        Raises:
            EngineError: it fails, or a token or logprob is missing.
        """
        told = msgspec.json.decode(event, type=Event)
        if told.error is not None:
            raise EngineError(told.error.message, retryable=is_passing(told.error.code))
        if told.meta_info is None:
            raise EngineError("an event without meta_info", retryable=False)
        meta = told.meta_info
        finish = _finish(meta.finish_reason)
        ids, logprobs = self._new(told.output_ids or [], meta)
        experts, wrong = _experts(meta.routed_experts, self._seen)
        runs = None
        labels: tuple[str, ...] = ()
        if finish is not None and meta.weight_versions:
            labels = tuple(span.version for span in meta.weight_versions)
            runs = tuple((weight_version(s.version), s.end - s.start) for s in meta.weight_versions)
        return Tokens(
            ids=tuple(ids),
            logprobs=tuple(logprobs),
            weight_version=weight_version(meta.weight_version),
            weight_label=meta.weight_version,
            weight_runs=runs,
            run_labels=labels,
            finish=finish,
            stop_reason=_reason(meta.finish_reason),
            routed_experts=experts,
            experts_wrong=wrong,
            prompt_ids=None if told.prompt_token_ids is None else tuple(told.prompt_token_ids),
        )

    def _new(self, ids: list[int], meta: MetaInfo) -> tuple[list[int], list[float]]:
        seen, total = self._seen, meta.completion_tokens
        if total < seen:
            raise EngineError(f"{total} tokens after there were {seen}", retryable=False)
        entries = meta.output_token_logprobs or []
        new_ids, new_entries = _tail(ids, seen, total), _tail(entries, seen, total)
        if len(new_ids) != total - seen:
            what = f"{len(new_ids)} of {total - seen} new tokens came"
            raise EngineError(what, retryable=False)
        if [token for _, token, _ in new_entries] != new_ids:
            what = f"{len(new_entries)} logprobs for {len(new_ids)} tokens, or of others"
            raise NoLogprobs(what, retryable=False)
        self._seen = total
        return new_ids, [_told(logprob, token) for logprob, token, _ in new_entries]


def _tail(values: list[Any], seen: int, total: int) -> list[Any]:
    """The new ones of all so far, or of the new ones alone."""
    if len(values) >= total:
        return values[seen:total]
    return values[-(total - seen) :] if total > seen else []


def _told(logprob: float | None, token: int) -> float:
    if logprob is None:
        raise NoLogprobs(f"no logprob for token {token}", retryable=False)
    return logprob


def _finish(reason: FinishReason | None) -> Finish | None:
    if reason is None:
        return None
    if reason.type == "abort" and (reason.status_code or 0) >= _BAD_REQUEST:
        what = f"status {reason.status_code}: {reason.message}"
        raise EngineError(what, retryable=is_passing(reason.status_code or 0))
    return _FINISHES.get(reason.type, "stop")


def _reason(reason: FinishReason | None) -> str | None:
    if reason is None:
        return None
    word = reason.message if reason.matched is None else reason.matched
    return None if word is None else str(word)


def _experts(text: str | None, count: int) -> tuple[Experts | None, str | None]:
    """Of the sampled tokens, or what is wrong; the layers and choices of a row are not said."""
    if text is None:
        return None, None
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:  # a letter that is none of it, or what is no ASCII at all
        return None, f"routed experts: {error}"
    per_token, odd = divmod(len(data), count * _EXPERT_BYTES or 1)
    if odd or not count:
        return None, f"{len(data)} bytes of routed experts for {count} tokens"
    return Experts(dtype="int32", shape=(count, per_token), data=data), None


def _sampling(sampling: Sampling) -> dict[str, Any]:
    given: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "sampling_seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_ids) or None,
        "json_schema": sampling.json_schema,
        # A stop string may be, or hold, a control token; and nothing is to be cut off.
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    return {name: value for name, value in given.items() if value is not None}
