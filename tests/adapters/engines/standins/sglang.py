"""A server that speaks SGLang's native API."""

import base64
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from streams.adapters.engines.interface import Engine, Generation, Sampling, Tokens
from tests.adapters.engines.standins.serving import Faults, StandIn

BOS = 1
OPEN = ("/health", "/metrics")


class _Sampling(msgspec.Struct, forbid_unknown_fields=True):
    """The real server refuses other fields here."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    skip_special_tokens: bool
    no_stop_trim: bool
    sampling_seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    json_schema: str | None = None


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    rid: str
    input_ids: list[int]
    sampling_params: _Sampling
    routing_key: str
    return_logprob: bool
    stream: bool
    return_routed_experts: bool = False
    routed_experts_start_len: int = 0
    return_prompt_token_ids: bool = False


class StandInSglang(StandIn):
    """With tokens so far, or new ones alone."""

    def __init__(self, model: Engine, *, incremental: bool = False) -> None:
        super().__init__(model)
        self.incremental = incremental
        self.held: set[str] = set()
        """Requests that it still has, of connections that broke."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/generate", self.generate),
            web.post("/abort_request", self._abort),
            web.get("/model_info", self._model_info),
        ]

    def guards(self, path: str) -> bool:
        return not path.startswith(OPEN)

    def read(self, body: bytes) -> tuple[Generation, "_Stream"]:
        asked = msgspec.json.decode(body, type=_Asked)
        if asked.rid in self.held:
            raise msgspec.ValidationError(f"Duplicate request ID detected: {asked.rid}")
        given = asked.sampling_params
        generation = Generation(
            request_id=asked.rid,
            routing_key=asked.routing_key,
            input_ids=np.asarray(asked.input_ids, np.int32),
            sampling=Sampling(
                max_new_tokens=given.max_new_tokens,
                temperature=given.temperature,
                top_p=given.top_p,
                top_k=given.top_k,
                min_p=given.min_p,
                seed=given.sampling_seed,
                stop=tuple(given.stop),
                stop_ids=tuple(given.stop_token_ids),
                json_schema=given.json_schema,
            ),
            routed_experts=asked.return_routed_experts,
        )
        return generation, _Stream(asked, self.faults, incremental=self.incremental)

    async def _abort(self, request: web.Request) -> web.Response:
        rid = str((await request.json())["rid"])
        self.held.discard(rid)
        await self.stop(rid)
        return web.Response()

    async def _model_info(self, _: web.Request) -> web.Response:
        if self.faults.away:
            return web.Response(status=503)
        return web.json_response({"model_path": "small", "weight_version": "default"})


class _Stream:
    def __init__(self, asked: _Asked, faults: Faults, *, incremental: bool) -> None:
        self._asked = asked
        self._faults = faults
        self._incremental = incremental
        self._ids: list[int] = []
        self._entries: list[tuple[float | None, int, None]] = []
        self._runs: list[tuple[str, int]] = []

    def event(self, tokens: Tokens) -> dict[str, Any]:
        before, faults = len(self._ids), self._faults
        ids, logprobs = list(tokens.ids), [float(value) for value in tokens.logprobs]
        if faults.trims_stop and tokens.finish == "stop":
            ids, logprobs = ids[:-1], logprobs[:-1]
        self._ids += ids
        shift = 1 if faults.others_logprobs else 0
        self._entries += [
            (None if faults.null_logprob else value, token + shift, None)
            for value, token in zip(logprobs, ids, strict=True)
        ]
        since = before if self._incremental else 0
        shown = self._ids[since:]
        if self._incremental and tokens.finish == "abort":
            shown = self._ids[-1:]  # as the real one does
        entries = self._entries[since:]
        meta = {
            "id": self._asked.rid,
            "prompt_tokens": len(self._asked.input_ids),
            "completion_tokens": len(self._ids),
            "finish_reason": self._finish(tokens),
            "output_token_logprobs": entries[:-1] if faults.drops_logprob else entries,
            **self._versions(tokens, len(ids)),
        }
        if tokens.finish and self._asked.return_routed_experts:
            if tokens.routed_experts is not None:  # the model knows
                meta["routed_experts"] = base64.b64encode(tokens.routed_experts.data).decode()
            elif faults.experts:
                meta["routed_experts"] = self._experts(*faults.experts)
        event = {"text": "", "output_ids": shown, "meta_info": meta}
        if self._asked.return_prompt_token_ids:
            added = [BOS] if faults.adds_token else []
            event["prompt_token_ids"] = added + self._asked.input_ids
        return event

    def failure(self, message: str, status: int) -> dict[str, Any]:
        return {"error": {"message": message, "type": "invalid_request_error", "code": status}}

    def _finish(self, tokens: Tokens) -> dict[str, Any] | None:
        if self._faults.aborts_with is not None:
            status = self._faults.aborts_with
            return {"type": "abort", "message": "the queue is full", "status_code": status}
        if tokens.finish is None:
            return None
        if tokens.finish == "stop":
            return {"type": "stop", "matched": tokens.stop_reason}
        if tokens.finish == "length":
            return {"type": "length", "length": len(self._ids)}
        return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}

    def _versions(self, tokens: Tokens, count: int) -> dict[str, Any]:
        if self._faults.no_version:
            return {"weight_version": "default"}
        if count:
            label = tokens.weight_label or str(tokens.weight_version)
            if self._runs and self._runs[-1][0] == label:
                count += self._runs.pop()[1]
            self._runs.append((label, count))
        spans, start = [], 0
        for label, length in self._runs:
            spans.append({"version": label, "start": start, "end": start + length})
            start += length
        last = self._runs[-1][0] if self._runs else "default"
        return {"weight_version": last, "weight_versions": spans}

    def _experts(self, layers: int, choices: int) -> str:
        whole = len(self._asked.input_ids) + len(self._ids) - 1
        rows = whole - self._asked.routed_experts_start_len
        made = np.arange(rows * layers * choices, dtype=np.int32)
        return base64.b64encode(
            made.tobytes()[: -4 if self._faults.experts_short else None]
        ).decode()
