"""A source whose partitions are given out by a Kafka group: trainers come and go.

    given out again    a partition that stays ours is read on; nothing that was read is lost
    taken away         what was buffered of it is dropped: its next reader reads it again
    new                read from where the group stands, knowing which groups behind that place
                       were trained already (the note beside the position)

Invariant: as for every source, no entry is skipped unseen.
"""

import asyncio
from collections.abc import Mapping

from streams.core.closed_groups import DIGEST_BYTES
from streams.log.interface import Log, Outgoing, Reader
from streams.log.kafka_member import NOTE_CHARS_MAX, KafkaMember
from streams.trainer.sources import ENTRIES_MAX, Fetched

_RETRY_S = 0.2


class Shared:
    """Partitions as a group gives them out."""

    notes_max = NOTE_CHARS_MAX // 4 * 3 // DIGEST_BYTES

    def __init__(self, log: Log, topic: str, member: KafkaMember, patience_s: float) -> None:
        """The member has joined; positions are tried again for so long."""
        self._patience_s = patience_s
        self._log = log
        self._topic = topic
        self._member = member
        self._reader: Reader | None = None
        self._generation = 0
        self._known: dict[int, tuple[int, str] | None] = {}
        """What is committed of our partitions, by us or before us."""
        self._since: dict[int, int] = {}
        """In which generation each partition became ours."""

    @property
    def positions(self) -> dict[int, int]:
        """What comes next."""
        return {} if self._reader is None else self._reader.positions

    @property
    def given_out(self) -> bool:
        """The group has settled, and we have taken over what is ours."""
        return self._member.settled and 0 < self._generation == self._member.generation

    async def fetch(self, wait_s: float, *, entries: bool) -> Fetched:
        """What is new; membership is kept up in any case."""
        await self._member.beat()
        fetched = Fetched()
        if self._generation != self._member.generation:
            await self._changed(fetched)
        elif entries and self._reader is not None and self._member.settled:
            found = await self._reader.next_batch(wait_s, ENTRIES_MAX)
            # They may have been given out while we waited; then some are another's to read.
            own = self._member.partitions
            fetched.entries = [entry for entry in found if entry.position.partition in own]
        else:
            await asyncio.sleep(min(wait_s, _RETRY_S) if entries else 0)
        return fetched

    async def commit(
        self, outgoing: Outgoing, positions: Mapping[int, int], notes: Mapping[int, str]
    ) -> bool:
        """The record counts in any case: it was trained.

        While partitions are being given out the group takes no positions; those that stay ours
        are written when that is over.
        """
        since = dict(self._since)
        await self._log.publish(outgoing)
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + self._patience_s
        while True:
            mine = {p: at for p, at in positions.items() if self._since.get(p) == since.get(p)}
            if self.given_out and (not mine or await self._member.commit(mine, notes)):
                self._known |= {p: (at, notes.get(p, "")) for p, at in mine.items()}
                return len(mine) == len(positions)
            if clock() > deadline_s:
                return False
            await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Leave the group."""
        if self._reader is not None:
            await self._reader.close()
        await self._member.close()

    async def _changed(self, fetched: Fetched) -> None:
        """Read on what stayed ours, and what is new from where the group stands."""
        generation, now = self._member.generation, self._member.partitions
        committed = await self._member.committed(now)
        before = self.positions
        # Nobody had it in between if what is committed is what we know.
        kept = {p for p in before if p in now and committed.get(p) == self._known.get(p)}
        fresh = sorted(now - kept)
        starts = await self._log.start_positions(self._topic) if fresh else {}
        positions = {p: committed[p][0] if p in committed else starts[p] for p in fresh}
        positions |= {p: before[p] for p in kept}
        reader = await self._log.read(self._topic, positions) if positions else None
        reader, self._reader = self._reader, reader
        if reader is not None:
            await reader.close()
        fetched.lost = set(before) - kept
        fetched.gained = {p: committed[p][1] if p in committed else "" for p in fresh}
        self._known = {p: committed.get(p) for p in now}
        self._since = {p: self._since[p] for p in kept} | dict.fromkeys(fresh, generation)
        self._generation = generation
