"""One worker's share of the log: events in order, effects in the only order that is safe.

    kept event       row ──ack──► done
    refused event    dead letter ──ack──► row with its code ──ack──► done
    late reward      revisions ──ack──► row ──ack──► done
    closing event    earlier writes of the session ──ack──► samples ──ack──► outcome, trace
                     ──ack──► marker ──ack──► tombstones, done

Events for a session that is closing wait behind its close. A row that is there but not yet
acknowledged is waited for, never taken as done.

Invariant: an event counts as done only when everything that follows from it is durable.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, NoReturn

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.dead_letters import DeadLetter
from schemas.events import Event, Purge
from schemas.record import Octets
from schemas.samples import SessionClosed
from streams.core.effects import EVENT_ROW, Effects
from streams.core.state import Rules
from streams.log.keys import event_key, sample_key
from streams.processor.offsets import Entry
from streams.processor.outlet import Acknowledged, Outlet
from streams.processor.partition_state import PartitionState
from streams.processor.rows import (
    FloorKey,
    Key,
    MarkerKey,
    Row,
    RowKey,
    write_key,
    write_marker,
    write_row,
)
from streams.settings import Settings

Session = tuple[int, str]
"""Partition and session id."""


class Incoming(NamedTuple):
    """One entry of the source log."""

    partition: int
    offset: int
    logged_ms: int
    key: bytes | None
    value: bytes | None


class Arrived(NamedTuple):
    """One event, read, and the offset it holds back until it is done."""

    partition: int
    offset: int
    logged_ms: int
    value: bytes
    event: Event | BadRecord
    session_id: str
    entry: Entry

    @property
    def session(self) -> Session:
        """Whose event, and where."""
        return self.partition, self.session_id


class Worker:
    """The partitions this process holds."""

    def __init__(
        self,
        settings: Settings,
        rules: Rules,
        outlet: Outlet,
        counts: Counter[str],
        die: Callable[[str], NoReturn],
    ) -> None:
        """Nothing is held until partitions are assigned."""
        self._settings = settings
        self._rules = rules
        self._outlet = outlet
        self._counts = counts
        self._die = die
        self._tasks: dict[int, set[asyncio.Task[None]]] = {}
        self._closing: dict[Session, deque[Arrived]] = {}
        """Sessions whose close is under way, and the events that wait behind it."""
        self._purging: dict[int, deque[Arrived]] = {}
        """Partitions where a purge is under way, and the events that wait behind it."""
        self._closes: dict[Session, asyncio.Task[None]] = {}
        self._under_way: dict[Session, set[Acknowledged]] = {}
        self._rows_under_way: dict[tuple[int, str, int], Acknowledged] = {}
        self.states: dict[int, PartitionState] = {}

    def state(self, partition: int) -> PartitionState:
        """What a partition holds, empty at first; only a recovery may begin one."""
        if partition not in self.states:
            self.states[partition] = PartitionState(self._rules)
        return self.states[partition]

    def drop(self, partition: int) -> None:
        """Forget a partition that is another worker's now, or that must be read again."""
        self.states.pop(partition, None)
        self._outlet.tips.pop(partition, None)
        # What these tasks still write is harmless; what they would do to our state is not.
        for task in self._tasks.pop(partition, set()):
            task.cancel()
        self._purging.pop(partition, None)
        for session in [s for s in self._closing if s[0] == partition]:
            del self._closing[session]

    async def handle(self, incoming: Incoming, entry: Entry) -> None:
        """Take one event over; `entry` is released when all that follows from it is durable."""
        event = read_event(incoming.key, incoming.value)
        session_id = "" if isinstance(event, Purge) else event.session_id or ""
        arrived = Arrived(
            incoming.partition,
            incoming.offset,
            incoming.logged_ms,
            incoming.value or b"",
            event,
            session_id,
            entry,
        )
        self._counts["events"] += 1
        if incoming.partition in self._purging:
            self._purging[incoming.partition].append(arrived)
        elif isinstance(event, Purge):
            self._purging[incoming.partition] = deque([arrived])
            self._spawn(incoming.partition, self._behind_purge(incoming.partition))
        else:
            await self._accept(arrived)
        await self._outlet.room()

    async def _accept(self, arrived: Arrived) -> None:
        if arrived.session in self._closing:
            self._closing[arrived.session].append(arrived)
        else:
            await self._apply(arrived)

    async def _apply(self, arrived: Arrived) -> None:
        partition, offset, session_id = arrived.partition, arrived.offset, arrived.session_id
        state = self.states.get(partition)
        if state is None:
            return  # another worker's by now: never judged against an empty state
        if state.holds(session_id, offset):
            self._release_after(self._rows_under_way.get((*arrived.session, offset)), arrived.entry)
            return
        effects = state.apply(arrived.event, offset, arrived.logged_ms)
        if effects.marker is not None:
            self._closing[arrived.session] = deque()
            close = self._spawn(partition, self._close(arrived, effects, state))
            self._closes[arrived.session] = close
            close.add_done_callback(lambda _: self._closes.pop(arrived.session, None))
            return
        row = _row(arrived, effects)
        if row is not None:
            state.keep(session_id, offset, row)
        if effects.refusals or effects.revisions:
            finished: Acknowledged = asyncio.get_running_loop().create_future()
            self._track(arrived, finished)
            self._release_after(finished, arrived.entry)
            self._spawn(partition, self._emit_then_keep(arrived, effects, row, finished))
        elif row is not None:
            written = await self._put_row(arrived, row)
            self._track(arrived, written)
            self._release_after(written, arrived.entry)
        else:
            self._counts["ignored"] += 1
            arrived.entry.release()

    async def _emit_then_keep(
        self, arrived: Arrived, effects: Effects, row: Row | None, finished: Acknowledged
    ) -> None:
        for sent in [
            *await self._send_letters(arrived, effects),
            *await self._send_revisions(arrived, effects),
        ]:
            await sent
        if row is not None:
            await (await self._put_row(arrived, row))
        finished.set_result(None)

    async def _close(self, arrived: Arrived, effects: Effects, state: PartitionState) -> None:
        marker, outcome = effects.marker, effects.outcome
        assert marker is not None, "only a close comes here"
        assert outcome is not None, "every close has an outcome"
        partition, session_id = arrived.partition, arrived.session_id
        # The marker makes every replay of this session's events a no-op, so whatever they lead
        # to must be durable before it is.
        for earlier in list(self._under_way.get(arrived.session, ())):
            await earlier
        for letter in await self._send_letters(arrived, effects):
            await letter
        topic, key = self._settings.samples_topic, sample_key(session_id, outcome.group_id)
        for sent in [
            await self._outlet.send(topic, key, codec.to_msgpack(sample))
            for sample in effects.samples
        ]:
            await sent
        last = [await self._outlet.send(topic, key, codec.to_msgpack(outcome))]
        if effects.trace is not None:
            trace = codec.to_msgpack(effects.trace)
            last.append(
                await self._outlet.send(self._settings.traces_topic, event_key(session_id), trace)
            )
        for sent in last:
            await sent
        await self.write_marker(partition, session_id, write_marker(marker))
        state.close(marker, arrived.logged_ms)
        spent = [RowKey(offset, session_id) for offset in state.spent_rows(session_id)]
        await self._tombstone(partition, state, spent)
        self._count_close(effects, outcome)
        arrived.entry.release()
        waiting = self._closing[arrived.session]
        while waiting:
            await self._apply(waiting.popleft())
        del self._closing[arrived.session]

    async def write_marker(self, partition: int, session_id: str, value: bytes) -> None:
        """The one write that closes a session for good."""
        await (await self._outlet.put(partition, write_key(MarkerKey(session_id)), value))

    async def _tombstone(self, partition: int, state: PartitionState, keys: Sequence[Key]) -> None:
        """Remove entries of the table that nothing needs any more."""
        for key in keys:
            state.load(write_key(key), None)
            await self._outlet.put(partition, write_key(key), None)

    async def clear_spent(self, partition: int) -> None:
        """After a recovery: what a crash or a zombie left of closed and purged sessions."""
        state = self.state(partition)
        await self._clear_purged(partition, state)
        for session_id in [s for s in state.rows if s in state.markers]:
            spent = [RowKey(offset, session_id) for offset in state.spent_rows(session_id)]
            await self._tombstone(partition, state, spent)

    async def _behind_purge(self, partition: int) -> None:
        """A purge, and what came after it: it must see every close before it, and none behind."""
        waiting = self._purging[partition]
        while waiting:
            arrived = waiting.popleft()
            if not isinstance(arrived.event, Purge):
                await self._accept(arrived)
                continue
            for close in [close for (p, _), close in self._closes.items() if p == partition]:
                await asyncio.wait([close])
            await self._purge(arrived, arrived.event.floor)
            arrived.entry.release()
        del self._purging[partition]

    async def _purge(self, arrived: Arrived, floor: int) -> None:
        state = self.states.get(arrived.partition)
        if state is None:
            return
        if arrived.offset < state.floor or floor <= state.floor:
            return
        if state.blocks_purge(floor, arrived.offset):
            self._counts["ignored"] += 1
            return
        key, value = write_key(FloorKey(arrived.offset)), floor.to_bytes(8)
        await (await self._outlet.put(arrived.partition, key, value))
        state.raise_floor(arrived.offset, floor)
        await self._clear_purged(arrived.partition, state)

    async def _clear_purged(self, partition: int, state: PartitionState) -> None:
        gone = state.purged()
        self._counts["purged"] += len(gone)
        await self._tombstone(partition, state, gone)

    async def _send_letters(self, arrived: Arrived, effects: Effects) -> list[Acknowledged]:
        topic, most = self._settings.turns_topic, self._settings.message_bytes_max
        sent = []
        for refusal in effects.refusals:
            letter = DeadLetter(
                code=refusal.code,
                detail=refusal.detail,
                session_id=refusal.session_id,
                turn_id=refusal.turn_id,
                topic=topic,
                partition=arrived.partition,
                offset=arrived.offset,
                # A foreign producer may have stored more than a letter can hold.
                payload=Octets(arrived.value) if len(arrived.value) <= most else None,
            )
            key = f"{topic}/{arrived.partition}/{arrived.offset}".encode()
            self._counts[f"dead_letter:{refusal.code}"] += 1
            sent.append(
                await self._outlet.send(
                    self._settings.dead_letters_topic, key, codec.to_msgpack(letter)
                )
            )
        return sent

    async def _send_revisions(self, arrived: Arrived, effects: Effects) -> list[Acknowledged]:
        if not effects.revisions:
            return []
        state = self.states.get(arrived.partition)
        if state is None:
            return []
        key = state.markers[arrived.session_id].key.encode()
        topic = self._settings.samples_topic
        return [
            await self._outlet.send(topic, key, codec.to_msgpack(revision))
            for revision in effects.revisions
        ]

    async def _put_row(self, arrived: Arrived, row: Row) -> Acknowledged:
        key = RowKey(arrived.offset, arrived.session_id)
        return await self._outlet.put(arrived.partition, write_key(key), write_row(row))

    def _track(self, arrived: Arrived, write: Acknowledged) -> None:
        """Remember a write of a session until it is acknowledged."""
        session = arrived.session
        place = (*session, arrived.offset)
        self._under_way.setdefault(session, set()).add(write)
        self._rows_under_way[place] = write

        def forget(done: Acknowledged) -> None:
            self._rows_under_way.pop(place, None)
            writes = self._under_way[session]
            writes.discard(done)
            if not writes:
                del self._under_way[session]

        write.add_done_callback(forget)

    @staticmethod
    def _release_after(write: Acknowledged | None, entry: Entry) -> None:
        if write is None:
            entry.release()
        else:
            write.add_done_callback(lambda _: entry.release())

    def _count_close(self, effects: Effects, outcome: SessionClosed) -> None:
        counts = self._counts
        counts["sessions_closed"] += 1
        counts["samples"] += len(effects.samples)
        counts["tokens_generated"] += outcome.generated
        counts["tokens_trained"] += outcome.trained
        for row in outcome.ledger:
            for reason, tokens in row.untrained.items():
                counts[f"untrained:{reason}"] += tokens

    def _spawn(self, partition: int, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._die(f"a task failed: {error!r}")

        task = asyncio.create_task(guarded())
        self._tasks.setdefault(partition, set()).add(task)
        task.add_done_callback(lambda done: self._tasks.get(partition, set()).discard(done))
        return task


def _row(arrived: Arrived, effects: Effects) -> Row | None:
    if effects.row is None:
        return None
    if effects.row == EVENT_ROW:
        return Row(arrived.logged_ms, arrived.value)
    return Row(arrived.logged_ms, None, effects.row)


def read_event(key: bytes | None, value: bytes | None) -> Event | BadRecord:
    """The event in a log entry, or why there is none; the key names the session even then."""
    session_id = key.decode("utf-8", "replace") if key else None
    try:
        if value is None:
            raise BadRecord("undecodable", "the entry has no value")
        record = codec.from_msgpack(value)
        if not isinstance(record, Event):
            kind = record.__struct_config__.tag
            raise BadRecord("unknown_type", f"`{kind}` is a record, not an event of a session")
    except BadRecord as error:
        error.session_id = error.session_id or session_id
        return error
    told = getattr(record, "session_id", session_id)
    if session_id is not None and told != session_id:
        detail = f"the entry's key is {session_id!r:.80}, the event says {told!r:.80}"
        return BadRecord("invalid_field", detail, session_id=session_id)
    return record
