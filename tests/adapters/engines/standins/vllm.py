"""A server that speaks vLLM's API of tokens in, tokens out."""

import base64
import io
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from streams.adapters.engines.interface import Engine, Generation, Sampling, Tokens
from tests.adapters.engines.standins.serving import Faults, StandIn

BOS = 1
PREFIX = "generate-tokens-"
GUARDED = ("/v1", "/v2", "/inference", "/cohere")
FINISHES = {"stop": "stop", "length": "length", "abort": "abort"}


class _Outputs(msgspec.Struct, forbid_unknown_fields=True):
    json: str


class _Sampling(msgspec.Struct, forbid_unknown_fields=True):
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logprobs: int
    detokenize: bool
    skip_special_tokens: bool
    seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    structured_outputs: _Outputs | None = None
    routed_experts_prompt_start: int | None = None


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    request_id: str
    token_ids: list[int]
    sampling_params: _Sampling
    stream: bool
    return_token_ids: bool = False


class StandInVllm(StandIn):
    """With the endpoint, or without, as it is started."""

    def __init__(self, model: Engine, *, scale_out: bool = True) -> None:
        super().__init__(model)
        self.scale_out = scale_out

    def routes(self) -> list[web.RouteDef]:
        generate = self.generate if self.scale_out else self._disabled
        return [
            web.post("/inference/v1/generate", generate),
            web.post("/inference/v1/abort_requests", self._abort),
            web.get("/health", self._health),
            web.get("/version", self._version),
        ]

    def guards(self, path: str) -> bool:
        return path.startswith(GUARDED)

    def read(self, body: bytes) -> tuple[Generation, "_Stream"]:
        asked = msgspec.json.decode(body, type=_Asked)
        given = asked.sampling_params
        if given.stop and not given.detokenize:
            raise msgspec.ValidationError("stop strings need detokenize")
        generation = Generation(
            request_id=PREFIX + asked.request_id,
            routing_key=self.headers[-1].get("X-Session-ID", ""),
            input_ids=np.asarray(asked.token_ids, np.int32),
            sampling=Sampling(
                max_new_tokens=given.max_tokens,
                temperature=given.temperature,
                top_p=given.top_p,
                top_k=given.top_k,
                min_p=given.min_p,
                seed=given.seed,
                stop=tuple(given.stop),
                stop_ids=tuple(given.stop_token_ids),
                json_schema=given.structured_outputs.json if given.structured_outputs else None,
            ),
            routed_experts=given.routed_experts_prompt_start is not None,
        )
        return generation, _Stream(asked, self.faults)

    async def _disabled(self, _: web.Request) -> web.Response:
        what = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out"
        return self.refusal(what, 403)

    async def _abort(self, request: web.Request) -> web.Response:
        for request_id in (await request.json())["request_ids"]:
            await self.stop(str(request_id))
        return web.Response()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.faults.away else 200)

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.0.0"})


class _Stream:
    def __init__(self, asked: _Asked, faults: Faults) -> None:
        self._asked = asked
        self._faults = faults
        self._count = 0
        self._runs: list[tuple[str, int]] = []

    def event(self, tokens: Tokens) -> dict[str, Any]:
        faults, first = self._faults, not self._count
        ids, logprobs = list(tokens.ids), [float(value) for value in tokens.logprobs]
        if faults.trims_stop and tokens.finish == "stop":
            ids, logprobs = ids[:-1], logprobs[:-1]
        self._count += len(ids)
        self._track(tokens, len(ids))
        shift = 1 if faults.others_logprobs else 0
        content = [
            {
                "token_id": token + shift,
                "logprob": -9999.0 if faults.null_logprob else value,
                "rank": 1,
                "top_logprobs": [],
            }
            for token, value in zip(ids, logprobs, strict=True)
        ]
        choice: dict[str, Any] = {
            "index": 0,
            "token_ids": ids,
            "logprobs": {"content": content[:-1] if faults.drops_logprob else content},
            "finish_reason": FINISHES[tokens.finish] if tokens.finish else None,
            "stop_reason": tokens.stop_reason if tokens.finish == "stop" else None,
            "weight_versions": self._spans() if tokens.finish else None,
            "routed_experts": self._experts(tokens) if tokens.finish else None,
        }
        if faults.aborts_with is not None:
            choice["finish_reason"] = "error"
        event: dict[str, Any] = {
            "request_id": PREFIX + self._asked.request_id,
            "output_mode": "tokens",
            "choices": [choice],
        }
        if first and self._asked.return_token_ids:
            event["prompt_token_ids"] = [BOS] * faults.adds_token + self._asked.token_ids
        return event

    def failure(self, message: str, status: int) -> dict[str, Any]:
        return {"error": {"message": message, "type": "BadRequestError", "code": status}}

    def _track(self, tokens: Tokens, count: int) -> None:
        if not count:
            return
        label = tokens.weight_label or str(tokens.weight_version)
        if self._faults.no_version:
            label = "default"
        if self._runs and self._runs[-1][0] == label:
            count += self._runs.pop()[1]
        self._runs.append((label, count))

    def _spans(self) -> list[dict[str, Any]]:
        spans, start = [], 0
        for label, length in self._runs:
            spans.append({"version": label, "start": start, "end": start + length})
            start += length
        return spans

    def _experts(self, tokens: Tokens) -> str | None:
        if tokens.routed_experts is not None:  # the model knows
            known = tokens.routed_experts
            return _npy(np.frombuffer(known.data, known.dtype).reshape(known.shape))
        if self._faults.experts is None:
            return None
        whole = len(self._asked.token_ids) + self._count - 1
        rows = whole - (self._asked.sampling_params.routed_experts_prompt_start or 0)
        rows -= self._faults.experts_short
        return _npy(np.zeros((rows, *self._faults.experts), np.uint16))


def _npy(array: Any) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()
