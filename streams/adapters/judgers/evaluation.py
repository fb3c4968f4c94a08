"""What eval sessions are worth together: one that failed counts with 0, and is counted.

Invariant: the denominator is every session that started, never only those that went well.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from schemas.samples import SessionClosed


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Of a set of outcomes."""

    sessions: int
    failed: int
    """Without a reward: an error, a rejection, no judgement."""
    mean: float | None
    """None of no session."""


def evaluated(outcomes: Iterable[SessionClosed]) -> Evaluation:
    """The outcomes of eval sessions, each once; attempts that are to be repeated do not count."""
    scores = [outcome.reward for outcome in outcomes if not outcome.will_retry]
    if not scores:
        return Evaluation(0, 0, None)
    mean = math.fsum(score or 0.0 for score in scores) / len(scores)
    return Evaluation(len(scores), sum(score is None for score in scores), mean)
