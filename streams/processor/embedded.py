"""The same life of a session in one process over an embedded log: no broker, no changelog.

    turns ──► state in memory ──► one transaction a batch:
                                    records, table entries, how far the turns were read

Everything a batch leads to is stored with the position behind it or not at all, so there is
nothing to acknowledge in order and nothing to wait for. A row of an event names its place in the
turns instead of repeating it.

A close whose samples are too many for one transaction takes several: what came before it, then
its samples part by part, its outcome and marker with the last. A crash in between leaves the
position before the closing event, so that its samples are written again, with the same ids.

Invariant: memory is never ahead of the file for longer than one batch; if a transaction fails,
memory is thrown away and read back.
"""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from schemas import codec
from schemas.events import Purge
from streams.core.effects import Effects, with_totals
from streams.core.partition import refused_purge
from streams.errors import LogError, NoSuchPosition, PositionMoved, TooLarge, WrongLog
from streams.log.interface import Entry, Log, Outgoing, Position
from streams.log.keys import event_key
from streams.log.sizes import check_size
from streams.log.sqlite_transaction import Transaction
from streams.processor.arrivals import read_event, row_of
from streams.processor.counting import count_close, count_event, count_refusals
from streams.processor.health import Progress
from streams.processor.partition_state import PartitionState
from streams.processor.records import (
    letters_of,
    outcome_of,
    revisions_of,
    samples_of,
    trace_of,
)
from streams.processor.rows import (
    TIME_BYTES,
    FloorKey,
    Key,
    MarkerKey,
    Row,
    RowKey,
    check_offset,
    named_events,
    read_key,
    read_row,
    write_key,
    write_marker,
    write_row,
)
from streams.processor.rules import rules_from
from streams.processor.sweep import due_purge, expired_sessions
from streams.settings import Settings

PARTITION = 0
"""An embedded log has one."""
_BATCH_EVENTS_MAX = 256
_TRANSACTION_BYTES = 16_777_216
"""Of records in one transaction; a record that would exceed it goes into the next."""
_WAIT_S = 0.5
_RETRY_S = 0.2
_RETRY_S_MAX = 5.0


class TableLog(Log, Protocol):
    """A log that also keeps a table, and writes both in one transaction."""

    async def transact(self, transaction: Transaction) -> list[Position]:
        """All of it or nothing; where the entries stand.

        Raises:
            PositionMoved: another processor works on this log.
        """
        ...

    def table_entries(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """The whole table."""
        ...

    async def entries_at(self, topic: str, offsets: Sequence[int]) -> list[Entry]:
        """The entries that stand there."""
        ...

    async def trim(self, now_ms: int, needed: Mapping[str, int]) -> int:
        """Remove what retention allows, below what is needed; how many entries went."""
        ...


class Batch:
    """What one batch of events leads to."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.outgoing: list[Outgoing] = []
        self.bytes = 0
        """Of these records."""
        self.puts: dict[bytes, bytes | None] = {}

    def send(self, outgoing: Iterable[Outgoing]) -> None:
        """Write records."""
        for record in outgoing:
            self.outgoing.append(record)
            self.bytes += len(record.value or b"")

    def clear(self) -> None:
        """What there was is stored."""
        self.outgoing, self.bytes, self.puts = [], 0, {}

    def put(self, key: Key, value: bytes, now_ms: int) -> None:
        """Write an entry of the table, with its time."""
        self.puts[write_key(key)] = now_ms.to_bytes(TIME_BYTES) + value

    def remove(self, keys: Sequence[Key]) -> None:
        """Remove entries of the table."""
        self.puts.update((write_key(key), None) for key in keys)


class EmbeddedProcessor:
    """The one processor of an embedded log."""

    def __init__(self, settings: Settings, log: TableLog) -> None:
        """Nothing is read yet."""
        self._settings = settings
        self._log = log
        self._topic = settings.turns_topic
        self._rules = rules_from(settings)
        self._state = PartitionState(self._rules)
        self._committed: int | None = None
        self._next = 0
        self._end = 0
        self._ready = False
        self._trouble: str | None = None
        self._caught_up_s: float | None = None
        self._swept_s = 0.0
        self.counts: Counter[str] = Counter()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until told to stop; a log that fails for a while is said once and tried again.

        Raises:
            LogError: what trying again would not mend.
        """
        wait_s = _RETRY_S
        while not stop.is_set():
            try:
                await self._work(stop)
            except (NoSuchPosition, PositionMoved, WrongLog):
                raise
            except LogError as error:
                wait_s = _RETRY_S if self._trouble is None else min(2 * wait_s, _RETRY_S_MAX)
                if self._trouble is None:
                    sys.stderr.write(f"turnstream processor: {error}; trying again\n")
                self._trouble = str(error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), wait_s)

    async def _work(self, stop: asyncio.Event) -> None:
        await self._load()
        reader = await self._log.read(self._topic, {PARTITION: self._next})
        try:
            while not stop.is_set():
                entries = await reader.next_batch(_WAIT_S, _BATCH_EVENTS_MAX)
                if entries:
                    await self.take(entries)
                    self._well()
                else:
                    self._caught_up_s = self._caught_up_s or time.monotonic()
                if time.monotonic() - self._swept_s > self._settings.processor_sweep_interval_s:
                    self._swept_s = time.monotonic()
                    await self._sweep()
                    self._well()
        finally:
            self._ready = False
            await reader.close()

    def _well(self) -> None:
        """The log does what it is asked."""
        if self._trouble is not None:
            sys.stderr.write("turnstream processor: it works again\n")
            self._trouble = None

    async def _load(self) -> None:
        """Read the table back; memory holds nothing that the file does not."""
        group = self._settings.processor_id
        state = PartitionState(self._rules, self.counts)
        committed = await self._log.committed(group, self._topic)
        start = (await self._log.start_positions(self._topic)).get(PARTITION, 0)
        end = (await self._log.end_positions(self._topic)).get(PARTITION, 0)
        self._committed, self._end = committed.get(PARTITION), end
        self._next = start if self._committed is None else self._committed
        rows: dict[RowKey, Row] = {}
        others: list[tuple[int, bytes, bytes]] = []
        async for written, value in self._log.table_entries():
            with self._skipping_foreign_entries():
                key = read_key(written)
                if isinstance(key, RowKey):
                    row = read_row(value[TIME_BYTES:])
                    check_offset(key.offset, end, start if row.names_event else 0)
                    rows[key] = row
                else:
                    others.append((int.from_bytes(value[:TIME_BYTES]), written, value[TIME_BYTES:]))
        for written_ms, written, value in sorted(others):
            with self._skipping_foreign_entries():
                state.load(written, value, written_ms, end)
        events = await self._log.entries_at(self._topic, named_events(rows))
        values = {entry.position.offset: entry.value for entry in events}
        for (offset, session_id), row in sorted(rows.items()):
            named = row.names_event
            state.keep(session_id, offset, row._replace(value=values[offset]) if named else row)
        self._state, self._ready = state, True
        self._caught_up_s = None
        self.counts["recoveries"] += 1
        self.counts["rows_recovered"] += len(rows)

    @contextlib.contextmanager
    def _skipping_foreign_entries(self) -> Iterator[None]:
        """Skip, count and log once what no processor can have written into the table."""
        try:
            yield
        except ValueError as error:
            if not self.counts["foreign_rows"]:
                sys.stderr.write(f"turnstream processor: skipped an entry of the table: {error}\n")
            self.counts["foreign_rows"] += 1

    async def take(self, entries: Sequence[Entry]) -> None:
        """Work on a batch and store what it leads to; on failure memory is read back."""
        batch = Batch()
        for entry in entries:
            await self._apply(entry, batch)
        self._next = entries[-1].position.offset + 1
        await self._store(batch, self._next)

    async def _store(self, batch: Batch, position: int) -> None:
        """What the batch has so far, with the place of the first event that is not done."""
        group = (self._settings.processor_id, self._topic)
        await self._log.transact(
            Transaction(
                outgoing=batch.outgoing,
                puts=list(batch.puts.items()),
                commits={group: position},
                expect_commits={group: self._committed},
            )
        )
        self._committed = position
        batch.clear()

    async def _apply(self, entry: Entry, batch: Batch) -> None:
        offset, logged_ms, value = entry.position.offset, entry.timestamp_ms, entry.value or b""
        event = read_event(entry.key, entry.value, self._settings.message_bytes_max)
        count_event(self.counts, event)
        if isinstance(event, Purge):
            effects = refused_purge(event, offset)
            count_refusals(self.counts, effects)
            batch.send(letters_of(effects, entry.position, value, self._settings))
            self._purge(offset, event.floor, batch, logged_ms)
            return
        session_id = event.session_id or ""
        effects = self._state.apply(event, offset, logged_ms)
        count_refusals(self.counts, effects)
        batch.send(letters_of(effects, entry.position, value, self._settings))
        if effects.marker is not None:
            await self._close(effects, entry, batch)
            return
        if effects.revisions:
            key = self._state.marker(session_id).key.encode()
            await self._send_parts(revisions_of(effects, key, self._settings), offset, batch)
        row = row_of(effects, event, logged_ms, value)
        if row is None:
            self.counts["ignored"] += not effects.refusals
            return
        self._state.keep(session_id, offset, row)
        # The event itself stands in the turns already, in the same file.
        stored = row._replace(value=None) if row.value is value else row
        batch.put(RowKey(offset, session_id), write_row(stored), logged_ms)

    async def _send_parts(self, records: Iterable[Outgoing], offset: int, batch: Batch) -> None:
        """Records that one transaction may not hold, built one by one."""
        for record in records:
            check_size(record, self._settings)
            batch.send([record])
            if batch.bytes > _TRANSACTION_BYTES:
                await self._store(batch, offset)

    async def _close(self, effects: Effects, entry: Entry, batch: Batch) -> None:
        at, logged_ms, value = entry.position, entry.timestamp_ms, entry.value or b""
        offset = at.offset
        try:
            await self._send_parts(samples_of(effects, self._settings), offset, batch)
            await self._send_parts(outcome_of(effects, self._settings), offset, batch)
        except TooLarge as error:
            effects = with_totals(effects, f"a record of the session cannot be sent: {error}")
            count_refusals(self.counts, effects)
            batch.send(letters_of(effects, at, value, self._settings))
            await self._send_parts(outcome_of(effects, self._settings), offset, batch)
        batch.send(trace_of(effects, self._settings, self.counts))
        marker = effects.marker
        assert marker is not None, "only a close comes here"
        session_id = marker.session_id
        batch.put(MarkerKey(session_id), write_marker(marker), logged_ms)
        self._state.close(marker, logged_ms)
        self._forget([RowKey(at, session_id) for at in self._state.spent_rows(session_id)], batch)
        count_close(self.counts, effects)

    def _purge(self, offset: int, floor: int, batch: Batch, logged_ms: int) -> None:
        state = self._state
        if not state.takes_purge(floor, offset):
            self.counts["ignored"] += 1
            return
        batch.put(FloorKey(offset), floor.to_bytes(8), logged_ms)
        state.raise_floor(offset, floor)
        gone = state.take_purged()
        self.counts["purged"] += len(gone)
        self._forget(gone, batch)

    def _forget(self, keys: Sequence[Key], batch: Batch) -> None:
        for key in keys:
            self._state.load(write_key(key), None)
        batch.remove(keys)

    async def _sweep(self) -> None:
        """Ask for the end of silent sessions, let old markers go, and old entries."""
        settings, now_ms = self._settings, time.time() * 1000
        ends = await self._log.end_positions(self._topic)
        before, self._end = self._end, ends.get(PARTITION, 0)
        # A busy log has always more: what stood there at the last look has to be done.
        if self._next < before:
            self._caught_up_s = None
            return
        since_s = self._caught_up_s = self._caught_up_s or time.monotonic()
        caught_up_ms = now_ms - (time.monotonic() - since_s) * 1000
        asked = [
            Outgoing(
                topic=self._topic,
                key=event_key(expired.session_id),
                value=codec.to_msgpack(expired),
                session_id=expired.session_id,
            )
            for expired in expired_sessions(self._state, now_ms, caught_up_ms, settings)
        ]
        purge = due_purge(self._state, now_ms, settings)
        if purge is not None:
            value = codec.to_msgpack(purge)
            asked.append(Outgoing(topic=self._topic, key=None, value=value, partition=PARTITION))
        # Sent together they share a transaction; one by one each would wait for its own.
        for sending in [await self._log.send(outgoing) for outgoing in asked]:
            # Behind them: until they are read nothing is asked for a second time.
            self._end = max(self._end, (await sending).offset + 1)
        first = self._state.first_row()
        needed = self._next if first is None else min(self._next, first)
        await self._log.trim(int(now_ms), {self._topic: needed})

    def look(self) -> Progress:
        """Whether the processor moves."""
        state = self._state
        return Progress(
            partitions=1,
            lag=max(0, self._end - self._next),
            sessions_open=sum(session_id not in state.markers for session_id in state.rows),
            in_flight=0,
            ready=self._ready,
            trouble=self._trouble,
        )
