"""Retention in the embedded log: what is too old goes, in steps small enough to wait for.

The oldest entries stand at a topic's start, so a step looks at no more than it may remove. A time
that is far ahead tells nothing of an entry: it is as old as the next one whose time can be
believed. Weight updates are kept for ever: a run's last ones count however old they are, and all
of them are small. Freed pages are used again; the file itself shrinks only
when more than half of it is free.

Invariant: a step removes entries and moves the topic's start in one transaction, so there is
never a hole; where nothing is too old nothing is written.
"""

import sqlite3

from streams.log.sqlite_file import PAGE_BYTES, tail_of
from streams.log.sqlite_transaction import AHEAD_MS_MAX, Pen
from streams.settings import FOR_EVER, Settings

STEP_ENTRIES_MAX = 500
STEP_BYTES_MAX = 8 << 20
STEP_PAGES = 256
STEPS_MAX = 50
"""Of one call, so that it ends soon also after a long pause."""
SPARE_BYTES = 64 << 20
"""Free space that is kept for what comes next."""

_HOUR_MS = 3_600_000
_BELIEVED = (
    "SELECT timestamp_ms FROM entries"
    " WHERE place >= ? AND place < ? AND timestamp_ms <= ? ORDER BY place LIMIT 1"
)


def keeps_ms(topic: str, settings: Settings) -> int | None:
    """How long the topic's entries are kept; None: for ever."""
    hours = {
        settings.turns_topic: settings.retention_turns_hours,
        settings.samples_topic: settings.retention_samples_hours,
        settings.traces_topic: settings.retention_traces_hours,
        settings.dead_letters_topic: settings.retention_dead_letters_hours,
        settings.trained_topic: settings.retention_trained_hours,
    }
    # Samples made under other rules stand in `<samples topic>.<name>`.
    base = next((name for name in hours if f"{topic}.".startswith(f"{name}.")), None)
    if base is None or hours[base] == FOR_EVER:
        return None
    return round(hours[base] * _HOUR_MS)


def due_topics(connection: sqlite3.Connection, settings: Settings, now_ms: int) -> dict[str, int]:
    """Topics that hold entries too old, and the time before which they are."""
    due: dict[str, int] = {}
    for (topic,) in connection.execute("SELECT name FROM topics ORDER BY number").fetchall():
        kept_ms, tail = keeps_ms(topic, settings), tail_of(connection, topic)
        if kept_ms is None or tail is None:
            continue
        places = tail.place(tail.start), tail.place(tail.end)
        oldest = connection.execute(_BELIEVED, (*places, now_ms + AHEAD_MS_MAX)).fetchone()
        if oldest is not None and oldest[0] < now_ms - kept_ms:
            due[topic] = now_ms - kept_ms
    return due


def remove_step(pen: Pen, topic: str, before_ms: int, now_ms: int, needed: int | None) -> int:
    """Remove some of the topic's oldest entries, if older and below `needed`; how many."""
    tail = pen.tail(topic)
    end = tail.end if needed is None else min(tail.end, needed)
    oldest = pen.connection.execute(
        "SELECT timestamp_ms, ifnull(length(value), 0) FROM entries"
        " WHERE place >= ? AND place < ? ORDER BY place LIMIT ?",
        (tail.place(tail.start), tail.place(end), STEP_ENTRIES_MAX),
    ).fetchall()
    removed = size_bytes = newest_ms = 0
    next_ms: int | None = None
    for timestamp_ms, value_bytes in oldest:
        if removed and size_bytes + value_bytes > STEP_BYTES_MAX:
            break
        if timestamp_ms <= now_ms + AHEAD_MS_MAX:
            next_ms = None
        elif next_ms is None:
            places = tail.place(tail.start + removed), tail.place(tail.end)
            row = pen.connection.execute(_BELIEVED, (*places, now_ms + AHEAD_MS_MAX)).fetchone()
            next_ms = before_ms if row is None else int(row[0])
        believed_ms = timestamp_ms if next_ms is None else next_ms
        if believed_ms >= before_ms:
            break
        removed += 1
        size_bytes += value_bytes
        newest_ms = believed_ms
    if removed:
        pen.remove_oldest(topic, removed, newest_ms)
    return removed


def surplus_pages(connection: sqlite3.Connection) -> int:
    """Free pages beyond those that are kept for what comes next."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(free) - max(int(pages) // 2, SPARE_BYTES // PAGE_BYTES)


def shrink_step(pen: Pen) -> int:
    """Give some free pages back to the system; how many more there are."""
    for _ in range(STEP_PAGES):
        # Python steps a statement without columns once, and a step frees one page.
        pen.connection.execute("PRAGMA incremental_vacuum(1)")
    return surplus_pages(pen.connection)
