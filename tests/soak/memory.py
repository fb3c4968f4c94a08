"""What a worker's memory may be, and what it is.

            start      warmed up, nothing remembered
    wave 1  closed     every session has its outcome and is remembered
            purged     every session is forgotten
    wave 2  the same once more

Two measures of the same process:

    held    bytes that its allocators have given out: what it still refers to, to the byte.
            Closed: start + at most 1 KB for every session remembered. Purged: start.
    own     its pages that no other process shares (USS): what the machine is short of. Never
            more than start + 1 KB for every session remembered, in the second wave neither.

Pages do not come back after a purge: Python's allocator gives a mebibyte back only when the
last small object in it is gone, and some always stay. They are used again, and the second wave
is there to show it.

Invariant: a bound holds for every worker, never for the mean of them.
"""

from typing import NamedTuple

MARKER_BYTES_MAX = 1024
"""Of a session that closed and is remembered."""


class Memory(NamedTuple):
    """One worker at one moment, in bytes."""

    held: int
    own: int


SLACK = Memory(held=2_000_000, own=6_000_000)
"""What a measure is off although nothing is remembered: garbage that the collector has not met
yet and buffers of the client, which come and go; and pages that are not full. With 50,000
sessions a wave, a leak of 60 bytes a session is over it after the second."""


class Wave(NamedTuple):
    """Sessions that came, closed and were purged."""

    closed: Memory
    markers: int
    purged: Memory


class Course(NamedTuple):
    """One worker's run."""

    name: str
    start: Memory
    waves: tuple[Wave, ...]
    peak_own: int


def broken_bounds(course: Course, slack: Memory = SLACK) -> list[str]:
    """Each bound that does not hold, with the two values that disagree."""
    start, most = course.start, max(wave.markers for wave in course.waves)
    own_most = start.own + most * MARKER_BYTES_MAX + slack.own
    checks: list[tuple[str, int, int]] = []
    for number, (closed, markers, purged) in enumerate(course.waves, 1):
        held_most = start.held + markers * MARKER_BYTES_MAX + slack.held
        checks += [
            (f"wave {number}, held with markers", closed.held, held_most),
            (f"wave {number}, held after the purge", purged.held, start.held + slack.held),
            (f"wave {number}, own with markers", closed.own, own_most),
            (f"wave {number}, own after the purge", purged.own, own_most),
        ]
    return [
        f"{course.name}: {what} {_megabytes(value)} MB, at most {_megabytes(bound)} MB"
        for what, value, bound in checks
        if value > bound
    ]


def table(courses: list[Course]) -> list[str]:
    """The courses in megabytes, and how much was kept for a session."""
    lines = ["worker  wave           start  closed  markers  bytes/marker  purged    peak"]
    for course in courses:
        for number, wave in enumerate(course.waves, 1):
            for what in ("held", "own"):
                start, closed, purged = (
                    getattr(memory, what) for memory in (course.start, wave.closed, wave.purged)
                )
                lines.append(
                    f"{course.name:<6} {number:>5}  {what:<5} {_megabytes(start):>7}"
                    f" {_megabytes(closed):>7} {wave.markers:>8,}"
                    f" {(closed - start) / max(1, wave.markers):>13,.0f} {_megabytes(purged):>7}"
                    f" {_megabytes(course.peak_own) if what == 'own' else '':>7}"
                )
    return lines


def own_bytes(pid: int) -> int:
    """Pages of a process that it shares with none, as the kernel counts them."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:  # noqa: PTH123
        fields = [line.split() for line in lines]
    return 1024 * sum(int(f[1]) for f in fields if f[0] in ("Private_Clean:", "Private_Dirty:"))


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.1f}"
