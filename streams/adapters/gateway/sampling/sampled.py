"""What an engine has sampled so far in one turn, over one or several generations.

A token's version is the one that the engine reports. Else it is the one declared when the token
came, if the engine was seen to take that update (`engine_labels`). Else it is unknown: -1, beside
the known ones; where the run has no versions at all, none is given.

Invariant: one finite logprob for each id; runs of weight versions cover every id or are not given.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from schemas.record import TOKEN_ID_MAX, UNKNOWN_VERSION, Floats, Ids
from streams.adapters.engines.interface import EngineError, Finish, Tokens
from streams.adapters.gateway.sampling.engine_labels import Sighting
from streams.adapters.gateway.sampling.experts import JoinedExperts

_FLOAT32_MAX = float(np.finfo(np.float32).max)

Value = TypeVar("Value")
Other = TypeVar("Other")
Runs = list[tuple[Value, int]]
"""A value for so many tokens, then another."""


@dataclass(slots=True)
class Sampled:
    """Grows while a turn runs."""

    ids_max: int = TOKEN_ID_MAX
    """The highest that the model may sample."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: Runs[int | None] = field(default_factory=list)
    """Those that the engine reported; None: none."""
    labels: Runs[str | None] = field(default_factory=list)
    """The engine's own, integers or not."""
    weight_label: str | None = None
    """The newest of them."""
    finish: Finish | None = None
    stop_reason: str | None = None
    sightings: Runs[Sighting | None] = field(default_factory=list)
    """Where the tokens came from, and what was declared then; None: the log did not answer."""
    confirmed: Runs[int | None] = field(default_factory=list)
    """Declared versions that stand in for those not reported; see `confirm`."""
    run_has_versions: bool = False
    """Whether any was declared or reported, so that one that is not known is -1."""
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

    def add(self, tokens: Tokens, sighting: Sighting | None = None) -> None:
        """Some more, from there.

        Raises:
            EngineError: they cannot be recorded; what came before stands.
        """
        _check(tokens, self.ids_max)
        self.ids += tokens.ids
        self.logprobs += tokens.logprobs
        self.weight_label = tokens.weight_label or self.weight_label
        self.finish, self.stop_reason = tokens.finish, tokens.stop_reason
        _extend(self.versions, tokens.weight_version, len(tokens.ids))
        _extend(self.labels, tokens.weight_label, len(tokens.ids))
        _extend(self.sightings, sighting, len(tokens.ids))
        if tokens.weight_runs is not None:
            self.versions = self._rewritten(self.versions, tokens.weight_runs)
            counts = (count for _, count in tokens.weight_runs)
            labels = list(zip(tokens.run_labels, counts, strict=False))
            self.labels = self._rewritten(self.labels, labels)
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
        """Runs over every token, as published; None: the run has no versions."""
        runs: Runs[int] = []
        known = self.run_has_versions
        confirmed = self.confirmed or [(None, len(self.ids))]
        for reported, declared, count in _side_by_side(self.versions, confirmed):
            version = declared if reported is None else reported
            known = known or version is not None
            _extend(runs, UNKNOWN_VERSION if version is None else version, count)
        return runs if known and runs else None

    def labelled(self) -> Iterator[tuple[str | None, Sighting | None, int]]:
        """Each label with where it was seen, and on how many tokens."""
        return _side_by_side(self.labels, self.sightings)

    def confirm(self, version_of: Callable[[str | None, Sighting], int | None]) -> None:
        """Take the declared versions of what was sampled, where they are certain."""
        self.confirmed = []
        for label, sighting, count in self.labelled():
            version = None if sighting is None else version_of(label, sighting)
            _extend(self.confirmed, version, count)

    @property
    def continued_at(self) -> list[tuple[int, bool | None]] | None:
        """The joins that something follows, as published."""
        return [join for join in self.joins if join[0] < len(self.ids)] or None

    def _end(self) -> None:
        """A generation that broke off says nothing of its tokens."""
        if self.experts is not None:
            self.experts.add(None, len(self.ids) - self._began)

    def _rewritten(self, earlier: Runs[Value], runs: Sequence[tuple[Value, int]]) -> Runs[Value]:
        """What the last generation reports at its end of its tokens, from the first on.

        Tokens that it sampled and never gave do not count; for those that it leaves out,
        what was reported with them holds.
        """
        joined, reported = _parted(earlier, self._began)
        at_end, _ = _parted(runs, len(self.ids) - self._began)
        _, rest = _parted(reported, sum(count for _, count in at_end))
        for value, count in (*at_end, *rest):
            _extend(joined, value, count)
        return joined


def _parted(runs: Sequence[tuple[Value, int]], tokens: int) -> tuple[Runs[Value], Runs[Value]]:
    """The runs of the first tokens, at most so many, and those of all others."""
    first: Runs[Value] = []
    rest: Runs[Value] = []
    for value, given in runs:
        count = max(given, 0)
        some = min(count, tokens)
        _extend(first, value, some)
        _extend(rest, value, count - some)
        tokens -= some
    return first, rest


def _extend(runs: Runs[Value], value: Value, count: int) -> None:
    if not count:
        return
    if runs and runs[-1][0] == value:
        count += runs.pop()[1]
    runs.append((value, count))


def _side_by_side(
    runs: Sequence[tuple[Value, int]], others: Sequence[tuple[Other, int]]
) -> Iterator[tuple[Value, Other, int]]:
    """Runs of pairs; both cover the same tokens."""
    rest = iter(others)
    other, left = next(rest, (None, 0))
    for value, tokens in runs:
        count = tokens
        while count:
            if not left:
                other, left = next(rest)
            some = min(count, left)
            yield value, other, some  # type: ignore[misc]  # there is another while tokens are left
            count -= some
            left -= some


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
