"""What an engine has sampled so far in one turn, over one or several generations.

A token whose version the engine does not say has the one that was declared when it came, if that
is wanted: see `declares`.

Invariant: one finite logprob for each id; runs of weight versions cover every id or are not given.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.record import TOKEN_ID_MAX, Floats, Ids
from streams.adapters.engines.interface import EngineError, Finish, Tokens
from streams.adapters.gateway.sampling.experts import JoinedExperts

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
    declared: list[tuple[int | None, int]] = field(default_factory=list)
    """Runs of the versions that were declared when the tokens came."""
    declares: bool = False
    """Whether these stand in for what the engine does not say."""
    joins: list[tuple[int, bool | None]] = field(default_factory=list)
    """Where a generation was gone on with, and whether the cache was emptied at that update."""
    cache_flushed: bool | None = None
    """At the last update that was declared."""
    experts: JoinedExperts | None = None
    """If they were asked for."""
    _began: int = 0
    """Where the last generation begins."""

    def begin(self) -> None:
        """A generation begins here."""
        self._end()
        self._began = len(self.ids)

    def join(self, cache_flushed: bool | None) -> None:
        """What was sampled so far is gone on with."""
        if self.joins and self.joins[-1][0] == len(self.ids):
            known = self.joins.pop()[1]
            cache_flushed = known if cache_flushed is None else cache_flushed or bool(known)
        if self.ids:
            self.joins.append((len(self.ids), cache_flushed))

    def cut(self) -> None:
        """The answer is over by itself, whatever the engine says."""
        if self.finish in (None, "abort"):
            self.finish, self.stop_reason = "stop", None

    def add(self, tokens: Tokens, declared: int | None = None) -> None:
        """Some more; `declared` is the version that the run says it has.

        Raises:
            EngineError: they cannot be recorded; what came before stands.
        """
        _check(tokens, self.ids_max)
        self.ids += tokens.ids
        self.logprobs += tokens.logprobs
        self.weight_label = tokens.weight_label or self.weight_label
        self.finish, self.stop_reason = tokens.finish, tokens.stop_reason
        _extend(self.versions, tokens.weight_version, len(tokens.ids))
        _extend(self.declared, declared, len(tokens.ids))
        if tokens.weight_runs is not None:
            self._rewrite(tokens.weight_runs)
        if self.experts is not None and tokens.finish is not None:
            count, unfit = len(self.ids) - self._began, tokens.experts_wrong is not None
            self.experts.add(tokens.routed_experts, count, unfit=unfit)
            self._began = len(self.ids)

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
        runs = _filled(self.versions, self.declared) if self.declares else self.versions
        told = [(version, count) for version, count in runs if version is not None]
        return told if told and len(told) == len(runs) else None

    @property
    def continued_at(self) -> list[tuple[int, bool | None]] | None:
        """The joins that something follows, as published."""
        return [join for join in self.joins if join[0] < len(self.ids)] or None

    def _end(self) -> None:
        """A generation that broke off says nothing of its tokens."""
        if self.experts is not None:
            self.experts.add(None, len(self.ids) - self._began)

    def _rewrite(self, runs: Sequence[tuple[int | None, int]]) -> None:
        """What the last generation says at its end of its tokens, from the first on.

        Those that it sampled and never gave count for nothing; of those that it leaves out
        stands what was said before.
        """
        before, said = _parted(self.versions, self._began)
        told, _ = _parted(runs, len(self.ids) - self._began)
        _, rest = _parted(said, sum(count for _, count in told))
        self.versions = before
        for version, count in (*told, *rest):
            _extend(self.versions, version, count)


def _parted(
    runs: Sequence[tuple[int | None, int]], tokens: int
) -> tuple[list[tuple[int | None, int]], list[tuple[int | None, int]]]:
    """The runs of the first tokens, at most so many, and those of all others."""
    first: list[tuple[int | None, int]] = []
    rest: list[tuple[int | None, int]] = []
    for version, given in runs:
        count = max(given, 0)
        some = min(count, tokens)
        _extend(first, version, some)
        _extend(rest, version, count - some)
        tokens -= some
    return first, rest


def _extend(runs: list[tuple[int | None, int]], version: int | None, count: int) -> None:
    if not count:
        return
    if runs and runs[-1][0] == version:
        count += runs.pop()[1]
    runs.append((version, count))


def _filled(
    told: Sequence[tuple[int | None, int]], declared: Sequence[tuple[int | None, int]]
) -> list[tuple[int | None, int]]:
    """What was told, and what was declared where nothing was; both cover the same tokens."""
    runs: list[tuple[int | None, int]] = []
    rest = [list(run) for run in reversed(declared)]
    for version, tokens in told:
        count = tokens
        while count:
            stands_in, most = rest[-1]
            some = min(count, most or 0)
            _extend(runs, stands_in if version is None else version, some)
            count -= some
            rest[-1][1] = (most or 0) - some
            if not rest[-1][1]:
                rest.pop()
    return runs


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
