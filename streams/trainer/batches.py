"""What the trainer's loop is given: whole groups, and the same as rows, one a sample.

    batch.groups     g1 [s1 (5 samples), s2 (1), s3 (0)]      g2 [...]
    batch.rows       s1/0 s1/1 s1/2 s1/3 s1/4 s2/0 ...        siblings side by side

A loss that averages over all tokens, or over samples, gives a forked rollout more say than one
that did not fork. With a row's weight each rollout counts once:

    sum over rows   row.weight * mean over its trained tokens        siblings sum to 1
    sum over tokens row.token_weight * loss of the token             the same

Invariant: a group is never split over two batches, nor a rollout.
"""

from dataclasses import dataclass
from functools import cached_property

from schemas.packed import Packed
from schemas.samples import Sample, SampleRevised
from streams.core import packing
from streams.core.rollouts import Group, Rollout, trained_tokens


@dataclass(frozen=True, slots=True)
class Row:
    """One sample with whom it belongs to."""

    sample: Sample
    rollout: Rollout
    group: Group

    @property
    def advantage(self) -> float | None:
        """The rollout's, the same on every sibling; None: `subscribe` was not asked for any."""
        return self.rollout.advantage

    @property
    def weight(self) -> float:
        """Its part of the rollout's trained tokens; siblings sum to 1."""
        return trained_tokens(self.sample) / max(1, self.rollout.trained)

    @property
    def token_weight(self) -> float:
        """What one trained token counts, so that the whole rollout counts 1."""
        return 1.0 / max(1, self.rollout.trained)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one call of the loop trains on."""

    number: int
    """From 0; a run that was restored goes on counting."""
    groups: tuple[Group, ...]
    version: int | None = None
    """Of the optimizer when staleness was judged."""
    revisions: tuple[SampleRevised, ...] = ()
    """Later rewards of samples that were handed out before: to be noted, never to be trained."""

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every sample, groups and rollouts in order, siblings by their index."""
        return tuple(
            Row(sample, rollout, group)
            for group in self.groups
            for rollout in group.rollouts
            for sample in rollout.samples
        )

    @cached_property
    def rollouts(self) -> tuple[Rollout, ...]:
        """Those with samples."""
        return tuple(r for group in self.groups for r in group.rollouts if r.samples)

    @cached_property
    def packed(self) -> tuple[Packed, ...]:
        """Each of `rollouts` as one tree of tokens: what its samples begin with stands once."""
        return tuple(packing.packed(rollout.samples) for rollout in self.rollouts)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Without their rollouts."""
        return tuple(row.sample for row in self.rows)

    @property
    def tokens(self) -> int:
        """What a trainer runs forward, without padding."""
        return sum(group.tokens for group in self.groups)

    @property
    def staleness(self) -> tuple[int, ...]:
        """Of each rollout whose versions are known."""
        version, known = self.version, [r for r in self.rollouts if not r.has_unknown_version]
        oldest = [rollout.oldest_version for rollout in known]
        return () if version is None else tuple(version - v for v in oldest if v is not None)
