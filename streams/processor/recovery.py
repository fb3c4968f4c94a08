"""A partition's state read back from the table's changelog.

A kept partition is not read again if the last offset we know to be ours is still the
changelog's end; any foreign write breaks that and forces a full read. Entries that no processor
can have written are counted and skipped.

Invariant: a state that is returned holds every entry up to the changelog's end at the start.
"""

import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

from streams.errors import LogAway
from streams.log.interface import Log
from streams.processor.outlet import Outlet
from streams.processor.worker import Worker
from streams.settings import Settings

_BATCH_WAIT_S = 0.5
_ENTRIES_MAX = 5000


class Recovered(NamedTuple):
    """What a recovery read."""

    rows: int
    foreign: int
    """Of these, entries that no processor wrote."""


async def first_offset(log: Log, topic: str, partition: int, at: int) -> int | None:
    """The first event at or behind an offset, as the log itself has it; None if there is none."""
    start = (await log.start_positions(topic))[partition]
    reader = await log.read(topic, {partition: max(at, start)})
    try:
        found = await reader.next_batch(_BATCH_WAIT_S, 1)
        return found[0].position.offset if found else None
    finally:
        await reader.close()


async def recover(
    partitions: Iterable[int],
    worker: Worker,
    outlet: Outlet,
    log: Log,
    settings: Settings,
) -> Recovered:
    """Bring the worker's states up to the changelog's end."""
    rows = foreign = 0
    example = ""
    ends = await log.end_positions(settings.changelog_topic)
    stale = [p for p in partitions if outlet.tips.get(p) != ends[p] - 1 or p not in worker.states]
    for partition in stale:
        worker.drop(partition)
        worker.state(partition)
    starts = await log.start_positions(settings.changelog_topic)
    # An entry of an event behind it, e.g. a floor, would silence all that is to come.
    log_ends = await log.end_positions(settings.turns_topic)
    left = {p for p in stale if ends[p] > starts[p]}
    if left:
        reader = await log.read(settings.changelog_topic, {p: starts[p] for p in left})
        try:
            silent_since = time.monotonic()
            while left:
                batch = await reader.next_batch(_BATCH_WAIT_S, _ENTRIES_MAX)
                for entry in batch:
                    state = worker.state(entry.position.partition)
                    log_end = log_ends[entry.position.partition]
                    try:
                        state.load(entry.key or b"", entry.value, entry.timestamp_ms, log_end)
                    except ValueError as error:
                        example = example or f"{entry.position}: {error}"
                        foreign += 1
                rows += len(batch)
                # Positions, not offsets: compaction leaves holes, also at the end.
                left = {p for p in left if reader.positions[p] < ends[p]}
                if batch:
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since > settings.publish_timeout_s:
                    raise LogAway(f"{settings.changelog_topic}: no answer while recovering")
        finally:
            await reader.close()
    if foreign:
        sys.stderr.write(
            f"turnstream processor: skipped {foreign} entries of the table's changelog that no "
            f"processor wrote; the first is {example:.300}\n"
        )
    for partition in stale:
        outlet.tips[partition] = ends[partition] - 1
    return Recovered(rows, foreign)
