"""What an engine has sampled so far in one turn, over one or several generations.

Invariant: one finite logprob for each id; runs of weight versions cover every id or are not given.
"""

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
    versions: list[tuple[int, int]] = field(default_factory=list)
    unversioned: bool = False
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
        if not tokens.ids:
            return
        if tokens.weight_version is None:
            self.unversioned = True
        elif self.versions and self.versions[-1][0] == tokens.weight_version:
            self.versions[-1] = (tokens.weight_version, self.versions[-1][1] + len(tokens.ids))
        else:
            self.versions.append((tokens.weight_version, len(tokens.ids)))

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
        return self.versions if self.versions and not self.unversioned else None


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
