"""The scripted engine as a process of its own, over HTTP on loopback.

    POST /generate   {request_id, routing_key, input_ids, sampling}   a line of JSON for each Tokens
    POST /abort      {request_id}
    POST /weights    {version, label, abort}
    POST /pause      {abort}
    POST /resume
    GET  /journal    a line of JSON for each generation
    GET  /ready

A failure before the first token is status 503, a later one is a last line with `error`.

Invariant: a client that goes away ends its generation; the journal counts as taken what was
written to the connection, or was about to be.
"""

import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from aiohttp import web

from schemas.record import TOKEN_ID_MAX
from streams.adapters.engines.interface import EngineError, Generation, Sampling, Tokens
from streams.adapters.engines.scripted.engine import ScriptedEngine

ENGINE: web.AppKey[ScriptedEngine] = web.AppKey("engine", ScriptedEngine)
BODY_BYTES_MAX = 64 * 1024 * 1024

Form = TypeVar("Form")


class _Asked(msgspec.Struct):
    request_id: str
    routing_key: str
    input_ids: list[Annotated[int, msgspec.Meta(ge=0, le=TOKEN_ID_MAX)]]
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    routed_experts: bool = False


class _Aborted(msgspec.Struct):
    request_id: str


class _Weights(msgspec.Struct):
    version: int
    label: str | None = None
    abort: bool = True


class _Pause(msgspec.Struct):
    abort: bool = True


def application(engine: ScriptedEngine) -> web.Application:
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app[ENGINE] = engine
    app.add_routes(
        [
            web.post("/generate", _generate),
            web.post("/abort", _abort),
            web.post("/weights", _weights),
            web.post("/pause", _pause),
            web.post("/resume", _resume),
            web.get("/journal", _journal),
            web.get("/ready", _ready),
        ]
    )
    return app


async def _generate(request: web.Request) -> web.StreamResponse:
    asked = await _read(request, _Asked)
    generation = Generation(
        request_id=asked.request_id,
        routing_key=asked.routing_key,
        input_ids=np.asarray(asked.input_ids, np.int32),
        sampling=asked.sampling,
        routed_experts=asked.routed_experts,
    )
    async with contextlib.aclosing(request.app[ENGINE].generate(generation)) as stream:
        try:
            first = await anext(stream)
        except EngineError as error:
            return web.json_response(_failure(error), status=503)
        return await _written(request, first, stream)


async def _written(
    request: web.Request, first: Tokens, rest: AsyncGenerator[Tokens, None]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
    await response.prepare(request)
    await response.write(msgspec.json.encode(first) + b"\n")
    try:
        async for tokens in rest:
            await response.write(msgspec.json.encode(tokens) + b"\n")
    except EngineError as error:
        await response.write(msgspec.json.encode(_failure(error)) + b"\n")
    await response.write_eof()
    return response


async def _abort(request: web.Request) -> web.Response:
    await request.app[ENGINE].abort((await _read(request, _Aborted)).request_id)
    return web.Response()


async def _weights(request: web.Request) -> web.Response:
    weights = await _read(request, _Weights)
    request.app[ENGINE].update_weights(weights.version, weights.label, abort=weights.abort)
    return web.Response()


async def _pause(request: web.Request) -> web.Response:
    request.app[ENGINE].pause(abort=(await _read(request, _Pause)).abort)
    return web.Response()


async def _resume(request: web.Request) -> web.Response:
    request.app[ENGINE].resume()
    return web.Response()


async def _journal(request: web.Request) -> web.Response:
    entries = (msgspec.json.encode(entry.as_line()) for entry in request.app[ENGINE].journal)
    return web.Response(body=b"".join(line + b"\n" for line in entries))


async def _ready(request: web.Request) -> web.Response:
    await request.app[ENGINE].require_ready()
    return web.Response()


async def _read(request: web.Request, form: type[Form]) -> Form:
    try:
        return msgspec.json.decode(await request.read(), type=form)
    except msgspec.DecodeError as error:
        raise web.HTTPBadRequest(text=f"scripted engine: {error}") from error


def _failure(error: EngineError) -> dict[str, Any]:
    return {"error": str(error), "retryable": error.retryable}
