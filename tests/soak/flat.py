"""Whether memory stays flat: a process at the end beside the same process after its warm-up.

    0        1/4     5/12      7/12             5/6      1
    ├─warm-up─┼─early──┼─middle──┼────────────────┼─late──┤

Early, middle and late are medians of a sixth of the run each, so that a single look decides
nothing. Late may be 4 MB over early, however large the process is: in an hour of one session a
second 2,100 come between the two, and a leak of 2 KB a session is more. A broker, whose memory
others have to answer for, may be 5 % over.

Invariant: a bound holds for every process, never for their sum.
"""

from collections.abc import Mapping, Sequence
from statistics import linear_regression, median
from typing import NamedTuple

WARM_UP = 1 / 4
SIXTH = 1 / 6
GROWTH_MAX = 4_000_000
BROKER, BROKER_GROWTH_SHARE_MAX = "broker", 0.05
LOOKS_MIN = 3
"""In a sixth: of fewer, a median says nothing."""


class Look(NamedTuple):
    """Processes at one moment."""

    at: float
    """Part of the run that is over, 0 to 1."""
    own: Mapping[str, int]
    """Bytes by process."""


class Course(NamedTuple):
    """One process's run, in bytes."""

    name: str
    early: float
    middle: float
    late: float
    per_minute: float
    """Slope over the last half."""

    @property
    def allowed(self) -> float:
        share = BROKER_GROWTH_SHARE_MAX if self.name == BROKER else 0.0
        return max(GROWTH_MAX, share * self.early)

    @property
    def flat(self) -> bool:
        return self.late - self.early <= self.allowed


def enough(looks: Sequence[Look]) -> bool:
    """Whether each sixth was looked at."""
    return all(len(_within(looks, start)) >= LOOKS_MIN for start in _STARTS)


def courses(looks: Sequence[Look], minutes: float) -> list[Course]:
    """Of every process, in the order of the first look."""
    return [_course(looks, name, minutes) for name in looks[0].own]


def table(found: Sequence[Course]) -> list[str]:
    """The courses in megabytes."""
    lines = [f"{'memory, MB':<12}  early  middle    late  growth  allowed  KB/min"]
    for one in found:
        numbers = f"{one.early / 1e6:>6.1f} {one.middle / 1e6:>7.1f} {one.late / 1e6:>7.1f}"
        growth = f"{(one.late - one.early) / 1e6:>+7.1f} {one.allowed / 1e6:>8.1f}"
        verdict = "" if one.flat else "  NOT FLAT"
        lines.append(f"{one.name:<12} {numbers} {growth} {one.per_minute / 1000:>+7.1f}{verdict}")
    return lines


_STARTS = (WARM_UP, 5 / 12, 5 / 6)


def _within(looks: Sequence[Look], start: float) -> list[Look]:
    return [look for look in looks if start <= look.at <= start + SIXTH]


def _course(looks: Sequence[Look], name: str, minutes: float) -> Course:
    early, middle, late = (
        median(look.own[name] for look in _within(looks, start)) for start in _STARTS
    )
    half = [look for look in looks if look.at >= 1 / 2]
    slope = linear_regression([one.at * minutes for one in half], [one.own[name] for one in half])
    return Course(name, early, middle, late, slope.slope)
