"""A topic as it stands when a command begins: from its oldest entry to the end seen then.

    start                         end when it began        end by now
      |───────────── read ───────────────|─── left alone ──────|

Invariant: every entry between the two is handed over once, each partition's in order, or the
command ends with an error; what is written meanwhile never prolongs it.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from streams.cli.progress import Progress
from streams.errors import LogAway
from streams.log.interface import Entry, Log
from streams.log.opening import log_name
from streams.settings import Settings

_WAIT_S = 0.5

Take = Callable[[Sequence[Entry]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there is to read of a topic."""

    topic: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]

    @property
    def entries(self) -> int:
        """How many places there are; compaction may have emptied some."""
        return sum(end - self.starts[partition] for partition, end in self.ends.items())


async def snapshot_of(log: Log, topic: str) -> Snapshot:
    """The topic's bounds as they are now; partitions with nothing in them are left out."""
    ends = await log.end_positions(topic)
    starts = await log.start_positions(topic)
    held = [partition for partition, end in ends.items() if starts[partition] < end]
    return Snapshot(topic, {p: starts[p] for p in held}, {p: ends[p] for p in held})


async def read_snapshot(
    log: Log, snapshot: Snapshot, settings: Settings, progress: Progress, take: Take
) -> None:
    """Hand everything over, in batches.

    Raises:
        LogAway: nothing came for as long as a publish may take.
        LogError: the log refuses, or retention was faster.
    """
    if not snapshot.ends:
        return
    reader = await log.read(snapshot.topic, snapshot.starts)
    done = 0
    heard_s = time.monotonic()
    try:
        while any(reader.positions[p] < end for p, end in snapshot.ends.items()):
            found = await reader.next_batch(_WAIT_S)
            if found:
                ends = snapshot.ends
                batch = [e for e in found if e.position.offset < ends[e.position.partition]]
                await take(batch)
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > settings.publish_timeout_s:
                detail = f"nothing from {log_name(settings)} in {settings.publish_timeout_s:g} s"
                raise LogAway(f"read {snapshot.topic} at {reader.positions}: {detail}")
            reached = _reached(snapshot, reader.positions)
            progress.advance(reached - done)
            done = reached
    finally:
        await reader.close()


def _reached(snapshot: Snapshot, positions: Mapping[int, int]) -> int:
    return sum(
        min(positions[partition], end) - snapshot.starts[partition]
        for partition, end in snapshot.ends.items()
    )
