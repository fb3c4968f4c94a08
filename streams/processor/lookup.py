"""What the processor knows of a session, read by somebody who is not the processor.

    Kafka       the table's changelog: one partition of it, the session's
    embedded    the table itself; a row names its event's place in the turns

Only the asked sessions' rows, markers and the floors are kept, in the processor's own state, so
that a session looks here exactly as a worker would take it over.

Invariant: nothing is written, no group moves, and every wait is bounded.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from streams.core.state import Rules
from streams.errors import LogAway
from streams.log.interface import Entry, Log
from streams.log.keys import event_key
from streams.log.partitioner import partition_of
from streams.processor.partition_state import PartitionState
from streams.processor.rows import (
    TIME_BYTES,
    FloorKey,
    MarkerKey,
    Row,
    RowKey,
    check_offset,
    named_events,
    read_key,
    read_row,
    write_key,
)
from streams.settings import KAFKA, Settings

_BATCH_WAIT_S = 0.5
_ENTRIES_MAX = 5000


class Table(Log, Protocol):
    """An embedded log with its table, as far as it is looked at here."""

    async def table_get(self, key: bytes) -> bytes | None:
        """One entry."""
        ...

    def table_entries(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Every entry, ordered by key."""
        ...

    async def entries_at(self, topic: str, offsets: Sequence[int]) -> list[Entry]:
        """The entries that stand there."""
        ...


@dataclass(frozen=True, slots=True)
class Known:
    """A partition as far as it was asked for."""

    partition: int
    state: PartitionState
    behind: int
    """Events of the partition that the processor has still to read."""


async def look_up(
    log: Log, settings: Settings, rules: Rules, session_ids: Collection[str]
) -> dict[str, Known]:
    """The partition of each session, holding nothing but the asked sessions.

    Raises:
        LogError: the log does not answer, or has no table.
    """
    if not session_ids:
        return {}
    lags = await log.lag(settings.processor_id, settings.turns_topic)
    home = {s: partition_of(event_key(s), len(lags)) for s in session_ids}
    states = {partition: PartitionState(rules) for partition in home.values()}
    if settings.log == KAFKA:
        await _load_changelog(log, settings, states, session_ids)
    else:
        # `open_log` gives a log with a table unless the settings name Kafka.
        await _load_table(cast(Table, log), settings, states[0], session_ids)
    known = {p: Known(p, _as_recovered(state), lags[p]) for p, state in states.items()}
    return {session_id: known[partition] for session_id, partition in home.items()}


async def each_entry(
    log: Log,
    settings: Settings,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    take: Callable[[Entry], None],
) -> None:
    """Hand over every entry of these ranges `[start, stop)`, by partition.

    Raises:
        LogAway: nothing came for longer than a question may take.
    """
    left = {p: stop for p, (start, stop) in ranges.items() if start < stop}
    if not left:
        return
    reader = await log.read(topic, {p: ranges[p][0] for p in left})
    try:
        moved_s, before = time.monotonic(), reader.positions
        while left:
            for entry in await reader.next_batch(_BATCH_WAIT_S, _ENTRIES_MAX):
                if entry.position.offset < ranges[entry.position.partition][1]:
                    take(entry)
            # Positions, not offsets: compaction leaves holes, also at the end.
            positions = reader.positions
            moved = any(positions[p] > before[p] for p in left)
            left = {p: stop for p, stop in left.items() if positions[p] < stop}
            if moved:
                moved_s, before = time.monotonic(), positions
            elif time.monotonic() - moved_s > settings.request_timeout_s:
                seconds = settings.request_timeout_s
                raise LogAway(f"read {topic}: no entry in {seconds:g} s, although there are some")
    finally:
        await reader.close()


async def bounds(log: Log, topic: str) -> dict[int, tuple[int, int]]:
    """What a topic holds now, `[start, stop)` by partition."""
    starts, ends = await log.start_positions(topic), await log.end_positions(topic)
    return {p: (starts[p], end) for p, end in ends.items()}


async def _load_changelog(
    log: Log,
    settings: Settings,
    states: Mapping[int, PartitionState],
    session_ids: Collection[str],
) -> None:
    ranges = await bounds(log, settings.changelog_topic)

    def take(entry: Entry) -> None:
        if entry.key is not None and _asked(entry.key, session_ids):
            with contextlib.suppress(ValueError):  # no processor wrote it
                state = states[entry.position.partition]
                state.load(entry.key, entry.value, entry.timestamp_ms)

    mine = {p: ranges[p] for p in states}
    await each_entry(log, settings, settings.changelog_topic, mine, take)


async def _load_table(
    log: Table, settings: Settings, state: PartitionState, session_ids: Collection[str]
) -> None:
    rows: dict[RowKey, Row] = {}
    ((start, end),) = (await bounds(log, settings.turns_topic)).values()
    async for written, value in log.table_entries():
        if not _asked(written, session_ids):
            continue
        key = read_key(written)
        if isinstance(key, RowKey):
            with contextlib.suppress(ValueError):
                row = read_row(value[TIME_BYTES:])
                check_offset(key.offset, end, start if row.names_event else 0)
                rows[key] = row
        else:
            _load_timed(state, written, value)
    # The table was read in steps: who closed meanwhile has lost rows that we did not see.
    for session_id in session_ids:
        marker_key = write_key(MarkerKey(session_id))
        if (marker := await log.table_get(marker_key)) is not None:
            _load_timed(state, marker_key, marker)
    markers = state.markers
    rows = {
        key: row
        for key, row in rows.items()
        if key.session_id not in markers or key.offset > markers[key.session_id].closed_at
    }
    events = await log.entries_at(settings.turns_topic, named_events(rows))
    values = {entry.position.offset: entry.value for entry in events}
    for (offset, session_id), row in sorted(rows.items()):
        named = row.names_event
        state.keep(session_id, offset, row._replace(value=values[offset]) if named else row)


def _load_timed(state: PartitionState, key: bytes, value: bytes) -> None:
    with contextlib.suppress(ValueError):
        state.load(key, value[TIME_BYTES:], int.from_bytes(value[:TIME_BYTES]))


def _asked(written: bytes, session_ids: Collection[str]) -> bool:
    try:
        key = read_key(written)
    except ValueError:
        return False  # somebody else's; it concerns no session
    match key:
        case RowKey(_, session_id) | MarkerKey(session_id):
            return session_id in session_ids
        case FloorKey():
            return True


def _as_recovered(state: PartitionState) -> PartitionState:
    """Without what a crash or a zombie left behind and a recovery would remove."""
    for key in state.take_purged():
        state.load(write_key(key), None)
    for session_id in list(state.markers):
        for offset in state.spent_rows(session_id):
            state.forget_row(session_id, offset)
    return state
