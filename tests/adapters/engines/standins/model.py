"""A small model for servers that stand in for real ones: any prompt, real softmax, its own journal.

    logits ──► / temperature ──► top_k ──► sample        `told` is how logprobs are counted

Invariant: what it sampled is in `journal`, with the logprob of the distribution sampled from.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

import numpy as np

from streams.adapters.engines.interface import Finish, Generation, Sampling, Tokens

VOCABULARY = 48
Told = Literal["processed", "tempered", "raw"]
"""Of the distribution sampled from; of temperature alone; of neither temperature nor cuts."""


@dataclass
class Entry:
    """One generation."""

    generation: Generation
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """As told."""
    finish: Finish | None = None


class SmallModel:
    """Samples one token at a time."""

    name = "small model"
    logprobs: Literal["processed", "raw"] = "processed"
    forces_calls = False

    def __init__(self, *, told: Told = "processed", version: int | None = 7) -> None:
        self.told: Told = told
        self.version = version
        self.label: str | None = None
        self.journal: list[Entry] = []
        self.ends: frozenset[int] = frozenset()
        """Tokens that end every answer."""
        self.gap_s = 0.0
        """Between tokens."""
        self._stopped: dict[str, asyncio.Event] = {}

    async def generate(self, generation: Generation) -> AsyncGenerator[Tokens, None]:
        entry = Entry(generation)
        self.journal.append(entry)
        stopped = self._stopped[generation.request_id] = asyncio.Event()
        sampling, prompt = generation.sampling, generation.input_ids.tolist()
        draw = np.random.default_rng(sampling.seed)
        try:
            for place in range(sampling.max_new_tokens):
                await asyncio.sleep(self.gap_s)
                if stopped.is_set():
                    break
                token, logprob = self.next_token(prompt + entry.ids, sampling, draw)
                entry.ids.append(token)
                entry.logprobs.append(logprob)
                if token in {*sampling.stop_ids, *self.ends}:
                    entry.finish = "stop"
                elif place + 1 == sampling.max_new_tokens:
                    entry.finish = "length"
                yield Tokens(
                    ids=(token,),
                    logprobs=(logprob,),
                    weight_version=self.version,
                    weight_label=self.label,
                    finish=entry.finish,
                    stop_reason=str(token) if entry.finish == "stop" else None,
                )
                if entry.finish:
                    return
            entry.finish = "abort"
            yield Tokens(finish="abort", stop_reason="aborted")
        finally:
            self._stopped.pop(generation.request_id, None)

    def next_token(
        self, ids: list[int], sampling: Sampling, draw: np.random.Generator
    ) -> tuple[int, float]:
        logits = logits_after(ids)
        if sampling.temperature == 0:
            token = int(np.argmax(logits))
            return token, float(_log_softmax(logits)[token])
        tempered = logits / sampling.temperature
        cut = tempered.copy()
        if sampling.top_k > 0:
            cut[np.argsort(tempered)[: -sampling.top_k]] = -np.inf
        token = int(draw.choice(VOCABULARY, p=np.exp(_log_softmax(cut))))
        of = {"processed": cut, "tempered": tempered, "raw": logits}[self.told]
        return token, float(_log_softmax(of)[token])

    def update_weights(self, version: int | None) -> None:
        """Other weights from now on; what is under way is stopped."""
        self.version = version
        for stopped in self._stopped.values():
            stopped.set()

    async def abort(self, request_id: str) -> None:
        if request_id in self._stopped:
            self._stopped[request_id].set()

    async def require_ready(self) -> None:
        """It always is."""

    async def close(self) -> None:
        pass


def logits_after(ids: list[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """They depend on the last few ids alone."""
    digest = blake2b(repr(ids[-4:]).encode(), digest_size=8).digest()
    made = np.random.default_rng(int.from_bytes(digest, "big"))
    return made.normal(size=VOCABULARY) * 2.0


def _log_softmax(
    logits: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    shifted = logits - np.max(logits)
    with np.errstate(divide="ignore"):
        return np.asarray(shifted - np.log(np.sum(np.exp(shifted))))
