"""One answer out of an engine, however often it is stopped on the way.

    prompt ──► ids, ids, abort          stopped for new weights
    prompt + ids ──► ids, ids, stop     gone on with, in the same turn

While the run is paused the engine is not asked; an engine that fails in a pause, in a way that
time mends, is being changed and counts as stopped. After a stop what was declared is read up to
now: the pause stands in the log before the trainer touches the engine, so what follows it cannot
be taken for the weights before. The same is done before tokens are taken that may be of weights
which nobody here has heard of: the first of a generation, what comes in a pause, what comes after
a silence. Where the log does not answer, their version is not known.

An engine may stop an answer that has just ended, before it has seen the end: it is over. A stop
string may begin before a stop and end behind it, where the engine does not see it: then the answer
is cut here, at the token that completes it. What a schema forces cannot be gone on with: the
engine would begin the schema anew.

An engine that stops a generation before it has sampled a token of it, without a pause, is waited
for, longer each time, and given up in the end: it would be asked in a circle.

Invariant: what is sampled is one sequence of ids; whoever is told to stop has stopped the engine
too when it returns; a token's version is the one the engine reports, else the one declared if the
engine was seen to take it, else unknown.
"""

import asyncio
import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from schemas.record import Ids
from streams.adapters.engines.interface import (
    Engine,
    EngineError,
    Generation,
    Replicated,
    Sampling,
    Tokens,
)
from streams.adapters.gateway.sampling.engine_labels import Sighting
from streams.adapters.gateway.sampling.run_weights import RunWeights
from streams.adapters.gateway.sampling.sampled import Sampled

PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, *[2.0] * 13)
"""After each stop in a row that came before a token was sampled; then the engine is given up."""
_ABORT_S = 5.0
_SILENCE_S = 0.1
"""Long enough for an engine to get other weights in the middle of an answer."""
_AT_ONCE_S = 0.05
"""What is heard of so soon after a token was there before it; later, the clocks tell."""

CANNOT_CONTINUE = "stopped in an answer that a schema constrains, which cannot be gone on with"

Feed = Callable[[Sequence[int]], bool]
"""Takes ids as they come; whether a stop string of the call's is complete."""


class Updates(Protocol):
    """The weights of the run that a call belongs to."""

    @property
    def now(self) -> RunWeights:
        """As far as they are known."""
        ...

    @property
    def engine_tells(self) -> bool:
        """Whether the engine says versions by itself."""
        ...

    def hear_version(self) -> None:
        """The engine has said one."""
        ...

    @property
    def has_versions(self) -> bool:
        """Whether the run's weights have versions at all."""
        ...

    def see_label(self, label: str, at: Sighting) -> None:
        """The engine reported this label."""
        ...

    def version_of(self, label: str | None, at: Sighting) -> int | None:
        """The declared version of tokens that came so; None: not certain."""
        ...

    async def passed(self) -> bool:
        """Wait while the run is paused; False: gave up.

        Raises:
            EngineError: for too long.
        """
        ...

    async def caught_up(self) -> bool:
        """Know what was declared by now; False: the log does not answer."""
        ...


class Generating:
    """The sampling of one turn."""

    def __init__(
        self,
        engine: Engine,
        routing_key: str,
        sampled: Sampled,
        feed: Feed,
        updates: Updates,
    ) -> None:
        """Nothing is asked yet."""
        self._updates = updates
        self.pauses_s: Sequence[float] = PAUSES_S
        self._engine = engine
        self._routing_key = routing_key
        self._sampled = sampled
        self._feed = feed
        self._request_id = ""
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._seen = updates.now
        """What was known when the last tokens came, or the generation began."""
        self._sighting: Sighting | None = None
        """Where the last tokens came from, and what was declared then; None: not known."""
        self._label: str | None = None
        """The engine's, of the last tokens."""
        self._heard_s = 0.0
        """When they came."""
        self._ended = False
        """Whether they complete a stop string."""
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
            self._settle_versions()
            self._sampled.cache_flushed = self._updates.now.cache_flushed
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
        pauses_s = iter(self.pauses_s)
        while await self._updates.passed():
            if self.continued:
                self._join()
            before = len(sampled.ids)
            ids = np.concatenate([prompt, sampled.output_ids]) if before else prompt
            await self._part(ids, self._rest(sampling, before))
            if sampled.finish != "abort":
                return
            if self._ended or (sampled.ids and sampled.ids[-1] in sampling.stop_ids):
                sampled.cut()
                return
            if len(sampled.ids) >= most:
                sampled.finish = "length"
                return
            # Stopped for new weights: go on from what was sampled.
            if sampled.ids and sampling.json_schema is not None:
                raise EngineError(CANNOT_CONTINUE)
            if len(sampled.ids) > before:
                pauses_s = iter(self.pauses_s)
            elif not self._updates.now.paused:
                pause_s = next(pauses_s, None)
                if pause_s is None:
                    raise EngineError("the engine stops the generation again and again")
                await asyncio.sleep(pause_s)
            self.continued += 1
        sampled.finish = "abort"

    async def _part(self, ids: Ids, sampling: Sampling) -> None:
        """One generation; whatever ends it for an update is a stop."""
        self._seen = self._updates.now
        try:
            await self._once(ids, sampling)
        except EngineError as error:
            if error.retryable:
                await self._updates.caught_up()
            now = self._updates.now
            if not error.retryable or not (now.paused or now.updates > self._seen.updates):
                raise
            self._sampled.finish = "abort"
        else:
            if self._sampled.finish == "abort":
                await self._updates.caught_up()

    def _rest(self, sampling: Sampling, before: int) -> Sampling:
        """How it is gone on after so many tokens; the same seed would draw the same numbers."""
        seed = None if sampling.seed is None else sampling.seed + self.continued
        most = sampling.max_new_tokens - before
        return dataclasses.replace(sampling, max_new_tokens=most, seed=seed)

    def _join(self) -> None:
        now, seen = self._updates.now, self._seen
        self._sampled.join(now.flushes > seen.flushes if now.updates > seen.updates else None)

    async def _once(self, ids: Ids, sampling: Sampling) -> None:
        self._request_id = uuid.uuid4().hex
        before = len(self._sampled.ids)
        self._sampled.begin()
        generation = Generation(
            request_id=self._request_id,
            routing_key=self._routing_key,
            input_ids=ids,
            sampling=sampling,
            routed_experts=self._sampled.experts is not None,
        )
        stream = self._engine.generate(generation)
        first = True
        try:
            async for tokens in stream:
                if tokens.ids:
                    await self._know(tokens, first=first)
                    first = False
                by_itself = bool(before and sampling.stop)
                for part in _one_by_one(tokens) if by_itself else (tokens,):
                    self._hear(part)
                    self._ended = self._feed(part.ids)
                    if self._ended and by_itself:
                        self._sampled.cut()
                        return
                if tokens.finish is not None:
                    return
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        raise EngineError("the engine's answer has no end")

    async def _know(self, tokens: Tokens, *, first: bool) -> None:
        """Read what was declared for these tokens by now, unless the engine reports versions."""
        known, came_s, came_ms = self._updates.now, time.monotonic(), int(time.time() * 1000)
        held = known.paused or came_s - self._heard_s >= _SILENCE_S
        changed = tokens.weight_label != self._label
        self._label = tokens.weight_label
        update, paused, is_known = known.update, known.paused, True
        if tokens.weight_version is None and (
            first or changed or (held and not self._updates.engine_tells)
        ):
            is_known = await self._updates.caught_up()
            now, at_once = self._updates.now, time.monotonic() - came_s < _AT_ONCE_S
            update = now.update if at_once else now.update_at(came_ms, known)
            paused = now.paused if at_once else known.paused and update == known.update
        self._sighting = Sighting(self._replica(), update, paused) if is_known else None
        if (changed or first) and self._label is not None and self._sighting is not None:
            self._updates.see_label(self._label, self._sighting)
        if first and self.continued:
            self._join()
        self._seen = self._updates.now
        self._heard_s = time.monotonic()

    def _replica(self) -> str | None:
        engine = self._engine
        return engine.replica_of(self._request_id) if isinstance(engine, Replicated) else None

    def _settle_versions(self) -> None:
        """Give the tokens their versions; some engines report labels at the end only."""
        for label, sighting, _ in self._sampled.labelled():
            if label is not None and sighting is not None:
                self._updates.see_label(label, sighting)
        self._sampled.confirm(self._updates.version_of)
        self._sampled.run_has_versions = self._updates.has_versions

    def _hear(self, tokens: Tokens) -> None:
        self._sampled.add(tokens, self._sighting)
        runs = tokens.weight_runs or ()
        if tokens.weight_version is not None or any(version is not None for version, _ in runs):
            self._updates.hear_version()


def _one_by_one(tokens: Tokens) -> list[Tokens]:
    """The same, a token at a time; the last says what is said at the end."""
    version, label = tokens.weight_version, tokens.weight_label
    pairs = list(zip(tokens.ids, tokens.logprobs, strict=False))
    if len(pairs) <= 1 or len(tokens.ids) != len(tokens.logprobs):
        return [tokens]
    first = [
        Tokens(ids=(token,), logprobs=(logprob,), weight_version=version, weight_label=label)
        for token, logprob in pairs[:-1]
    ]
    (token, logprob) = pairs[-1]
    return [*first, dataclasses.replace(tokens, ids=(token,), logprobs=(logprob,))]
