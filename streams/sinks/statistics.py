"""What sessions were like together: counts, and mean, deviation, least and most of numbers.

Every session goes through the same code, of whichever split; a session without a split trains.

Invariant: the numbers depend on the sessions that were added alone, and are finite: of no
session there is a count of 0 and no mean, of one a deviation of 0.
"""

import math

import msgspec

from schemas.record import Split
from schemas.traces import Trace


class Spread(msgspec.Struct):
    """Of one number over many sessions."""

    count: int = 0
    mean: float | None = None
    std: float | None = None
    """Of these sessions, not an estimate for others."""
    min: float | None = None
    max: float | None = None
    squares: float = 0.0
    """Sum of squared distances from the mean: what the next number needs to be added."""

    def add(self, value: float | None) -> None:
        """One more; what is no number is left out."""
        if value is None or not math.isfinite(value):
            return
        value, before = float(value), self.mean or 0.0
        self.count += 1
        self.mean = before + (value - before) / self.count
        self.squares += (value - before) * (value - self.mean)
        self.std = math.sqrt(self.squares / self.count)
        self.min = value if self.min is None else min(self.min, value)
        self.max = value if self.max is None else max(self.max, value)


class Together(msgspec.Struct):
    """Of the sessions of one split."""

    sessions: int = 0
    end_status: dict[str, int] = msgspec.field(default_factory=dict)
    reward: Spread = msgspec.field(default_factory=Spread)
    """Over those that have one."""
    turns: Spread = msgspec.field(default_factory=Spread)
    tool_turns: Spread = msgspec.field(default_factory=Spread)
    generated: Spread = msgspec.field(default_factory=Spread)
    """Sampled tokens of a session, over all its branches."""
    trained: Spread = msgspec.field(default_factory=Spread)
    prompt_len: Spread = msgspec.field(default_factory=Spread)
    """Over samples, by their own definition; so is the next."""
    response_len: Spread = msgspec.field(default_factory=Spread)
    untrained: dict[str, int] = msgspec.field(default_factory=dict)
    """Tokens by the reason of the ledger."""

    def add(self, trace: Trace) -> None:
        """One more session."""
        self.sessions += 1
        self.end_status[trace.end_status] = self.end_status.get(trace.end_status, 0) + 1
        self.reward.add(trace.reward)
        self.turns.add(len(trace.turns))
        self.tool_turns.add(trace.tool_turns)
        self.generated.add(trace.generated)
        self.trained.add(trace.trained)
        for sample in trace.samples:
            self.prompt_len.add(sample.prompt_len)
            self.response_len.add(sample.response_len)
        for reason, tokens in trace.untrained.items():
            self.untrained[reason] = self.untrained.get(reason, 0) + tokens


def split_of(trace: Trace) -> Split:
    """A session that does not say is one that trains."""
    return trace.split or "train"
