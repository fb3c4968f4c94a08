"""The mock engine as the gateway sees it: ids posted, ids and logprobs read, in one piece each.

Invariant: one pooled client for all generations, as any engine over HTTP has it.
"""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Literal, Self

import msgspec
import orjson
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

from benchmarks.gateway_mock import SESSION_HEADER
from streams.adapters.engines.interface import EngineError, Finish, Generation, Tokens


class _Why(msgspec.Struct):
    type: Finish


class _Meta(msgspec.Struct):
    finish_reason: _Why
    output_token_logprobs: list[tuple[float, int, str | None]]
    weight_version: str


class _Given(msgspec.Struct):
    meta_info: _Meta


_READ = msgspec.json.Decoder(_Given).decode


class MockEngine:
    """An `Engine` behind an address."""

    logprobs: Literal["processed", "raw"] = "processed"
    forces_calls = False

    def __init__(self, address: str) -> None:
        """Made where the event loop runs."""
        self.name = address
        # An answer may take as long as it takes: no clock runs for each request.
        self._session = ClientSession(
            connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None)
        )

    async def __aenter__(self) -> Self:
        """Closed at the end of the block."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go."""
        await self.close()

    async def generate(self, generation: Generation) -> AsyncIterator[Tokens]:
        """One piece, the last."""
        sampling = generation.sampling
        asked = {
            "rid": generation.request_id,
            "input_ids": generation.input_ids,
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_new_tokens": sampling.max_new_tokens,
                "stop_token_ids": sampling.stop_ids,
            },
            "return_logprob": True,
        }
        body = orjson.dumps(asked, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = {"content-type": "application/json", SESSION_HEADER: generation.routing_key}
        try:
            async with self._session.post(
                f"{self.name}/generate", data=body, headers=headers
            ) as answer:
                meta = _READ(await answer.read()).meta_info
        except (ClientError, msgspec.DecodeError) as error:
            raise EngineError(f"{self.name}: {error}") from error
        logprobs, ids, _ = zip(*meta.output_token_logprobs, strict=True)
        yield Tokens(
            ids=ids,
            logprobs=logprobs,
            weight_version=int(meta.weight_version),
            finish=meta.finish_reason.type,
        )

    async def abort(self, request_id: str) -> None:
        """Nothing to stop: an answer is there at once."""

    async def require_ready(self) -> None:
        """It always is."""

    async def close(self) -> None:
        await self._session.close()
