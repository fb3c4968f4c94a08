"""vLLM's `/inference/v1/generate`: ids in, ids with logprobs out.

The OpenAI-like endpoints give ids only beside text; this one gives nothing else. A server has it
when it is started with `--enable-scale-out` or `--tokens-only`. Logprobs are of the distribution
sampled from, cuts included, only with `--logprobs-mode processed_logprobs`. The doctor tells.

Every event has the new tokens; which weights they are of is said on the last, of all.

Invariant: each token has the logprob with its own id.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
import numpy as np

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

ID_PREFIX = "generate-tokens-"
"""The server puts it before the id of a request; who aborts has to, too."""
NO_LOGPROB = -9999.0
"""What the server writes where it has none."""
_FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "repetition": "stop",
}
_EXPERT_DTYPES = ("int8", "int16", "int32", "int64", "uint8")
_BAD_REQUEST = 400


class Span(msgspec.Struct):
    """Tokens from here to there and the weights they are of."""

    version: str
    start: int
    end: int


class Sampled(msgspec.Struct):
    """A token's logprob."""

    token_id: int
    logprob: float


class Logprobs(msgspec.Struct):
    """Of the tokens beside them."""

    content: list[Sampled] | None = None


class Choice(msgspec.Struct):
    """Some more of the answer."""

    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: list[Span] | None = None
    routed_experts: str | None = None


class Failure(msgspec.Struct):
    """In place of tokens."""

    message: str = ""
    code: int = _BAD_REQUEST


class Event(msgspec.Struct):
    """One event of an answer."""

    choices: list[Choice] = []
    prompt_token_ids: list[int] | None = None
    error: Failure | None = None


def vllm_engine(
    addresses: Sequence[str], *, read_s: float = READ_S, api_key: str | None = None
) -> HttpEngine:
    """An engine of vLLM at these addresses."""
    return HttpEngine(VllmWire(), addresses, read_s=read_s, api_key=api_key)


class VllmWire:
    """The API of tokens in, tokens out."""

    kind = "vLLM"
    generate_path = "/inference/v1/generate"
    abort_path = "/inference/v1/abort_requests"
    signs: Mapping[str, str | None] = {"/health": None, "/version": "version"}

    def body(self, generation: Generation) -> dict[str, Any]:
        """The request."""
        sampling = _sampling(generation.sampling)
        if generation.routed_experts:
            # The pass over the prompt's last token is the one that samples the first.
            sampling["routed_experts_prompt_start"] = len(generation.input_ids) - 1
        body: dict[str, Any] = {
            "request_id": generation.request_id,
            "token_ids": generation.input_ids.tolist(),
            "sampling_params": sampling,
            "stream": True,
        }
        if generation.echo:
            body["return_token_ids"] = True
        return body

    def headers(self, generation: Generation) -> dict[str, str]:
        """For a router in front of several, and the server's own choice of a rank."""
        return {"X-Session-ID": generation.routing_key}

    def answer(self, generation: Generation) -> "_Answer":
        """A reader of one answer."""
        return _Answer(experts=generation.routed_experts)

    def abort_body(self, request_id: str) -> dict[str, Any]:
        """What stops a request."""
        return {"request_ids": [ID_PREFIX + request_id]}

    def is_twin(self, message: str) -> bool:
        """It makes ids its own, so two with the same do not meet."""
        return False

    def is_switched_off(self, message: str) -> bool:
        """Without the flag it forbids what takes ids."""
        return "--enable-scale-out" in message


class _Answer:
    """What came so far."""

    def __init__(self, *, experts: bool) -> None:
        self._seen = 0
        self._experts = experts

    def tokens(self, event: bytes) -> Tokens | None:
        """What an event says.

        Raises:
            EngineError: it fails, or a logprob is missing.
        """
        told = msgspec.json.decode(event, type=Event)
        if told.error is not None:
            raise EngineError(told.error.message, retryable=is_passing(told.error.code))
        if not told.choices:
            return None
        (choice,) = told.choices[:1]
        ids = choice.token_ids or []
        logprobs = _logprobs(ids, choice.logprobs)
        self._seen += len(ids)
        spans = choice.weight_versions or []
        experts, wrong = None, None
        if self._experts and choice.routed_experts is not None:
            experts, wrong = _array(choice.routed_experts, self._seen)
        return Tokens(
            ids=tuple(ids),
            logprobs=logprobs,
            weight_label=spans[-1].version if spans else None,
            weight_runs=tuple((weight_version(s.version), s.end - s.start) for s in spans) or None,
            run_labels=tuple(span.version for span in spans),
            finish=_finish(choice.finish_reason),
            stop_reason=None if choice.stop_reason is None else str(choice.stop_reason),
            routed_experts=experts,
            experts_wrong=wrong,
            prompt_ids=None if told.prompt_token_ids is None else tuple(told.prompt_token_ids),
        )


def _logprobs(ids: list[int], given: Logprobs | None) -> tuple[float, ...]:
    content = (given.content if given is not None else None) or []
    if [entry.token_id for entry in content] != ids:
        what = f"{len(content)} logprobs for {len(ids)} tokens, or of others"
        raise NoLogprobs(what, retryable=False)
    for entry in content:
        if entry.logprob <= NO_LOGPROB:
            raise NoLogprobs(f"no logprob for token {entry.token_id}")
    return tuple(entry.logprob for entry in content)


def _finish(reason: str | None) -> Finish | None:
    if reason is None:
        return None
    if reason == "error":
        raise EngineError("the generation failed")
    return _FINISHES.get(reason, "stop")


def _array(text: str, count: int) -> tuple[Experts | None, str | None]:
    """Of the sampled tokens, or what is wrong."""
    try:
        data = io.BytesIO(base64.b64decode(text, validate=True))
        array = np.lib.format.read_array(data, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        return None, f"routed experts: {error}"
    if not array.ndim or array.shape[0] != count:
        return None, f"routed experts of shape {array.shape} for {count} tokens"
    if array.dtype.kind not in "iu":
        return None, f"routed experts of type {array.dtype}"
    if array.dtype.name not in _EXPERT_DTYPES:
        array = array.astype(np.int32)
    dtype = cast(Literal["int8", "int16", "int32", "int64", "uint8"], array.dtype.name)
    return Experts(dtype=dtype, shape=array.shape, data=array.tobytes()), None


def _sampling(sampling: Sampling) -> dict[str, Any]:
    given: dict[str, Any] = {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_ids) or None,
        "structured_outputs": sampling.json_schema and {"json": sampling.json_schema},
        # The sampled token's alone.
        "logprobs": 0,
        # A text is made only to look for a stop string, which may be, or hold, a control token.
        "detokenize": bool(sampling.stop),
        "skip_special_tokens": False,
    }
    return {name: value for name, value in given.items() if value is not None}
