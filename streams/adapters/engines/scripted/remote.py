"""The scripted engine of another process, reached over HTTP.

    generate ──► POST /generate ──► a line of JSON for each Tokens

Invariant: an answer that stops without a finish is an error, never a short answer; closing the
iterator early closes the connection, and with it the generation.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Literal

import aiohttp
import msgspec

from streams.adapters.engines.interface import (
    EngineAway,
    EngineError,
    Experts,
    Finish,
    Generation,
    Tokens,
    WrongEngine,
)
from streams.adapters.engines.over_http import is_passing
from streams.adapters.engines.routing import shown

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=300.0)
_QUESTION = aiohttp.ClientTimeout(total=5.0)
_OK = 200
_DETAIL_CHARS_MAX = 500


class NotScripted(WrongEngine):
    """Somebody answers at that address, but no scripted engine."""


class _Line(msgspec.Struct):
    """Some tokens, or why there are no more."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    weight_version: int | None = None
    weight_label: str | None = None
    finish: Finish | None = None
    stop_reason: str | None = None
    routed_experts: Experts | None = None
    error: str | None = None
    retryable: bool = True


class RemoteScriptedEngine:
    """An engine at an address."""

    def __init__(self, url: str) -> None:
        """Nothing is asked yet."""
        self._url = url.rstrip("/")
        self._shown = shown(self._url)
        self._client: aiohttp.ClientSession | None = None

    @property
    def name(self) -> str:
        return f"scripted engine at {self._shown}"

    @property
    def logprobs(self) -> Literal["processed", "raw"]:
        return "processed"

    @property
    def forces_calls(self) -> bool:
        return False

    async def generate(self, generation: Generation) -> AsyncGenerator[Tokens, None]:
        """Tokens as they come.

        Raises:
            EngineError: the engine says so, is away, or stops in the middle.
        """
        asked = {
            "request_id": generation.request_id,
            "routing_key": generation.routing_key,
            "input_ids": generation.input_ids.tolist(),
            "sampling": generation.sampling,
            "routed_experts": generation.routed_experts,
        }
        finished = False
        try:
            async with self._http.post(
                f"{self._url}/generate", data=msgspec.json.encode(asked), timeout=_TIMEOUT
            ) as response:
                if response.status != _OK:
                    raise await self._refusal(response)
                async for line in _lines(response.content):
                    tokens = self._tokens(line)
                    finished = tokens.finish is not None
                    yield tokens
        except (aiohttp.ClientError, TimeoutError) as error:
            if not finished:
                detail = f"{type(error).__name__}: {shown(str(error))}"
                raise EngineError(f"{self.name}: {detail}") from error
        if not finished:
            raise EngineError(f"{self.name}: the answer stops in the middle")

    async def abort(self, request_id: str) -> None:
        """Stop a generation; an engine that is away has none."""
        try:
            body = msgspec.json.encode({"request_id": request_id})
            async with self._http.post(f"{self._url}/abort", data=body, timeout=_QUESTION):
                pass
        except (aiohttp.ClientError, TimeoutError):
            pass

    async def require_ready(self) -> None:
        """Return if it answers.

        Raises:
            EngineAway: nobody answers.
            EngineError: it answers, but not yet.
            NotScripted: somebody else answers.
        """
        try:
            async with self._http.get(f"{self._url}/ready", timeout=_QUESTION) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            detail = f"{type(error).__name__}: {shown(str(error))}"
            raise EngineAway(f"{self.name}: no answer: {detail}") from error
        if is_passing(response.status):
            raise EngineError(f"{self.name}: status {response.status}")
        if response.status != _OK or body:
            what = f"status {response.status}, this is no scripted engine"
            raise NotScripted(f"{self._shown}: {what}")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    @property
    def _http(self) -> aiohttp.ClientSession:
        # Made when it is first used: it belongs to the event loop that runs then.
        if self._client is None:
            self._client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._client

    def _tokens(self, text: bytes) -> Tokens:
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.DecodeError as error:
            raise EngineError(f"{self.name}: {error}") from error
        if line.error is not None:
            raise EngineError(line.error, retryable=line.retryable)
        return Tokens(
            ids=line.ids,
            logprobs=line.logprobs,
            weight_version=line.weight_version,
            weight_label=line.weight_label,
            finish=line.finish,
            stop_reason=line.stop_reason,
            routed_experts=line.routed_experts,
        )

    async def _refusal(self, response: aiohttp.ClientResponse) -> EngineError:
        body = await response.read()
        try:
            told: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
            return EngineError(str(told["error"]), retryable=bool(told["retryable"]))
        except (msgspec.DecodeError, KeyError):
            detail = body[:_DETAIL_CHARS_MAX].decode(errors="replace")
            return EngineError(f"{self.name}: status {response.status}: {detail}", retryable=False)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines of any length."""
    rest = b""
    async for chunk in content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest
