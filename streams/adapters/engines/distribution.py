"""Whose logprobs an engine gives: of the distribution sampled from, or of the bare model.

One token is asked for often, at two temperatures, out of the two likeliest. Raw logprobs of a
token are the same at both; those of the distribution sampled from are not:

    token 42      temperature 0.5    2.0
    processed     -0.127             -0.474
    raw           -0.313             -0.313

Where one token has all of the probability nothing can be told, and another prompt is tried.

Invariant: a verdict rests on one token that was drawn at both temperatures.
"""

import asyncio
import contextlib
import math
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from streams.adapters.engines.interface import (
    EngineError,
    Generation,
    KeyRefused,
    Sampling,
    Tokens,
)

TEMPERATURES = (0.5, 2.0)
SAME = 0.02
"""Logprobs of one token differ by less from one batch to another."""
_CERTAIN = -0.1
"""A token above this at both temperatures has nearly all of the probability."""
_DRAWS = 8
_LEARN_S = 30.0
_AGAIN_S = 10.0
PROMPTS = (tuple(range(100, 116)), tuple(range(300, 332)), tuple(range(900, 908)))
"""Ids that every vocabulary has; what they say does not matter."""

Whose = Literal["processed", "raw"]
Ask = Callable[[Sampling], Awaitable[tuple[Sequence[int], Sequence[float]]]]
"""Samples once: ids and their logprobs."""
Generate = Callable[[str, Generation], AsyncGenerator[Tokens, None]]
"""An answer of the replica at an address."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens and their logprobs at either temperature."""

    cool: Mapping[int, float]
    warm: Mapping[int, float]

    @property
    def token(self) -> int | None:
        """The one that tells most."""
        both = self.cool.keys() & self.warm.keys()
        return max(both, key=lambda each: abs(self.cool[each] - self.warm[each]), default=None)

    @property
    def whose(self) -> Whose | None:
        """The verdict; None if none can be given."""
        token = self.token
        if token is None or min(self.cool[token], self.warm[token]) > _CERTAIN:
            return None
        return "raw" if abs(self.cool[token] - self.warm[token]) < SAME else "processed"


async def draw(ask: Ask) -> Drawn:
    """Some single tokens at each temperature; whatever `ask` raises."""
    seen: list[dict[int, float]] = []
    for temperature in TEMPERATURES:
        drawn: dict[int, float] = {}
        for seed in range(_DRAWS):
            ids, logprobs = await ask(
                Sampling(temperature=temperature, top_k=2, max_new_tokens=1, seed=seed)
            )
            drawn.update(zip(ids, logprobs, strict=True))
        seen.append(drawn)
    return Drawn(*seen)


class Learning:
    """What is known of the replicas of one engine."""

    def __init__(self, generate: Generate, addresses: Sequence[str]) -> None:
        """Nothing is asked yet."""
        self._generate = generate
        self._addresses = tuple(addresses)
        self._whose: dict[str, Whose | None] = {}
        """By address; None where nothing could be told."""
        self._ask_at_s: dict[str, float] = {}
        """By address: not before then."""
        self._asking = asyncio.Lock()

    @property
    def logprobs(self) -> Whose:
        """Raw if those of one are; assumed to be processed until it was asked."""
        return "raw" if "raw" in self._whose.values() else "processed"

    @property
    def learned(self) -> bool:
        """Whether every one was asked."""
        return self._whose.keys() == set(self._addresses)

    async def learn(self) -> None:
        """Ask those that were not asked yet; one that did not answer, not again at once.

        Raises:
            KeyRefused: one wants another key.
            EngineError: none of them answers.
        """
        async with self._asking:
            now_s = time.monotonic()
            missing = [a for a in self._addresses if self._ask_at_s.get(a, 0.0) <= now_s]
            asked = await asyncio.gather(*map(self._ask, missing), return_exceptions=True)
            for address, answer in zip(missing, asked, strict=True):
                failed = isinstance(answer, BaseException)
                self._ask_at_s[address] = now_s + _AGAIN_S if failed else math.inf
        for answer in asked:
            if isinstance(answer, KeyRefused) or (answer is not None and not self._whose):
                raise answer

    async def _ask(self, address: str) -> None:
        found: Whose | None = None
        try:
            async with asyncio.timeout(_LEARN_S):
                for prompt in PROMPTS:
                    found = (await draw(partial(self._draw, address, prompt))).whose
                    if found is not None:
                        break
        except TimeoutError:
            raise EngineError(f"{address}: no answer within {_LEARN_S:.0f} s") from None
        self._whose[address] = found

    async def _draw(
        self, address: str, prompt: Sequence[int], sampling: Sampling
    ) -> tuple[list[int], list[float]]:
        generation = Generation(
            request_id=uuid.uuid4().hex,
            routing_key="logprobs",
            input_ids=np.asarray(prompt, np.int32),
            sampling=sampling,
        )
        ids: list[int] = []
        logprobs: list[float] = []
        async with contextlib.aclosing(self._generate(address, generation)) as stream:
            async for tokens in stream:
                ids += tokens.ids
                logprobs += tokens.logprobs
        return ids, logprobs
