"""Runs of token positions `[start, end)`: cutting, joining, and laying values under them."""

from collections.abc import Iterable

Run = tuple[int, int]


def without(start: int, end: int, holes: Iterable[Run]) -> list[Run]:
    """The parts of `[start, end)` that no hole covers."""
    parts: list[Run] = []
    for low, high in sorted(holes):
        if low > start:
            parts.append((start, min(low, end)))
        start = max(start, high)
        if start >= end:
            return [part for part in parts if part[0] < part[1]]
    parts.append((start, end))
    return [part for part in parts if part[0] < part[1]]


def joined(runs: Iterable[Run]) -> list[Run]:
    """The same positions in as few runs as possible; the runs come sorted."""
    maximal: list[Run] = []
    for start, end in runs:
        if maximal and maximal[-1][1] == start:
            maximal[-1] = (maximal[-1][0], end)
        else:
            maximal.append((start, end))
    return maximal


def total(runs: Iterable[Run]) -> int:
    """How many positions the runs cover."""
    tokens = 0
    for start, end in runs:
        tokens += end - start
    return tokens
