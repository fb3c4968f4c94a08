"""One answer out of an engine, however often it is stopped on the way.

    prompt ──► ids, ids, abort          stopped for new weights
    prompt + ids ──► ids, ids, stop     gone on with, in the same turn

An engine that stops a generation before it has sampled a token of it is paused for, longer each
time, and given up in the end: it would be asked in a circle.

Invariant: what is sampled is one sequence of ids; whoever is told to stop has stopped the engine
too when it returns.
"""

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Sequence

import numpy as np

from schemas.record import Ids
from streams.adapters.engines.interface import Engine, EngineError, Generation, Sampling
from streams.adapters.gateway.sampled import Sampled

PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, *[2.0] * 13)
"""After each stop in a row that came before a token was sampled; then the engine is given up."""
_ABORT_S = 5.0

Feed = Callable[[Sequence[int]], None]


class Generating:
    """The sampling of one turn."""

    def __init__(
        self,
        engine: Engine,
        routing_key: str,
        sampled: Sampled,
        feed: Feed,
        *,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        """`feed` gets the ids as they come."""
        self._pauses_s = pauses_s
        self._engine = engine
        self._routing_key = routing_key
        self._sampled = sampled
        self._feed = feed
        self._request_id = ""
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self.continued = 0

    def stop(self) -> None:
        """Sample no further; `run` returns with finish `abort`."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def run(self, prompt: Ids, sampling: Sampling) -> None:
        """Sample until the answer ends or is stopped.

        Raises:
            EngineError: it fails; what was sampled stands.
        """
        if self._stopped:
            self._sampled.finish = "abort"
            return
        task = self._task = asyncio.create_task(self._all(prompt, sampling))
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        if not task.cancelled():
            task.result()
        elif self._stopped:
            self._sampled.finish = "abort"
            # Closing the stream says so too; this reaches an engine that does not notice.
            with contextlib.suppress(TimeoutError, EngineError):
                async with asyncio.timeout(_ABORT_S):
                    await self._engine.abort(self._request_id)
        else:
            raise EngineError("the engine gave up the request")

    async def _all(self, prompt: Ids, sampling: Sampling) -> None:
        sampled, most = self._sampled, sampling.max_new_tokens
        pauses_s = iter(self._pauses_s)
        while True:
            before = len(sampled.ids)
            ids = np.concatenate([prompt, sampled.output_ids]) if before else prompt
            await self._once(ids, dataclasses.replace(sampling, max_new_tokens=most - before))
            if sampled.finish != "abort":
                return
            if len(sampled.ids) >= most:
                sampled.finish = "length"
                return
            # Stopped for new weights: go on from what was sampled.
            if len(sampled.ids) > before:
                pauses_s = iter(self._pauses_s)
            else:
                pause_s = next(pauses_s, None)
                if pause_s is None:
                    raise EngineError("the engine stops the generation again and again")
                await asyncio.sleep(pause_s)
            self.continued += 1

    async def _once(self, ids: Ids, sampling: Sampling) -> None:
        self._request_id = uuid.uuid4().hex
        generation = Generation(
            request_id=self._request_id,
            routing_key=self._routing_key,
            input_ids=ids,
            sampling=sampling,
        )
        stream = self._engine.generate(generation)
        try:
            async for tokens in stream:
                self._sampled.add(tokens)
                self._feed(tokens.ids)
                if tokens.finish is not None:
                    return
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        raise EngineError("the engine's answer has no end")
