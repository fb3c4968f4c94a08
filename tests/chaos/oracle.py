"""What the pure core gives in one process for the log as it is: the measure of every run.

    turns topic, partition by partition, in order ──► core ──► samples, outcomes, revisions,
                                                               traces, dead letters, the table

The log is read, not the generator: what workers themselves put there (expiries, purges) is part
of the input, and so is the order in which everything arrived.

Invariant: nothing here depends on what any worker did with an event.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.dead_letters import DeadLetter
from schemas.events import Purge, SessionExpired
from schemas.record import Octets
from schemas.samples import SessionClosed
from streams.core.effects import EVENT_ROW, Effects
from streams.core.partition import Partition
from streams.core.state import OpenSession
from streams.log.interface import Entry, Log, Reader
from streams.log.keys import event_key, sample_key
from streams.processor.arrivals import read_event
from streams.processor.rows import (
    FloorKey,
    MarkerKey,
    Row,
    RowKey,
    write_key,
    write_marker,
    write_row,
)
from streams.processor.rules import rules_from
from streams.settings import Settings

READ_SECONDS_MAX = 120.0
Keyed = tuple[bytes, bytes]
"""Key and value, as they stand in a topic."""


@dataclass
class Expected:
    """Everything that has to be there in the end.

    One entry for each name, unless a session was purged and something of it came afterwards: it
    then begins anew.
    """

    samples: dict[str, set[Keyed]] = field(default_factory=dict)
    outcomes: dict[str, set[Keyed]] = field(default_factory=dict)
    revisions: dict[tuple[str, int], set[Keyed]] = field(default_factory=dict)
    traces: dict[str, set[Keyed]] = field(default_factory=dict)
    letters: dict[Keyed, str] = field(default_factory=dict)
    """Dead letters with a short name for each."""
    tables: dict[int, dict[bytes, bytes]] = field(default_factory=dict)
    """The state of the changelog, by partition."""
    counts: Counter[str] = field(default_factory=Counter)


class Oracle:
    """Reads the turns topic on and on, as one process that never fails would."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rules = rules_from(settings)
        self._partitions: dict[int, Partition] = {}
        self._rows: dict[tuple[int, str], list[int]] = {}
        self._floors: dict[int, int] = {}
        self._keys: dict[str, bytes] = {}
        """Under which a closed session's samples stand."""
        self._reader: Reader | None = None
        self.expected = Expected()

    @property
    def open_sessions(self) -> int:
        """Sessions that have no outcome yet."""
        return sum(
            isinstance(session, OpenSession)
            for partition in self._partitions.values()
            for session in partition.sessions.values()
        )

    async def read_on(self, log: Log) -> None:
        """Take over everything that the topic holds now."""
        topic = self._settings.turns_topic
        if self._reader is None:
            self._reader = await log.read(topic, await log.start_positions(topic))
        async for entry in read_to_end(log, topic, self._reader):
            self.feed(entry)

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()
            self._reader = None

    def feed(self, entry: Entry) -> None:
        """One entry of the log, the next of its partition."""
        number, offset = entry.position.partition, entry.position.offset
        partition = self._partitions.get(number)
        if partition is None:
            partition = self._partitions[number] = Partition(rules=self._rules)
            self.expected.tables[number] = {}
        event = read_event(entry.key, entry.value, self._settings.message_bytes_max)
        self.expected.counts["events"] += 1
        if isinstance(event, Purge):
            floor = partition.floor
            partition.feed(event, offset)
            if partition.floor > floor:
                self._purged(number, offset, partition)
            return
        if isinstance(event, BadRecord):
            effects = partition.refuse(event, offset)
        else:
            effects = partition.feed(event, offset, entry.timestamp_ms)
            if isinstance(event, SessionExpired):
                self.expected.counts["expiries ignored"] += effects.outcome is None
        self._note(entry, event.session_id or "", effects)

    def _note(self, entry: Entry, session_id: str, effects: Effects) -> None:
        number, offset, expected = entry.position.partition, entry.position.offset, self.expected
        for refusal in effects.refusals:
            letter = DeadLetter(
                code=refusal.code,
                detail=refusal.detail,
                session_id=refusal.session_id,
                turn_id=refusal.turn_id,
                topic=self._settings.turns_topic,
                partition=number,
                offset=offset,
                payload=Octets(entry.value or b""),
            )
            name = f"{number}/{offset} {refusal.code} {session_id}"
            expected.letters[str(entry.position).encode(), codec.to_msgpack(letter)] = name
            expected.counts[f"dead letter {refusal.code}"] += 1
        for revision in effects.revisions:
            told = revision.sample_id, revision.revision
            value = self._keys[session_id], codec.to_msgpack(revision)
            expected.revisions.setdefault(told, set()).add(value)
        if effects.row is not None:
            kept = entry.value if effects.row == EVENT_ROW else None
            code = None if effects.row == EVENT_ROW else effects.row
            self._rows.setdefault((number, session_id), []).append(offset)
            row = write_row(Row(entry.timestamp_ms, kept, code, effects.refused_turn))
            expected.tables[number][write_key(RowKey(offset, session_id))] = row
        if effects.outcome is not None:
            self._closed(number, effects.outcome, effects)

    def _closed(self, number: int, outcome: SessionClosed, effects: Effects) -> None:
        expected, session_id = self.expected, outcome.session_id
        key = self._keys[session_id] = sample_key(session_id, outcome.group_id)
        for sample in effects.samples:
            samples = expected.samples.setdefault(sample.sample_id, set())
            samples.add((key, codec.to_msgpack(sample)))
        expected.outcomes.setdefault(session_id, set()).add((key, codec.to_msgpack(outcome)))
        if effects.trace is not None:
            trace = event_key(session_id), codec.to_msgpack(effects.trace)
            expected.traces.setdefault(session_id, set()).add(trace)
        assert effects.marker is not None, "every close leaves a marker"
        table = expected.tables[number]
        for offset in self._rows.pop((number, session_id), []):
            table.pop(write_key(RowKey(offset, session_id)), None)
        table[write_key(MarkerKey(session_id))] = write_marker(effects.marker)
        expected.counts[f"ended {outcome.end_status}"] += 1
        expected.counts["forks"] += sum(row.attach == "fork" for row in outcome.ledger)
        expected.counts["realigned"] += sum(row.attach == "realign" for row in outcome.ledger)
        expected.counts["sub-agents"] += sum(row.attach == "root" for row in outcome.ledger[1:])

    def _purged(self, number: int, offset: int, partition: Partition) -> None:
        table = self.expected.tables[number]
        for place, session_id in [key for key in self._rows if key[0] == number]:
            if session_id not in partition.sessions:
                for row in self._rows.pop((place, session_id)):
                    table.pop(write_key(RowKey(row, session_id)), None)
        for key in [key for key in table if key.startswith(b"m|")]:
            if key[2:].decode() not in partition.sessions:
                del table[key]
                self.expected.counts["purged"] += 1
        if number in self._floors:
            del table[write_key(FloorKey(self._floors[number]))]
        self._floors[number] = offset
        table[write_key(FloorKey(offset))] = partition.floor.to_bytes(8)


async def read_to_end(log: Log, topic: str, reader: Reader) -> AsyncIterator[Entry]:
    """Everything up to the topic's present end; bounded."""
    ends = await log.end_positions(topic)
    deadline_s = time.monotonic() + READ_SECONDS_MAX
    while any(reader.positions[partition] < end for partition, end in ends.items()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{topic}: at {reader.positions} of {ends}")
        for entry in await reader.next_batch(0.5):
            yield entry
