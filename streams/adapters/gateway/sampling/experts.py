"""Which experts computed the tokens of a turn, joined over its generations into one channel.

    generation 1   rows of its 3 tokens, abort        row i: the pass that sampled output token i,
    generation 2   rows of its 5 tokens, stop                that is, the pass over the token before
    channel        8 rows

Invariant: a channel has one row for each sampled token, of one kind, or there is none; what is
missing costs the channel, never the turn.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from schemas.events import Channel
from schemas.record import Octets
from streams.adapters.engines.interface import Experts

NAME = "routed_experts"
Lost = Literal["untold", "unfit"]
"""Not told of every token; told of another number of tokens, or in different shapes."""


@dataclass(slots=True)
class JoinedExperts:
    """Grows generation by generation."""

    _parts: list[Experts] = field(default_factory=list)
    lost: Lost | None = None

    def add(self, experts: Experts | None, tokens: int, *, unfit: bool = False) -> None:
        """What a generation of so many tokens says at its end."""
        if not tokens or self.lost:
            return
        if experts is None:
            self.lost = "unfit" if unfit else "untold"
        elif not _fits(experts, tokens) or not all(_alike(experts, part) for part in self._parts):
            self.lost = "unfit"
        else:
            self._parts.append(experts)

    def channel(self, tokens: int) -> Channel | None:
        """Of the whole turn, if there is all of it."""
        if self.lost or not self._parts or sum(part.shape[0] for part in self._parts) != tokens:
            return None
        first = self._parts[0]
        return Channel(
            dtype=first.dtype,
            shape=[tokens, *first.shape[1:]],
            data=Octets(b"".join(part.data for part in self._parts)),
        )


def _fits(experts: Experts, tokens: int) -> bool:
    size = math.prod(experts.shape) * np.dtype(experts.dtype).itemsize
    return bool(experts.shape) and experts.shape[0] == tokens and len(experts.data) == size


def _alike(one: Experts, other: Experts) -> bool:
    return (one.dtype, one.shape[1:]) == (other.dtype, other.shape[1:])
