"""What the topics take on disk, beside what `turnstream topics` said of them.

    said            the command's own table, at the turns and bytes that the run had
    written         keys and values that a topic holds, before compression: as it was said
    on disk         blocks of its files, as `du` counts them, the most of the last half of the run

Invariant: no topic holds or takes more than was said of it, and together they hold at least half of
it, else it was no prediction. How much each holds beside the others is up to the sessions.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SHARE_MIN = 0.5
MORE_MAX = 1.1
"""Sessions come at random: the last minutes, which a topic holds, are not quite the whole run."""
_UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BLOCK = 512


class Topic(NamedTuple):
    """One topic, in bytes."""

    name: str
    said: float
    written: int
    on_disk: int


def faults(topics: Sequence[Topic]) -> list[str]:
    """What was said wrong."""
    more = [one.name for one in topics if max(one.written, one.on_disk) > MORE_MAX * one.said]
    share = sum(one.written for one in topics) / sum(one.said for one in topics)
    far_less = [f"all topics hold {share:.0%} of what was said"] if share < SHARE_MIN else []
    return [*(f"{name} holds more than was said" for name in more), *far_less]


def said_in(printed: str) -> dict[str, float]:
    """The column `disk` of what the command printed, by topic."""
    rows = [re.split(r"\s{2,}", line) for line in printed.splitlines()]
    at = rows[0].index("disk")
    found = {}
    for row in rows[1:-1]:
        number, unit = row[at].split()
        found[row[0]] = float(number) * _UNITS[unit]
    return found


def on_disk(data: Path, topic: str) -> int:
    """All partitions' files, as they are while the broker writes and deletes."""
    return sum(
        _blocks(path)
        for folder in data.glob(f"{topic}-[0-9]*")
        for path in [folder, *folder.iterdir()]
    )


def table(topics: Sequence[Topic]) -> list[str]:
    """In megabytes."""
    whole = Topic(
        "in all",
        sum(one.said for one in topics),
        sum(one.written for one in topics),
        sum(one.on_disk for one in topics),
    )
    lines = [f"{'disk, MB':<40}     said  written  on disk  written/said"]
    for one in (*topics, whole):
        sizes = "".join(f"{size / 1e6:>9.2f}" for size in one[1:])
        lines.append(f"{one.name:<40}{sizes} {one.written / one.said:>13.2f}")
    return lines


def _blocks(path: Path) -> int:
    try:
        return path.stat().st_blocks * _BLOCK
    except FileNotFoundError:
        return 0  # deleted meanwhile
