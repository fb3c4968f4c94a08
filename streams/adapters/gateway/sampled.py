"""What an engine has sampled so far in one turn, over one or several generations.

Invariant: one finite logprob for each id; runs of weight versions cover every id or are not given.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.record import TOKEN_ID_MAX, Floats, Ids
from streams.adapters.engines.interface import EngineError, Finish, Tokens

_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(slots=True)
class Sampled:
    """Grows while a turn runs."""

    ids_max: int = TOKEN_ID_MAX
    """The highest that the model may sample."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[tuple[int | None, int]] = field(default_factory=list)
    """Runs; None: not told."""
    weight_label: str | None = None
    finish: Finish | None = None
    stop_reason: str | None = None

    def add(self, tokens: Tokens) -> None:
        """Some more.

        Raises:
            EngineError: they cannot be recorded; what came before stands.
        """
        _check(tokens, self.ids_max)
        self.ids += tokens.ids
        self.logprobs += tokens.logprobs
        self.weight_label = tokens.weight_label or self.weight_label
        self.finish, self.stop_reason = tokens.finish, tokens.stop_reason
        self._run(tokens.weight_version, len(tokens.ids))
        if tokens.weight_runs is not None:
            self._rewrite(tokens.weight_runs)

    @property
    def output_ids(self) -> Ids:
        """As published."""
        return np.asarray(self.ids, np.int32)

    @property
    def output_logprobs(self) -> Floats:
        """As published."""
        return np.asarray(self.logprobs, np.float32)

    @property
    def weight_versions(self) -> list[tuple[int, int]] | None:
        """Runs, if every token has one."""
        told = [(version, count) for version, count in self.versions if version is not None]
        return told if told and len(told) == len(self.versions) else None

    def _run(self, version: int | None, count: int) -> None:
        if not count:
            return
        if self.versions and self.versions[-1][0] == version:
            count += self.versions.pop()[1]
        self.versions.append((version, count))

    def _rewrite(self, runs: Sequence[tuple[int | None, int]]) -> None:
        """What the last generation says at its end of all its tokens."""
        rest = sum(count for _, count in runs)
        if rest > len(self.ids):
            wrong = f"{rest} tokens in its weight versions, {len(self.ids)} came"
            raise EngineError(f"the engine gave {wrong}", retryable=False)
        while rest:
            version, count = self.versions.pop()
            if count > rest:
                self.versions.append((version, count - rest))
            rest -= min(count, rest)
        for version, count in runs:
            self._run(version, count)


def _check(tokens: Tokens, ids_max: int) -> None:
    wrong = None
    if len(tokens.ids) != len(tokens.logprobs):
        wrong = f"{len(tokens.logprobs)} logprobs for {len(tokens.ids)} ids"
    elif not all(abs(logprob) <= _FLOAT32_MAX for logprob in tokens.logprobs):
        wrong = "a logprob that is no finite number"
    elif tokens.ids and not 0 <= min(tokens.ids) <= max(tokens.ids) <= ids_max:
        wrong = "an id that no token has"
    if wrong is not None:
        raise EngineError(f"the engine gave {wrong}", retryable=False)
