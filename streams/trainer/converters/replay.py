"""Routed experts, from the token that was sampled to the position that was read.

A channel's row t tells which experts computed the pass that *sampled* token t. That pass read
token t - 1, and frameworks index by what was read:

    token                0     1     2     3     4
    sampled              .     .     x     x     .
    channel row          0     0     A     B     0
    position was read    0     A     B     0             <- what is given: row i = channel row i + 1

The last token is read by no pass: there is one row less than tokens.

Frameworks replay *every* position, those of the context too, and a row of zeros sends a token to
expert 0. An engine that tells of sampled tokens alone leaves such rows: they are refused unless
the caller says that its trainer replays sampled positions only (`context="zero"`).

Invariant: a row is an engine's own, or zero at a position whose zero the caller asked for.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from schemas.samples import Sample
from streams.trainer.converters.rows import refusal

CHANNEL = "routed_experts"

Experts = npt.NDArray[np.integer[Any]]
_DIMENSIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the trainer replays."""

    layers: int | None = None
    """For engines that tell layers and choices as one row (SGLang): how many layers there are."""
    context: Literal["refuse", "zero"] = "refuse"
    """What to do about positions of which no engine told anything."""


def by_position(sample: Sample, replay: Replay) -> Experts:
    """One row for each position that was read: `[tokens - 1, layers, choices]`."""
    rows = _shaped(sample, replay)
    told_T = np.zeros(len(sample.tokens), np.bool_)
    for turn in sample.turns:
        told_T[turn.start : turn.end] = True
    # The choices of a layer differ, so a row of nothing but zeros is one that was never written.
    if rows.shape[2] > 1 and not rows[told_T].any(axis=(1, 2)).all():
        raise refusal(sample, f"a turn of it has no channel {CHANNEL!r}")
    untold = len(told_T) - 1 - int(told_T[1:].sum())
    if untold and replay.context == "refuse":
        raise refusal(sample, f"channel {CHANNEL!r} is untold at {untold} positions of the context")
    return rows[1:]


def to_whole(experts: Experts) -> Experts:
    """A row for the last token too, of zeros, for frameworks that want one row a token."""
    return np.concatenate([experts, np.zeros_like(experts[:1])])


def _shaped(sample: Sample, replay: Replay) -> Experts:
    channel = (sample.channels or {}).get(CHANNEL)
    if channel is None or channel.data is None or sample.channels_missing:
        raise refusal(sample, f"it has no channel {CHANNEL!r}, or not of every turn")
    rows = np.frombuffer(channel.data, np.dtype(channel.dtype)).reshape(channel.shape)
    if len(rows) != len(sample.tokens):
        raise refusal(sample, f"channel {CHANNEL!r} has {len(rows)} rows for {len(sample.tokens)}")
    if rows.ndim == _DIMENSIONS and replay.layers in {None, rows.shape[1]}:
        return rows
    if not replay.layers:
        raise refusal(sample, f"channel {CHANNEL!r} is {rows.shape}: say how many layers there are")
    if math.prod(rows.shape[1:]) % replay.layers or rows.ndim == _DIMENSIONS:
        raise refusal(sample, f"channel {CHANNEL!r} is {rows.shape}, not of {replay.layers} layers")
    return rows.reshape(len(rows), replay.layers, -1)
