"""One token out of a model's scores: which one, and how likely it was.

    scores ──► penalties ──► temperature ──► top_k ──► top_p ──► min_p ──► drawn

Penalties are taken off the scores: repetition over the prompt and the answer, frequency and
presence over the answer alone. At temperature 0 the highest score is all there is.

Invariant: the logprob is of the distribution that the token was drawn from, cuts and all; the
same scores and the same seed give the same token.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streams.adapters.engines.interface import EngineError, Sampling

Scores = NDArray[np.float32]
Logprobs = NDArray[np.float64]
_SEEDS = 2**64
"""Clients may give negative ones."""


class Drawing:
    """The draws of one answer."""

    def __init__(
        self, sampling: Sampling, prompt: Sequence[int], rng: np.random.Generator | None = None
    ) -> None:
        """Without a seed of its own the sampling draws from `rng`."""
        self._sampling = sampling
        self._seen = set(prompt) if sampling.repetition_penalty != 1 else set[int]()
        self._sampled: Counter[int] = Counter()
        seed = sampling.seed
        seeded = None if seed is None else np.random.default_rng(seed % _SEEDS)
        self._rng = seeded or rng or np.random.default_rng()

    def draw(self, scores: Scores) -> tuple[int, float]:
        """The next token and its logprob.

        Raises:
            EngineError: the scores are no numbers.
        """
        logprobs = self.distribution(scores)
        heaped = np.cumsum(np.exp(logprobs))
        at = int(np.searchsorted(heaped, self._rng.random() * heaped[-1], side="right"))
        # Rounding may lead behind the last token that has a share.
        token = min(at, int(np.searchsorted(heaped, heaped[-1])))
        self._sampled[token] += 1
        return token, float(logprobs[token])

    def distribution(self, scores: Scores) -> Logprobs:
        """The logprob of every token; minus infinity where it is cut off."""
        sampling = self._sampling
        kept = scores.astype(np.float64)
        if not np.isfinite(kept.max()):
            raise EngineError("the model's scores are no numbers", retryable=False)
        self._penalise(kept)
        if sampling.temperature <= 0:
            only = np.full_like(kept, -np.inf)
            only[int(kept.argmax())] = 0.0
            return only
        kept /= sampling.temperature
        if 0 < sampling.top_k < kept.size:
            kept[kept < np.partition(kept, -sampling.top_k)[-sampling.top_k]] = -np.inf
        if sampling.top_p < 1:
            _cut_top_p(kept, sampling.top_p)
        if sampling.min_p > 0:
            kept[kept < kept.max() + np.log(sampling.min_p)] = -np.inf
        return _normal(kept)

    def _penalise(self, kept: Logprobs) -> None:
        sampling = self._sampling
        if sampling.repetition_penalty != 1:
            seen = np.fromiter(self._seen | self._sampled.keys(), np.int64)
            above = kept[seen] > 0
            kept[seen] *= np.where(above, 1 / sampling.repetition_penalty, 1.0)
            kept[seen] *= np.where(above, 1.0, sampling.repetition_penalty)
        if self._sampled and (sampling.frequency_penalty or sampling.presence_penalty):
            tokens = np.fromiter(self._sampled.keys(), np.int64)
            counts = np.fromiter(self._sampled.values(), np.float64)
            kept[tokens] -= sampling.frequency_penalty * counts + sampling.presence_penalty


def _cut_top_p(kept: Logprobs, top_p: float) -> None:
    """Keep the likeliest until they make up `top_p`; one at least."""
    order = np.argsort(-kept, kind="stable")
    shares = np.exp(_normal(kept)[order])
    before = np.cumsum(shares) - shares
    before[0] = -1.0
    kept[order[before >= top_p]] = -np.inf


def _normal(kept: Logprobs) -> Logprobs:
    kept = kept - kept.max()
    normal: Logprobs = kept - np.log(np.exp(kept).sum())
    return normal
