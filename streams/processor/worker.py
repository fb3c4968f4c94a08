"""One worker's share of the log: events in order, effects in the only order that is safe.

    kept event       row ──ack──► done
    refused event    dead letter ──ack──► row with its code ──ack──► done
    late reward      revisions ──ack──► row ──ack──► done
    closing event    earlier writes of the session ──ack──► samples ──ack──► outcome, trace
                     ──ack──► marker ──ack──► tombstones, done
    too large        the session closes with totals only

Events for a session that is closing wait behind its close. A row that is there but not yet
acknowledged is waited for, never taken as done.

Invariant: an event counts as done only when everything that follows from it is durable.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NoReturn

from schemas.events import Purge
from streams.core.closing import marker_of_totals
from streams.core.effects import Effects, with_totals
from streams.core.partition import refused_purge
from streams.core.state import Marker, Rules
from streams.errors import TooLarge
from streams.log.interface import Outgoing, Position
from streams.processor.arrivals import Arrived, Incoming, Session, row_of
from streams.processor.counting import count_close, count_event, count_refusals
from streams.processor.offsets import Entry
from streams.processor.outlet import Acknowledged, Outlet
from streams.processor.partition_state import PartitionState
from streams.processor.records import (
    letters_of,
    outcome_of,
    revisions_of,
    samples_of,
    trace_of,
)
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
from streams.processor.under_way import UnderWay
from streams.settings import Settings

_TOMBSTONES_IN_FLIGHT = 500
"""A purge may remove millions, and one in flight costs far more than its few bytes."""
_WAITING_EVENTS_MAX = 500
"""Behind a purge; more events are left in the log until it is done."""
_WAITING_BYTES_MAX = 64 << 20
"""Of events behind a purge, and of those behind the closes of their sessions, the same."""
_EVENT_BYTES = 500
"""In memory, beside its value."""


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
        self._closes: dict[Session, asyncio.Task[None]] = {}
        self._behind_closes_bytes = 0
        self._purging: dict[int, deque[Arrived]] = {}
        """Partitions where a purge is under way, and the events that wait behind it."""
        self._purges: dict[int, asyncio.Task[None]] = {}
        self._under_way = UnderWay()
        self.states: dict[int, PartitionState] = {}

    def state(self, partition: int) -> PartitionState:
        """What a partition holds, empty at first; only a recovery may begin one."""
        if partition not in self.states:
            self.states[partition] = PartitionState(self._rules, self._counts)
        return self.states[partition]

    def drop(self, partition: int) -> None:
        """Forget a partition that is another worker's now, or that must be read again."""
        self.states.pop(partition, None)
        self._outlet.tips.pop(partition, None)
        # What these tasks still write is harmless; what they would do to our state is not.
        for task in self._tasks.pop(partition, set()):
            task.cancel()
        self._under_way.forget(partition)
        self._purging.pop(partition, None)
        self._purges.pop(partition, None)
        for session in [s for s in self._closing if s[0] == partition]:
            self._behind_closes_bytes -= sum(map(_bytes_of, self._closing[session]))
            del self._closing[session], self._closes[session]

    async def handle(self, incoming: Incoming, entry: Entry) -> None:
        """Take one event over; `entry` is released when all that follows from it is durable."""
        arrived = Arrived.of(incoming, entry, self._settings)
        count_event(self._counts, arrived.event)
        if incoming.partition in self._purging:
            waiting = self._purging[incoming.partition]
            waiting.append(arrived)
            waiting_bytes = sum(map(_bytes_of, waiting))
            if len(waiting) >= _WAITING_EVENTS_MAX or waiting_bytes > _WAITING_BYTES_MAX:
                await asyncio.wait([self._purges[incoming.partition]])
        elif isinstance(arrived.event, Purge):
            await self._begin_purge(arrived, arrived.event)
        else:
            await self._accept(arrived)
        await self._outlet.room()

    async def _accept(self, arrived: Arrived) -> None:
        if arrived.session in self._closing:
            self._closing[arrived.session].append(arrived)
            self._behind_closes_bytes += _bytes_of(arrived)
            if self._behind_closes_bytes > _WAITING_BYTES_MAX:
                await asyncio.wait([self._closes[arrived.session]])
        else:
            await self._apply(arrived)

    async def _apply(self, arrived: Arrived) -> None:
        partition, offset, session_id = arrived.partition, arrived.offset, arrived.session_id
        state = self.states.get(partition)
        if state is None:
            return  # another worker's by now: never judged against an empty state
        if state.holds(session_id, offset):
            self._release_after(self._under_way.of_event(arrived), arrived)
            return
        effects = state.apply(arrived.event, offset, arrived.logged_ms)
        if effects.marker is not None:
            self._begin_close(arrived, effects, state)
            return
        row = row_of(effects, arrived.event, arrived.logged_ms, arrived.value)
        if row is not None:
            state.keep(session_id, offset, row)
        if effects.refusals or effects.revisions:
            finished: Acknowledged = asyncio.get_running_loop().create_future()
            self._under_way.add(arrived, finished)
            self._release_after(finished, arrived)
            self._spawn(partition, self._emit_then_keep(arrived, effects, row, finished))
        elif row is not None:
            written = await self._put_row(arrived, row)
            self._under_way.add(arrived, written)
            self._release_after(written, arrived)
        else:
            self._counts["ignored"] += 1
            arrived.entry.release()

    async def _emit_then_keep(
        self, arrived: Arrived, effects: Effects, row: Row | None, finished: Acknowledged
    ) -> None:
        await self._send_letters(arrived, effects)
        state = self.states.get(arrived.partition)
        try:
            if effects.revisions and state is not None:
                key = state.marker(arrived.session_id).key.encode()
                revisions = revisions_of(effects, key, self._settings)
                await _acknowledged(await self._outlet.send_built(revisions))
            if row is not None:
                await _acknowledged([await self._put_row(arrived, row)])
        except TooLarge as error:
            if state is None or not effects.revisions:
                finished.set_exception(error)
                return
            # A late reward without its row has changed nothing.
            state.forget_row(arrived.session_id, arrived.offset)
            await self._send_letters(arrived, Effects(refusals=(error,)))
        finished.set_result(None)

    def _begin_close(self, arrived: Arrived, effects: Effects, state: PartitionState) -> None:
        self._closing[arrived.session] = deque()
        closing = self._close(arrived, effects, state)
        self._closes[arrived.session] = self._spawn(arrived.partition, closing)

    async def _close(self, arrived: Arrived, effects: Effects, state: PartitionState) -> None:
        partition, session_id = arrived.partition, arrived.session_id
        try:
            # The marker makes every replay of this session's events a no-op, so whatever they
            # lead to must be durable before it is.
            await _acknowledged(self._under_way.of_session(arrived.session))
            await self._send_close(arrived, effects)
        except TooLarge as error:
            effects = with_totals(effects, f"a record of the session cannot be sent: {error}")
            await self._send_close(arrived, effects)
        marker = effects.marker
        assert marker is not None, "only a close comes here"
        state.close(await self._marked(partition, marker), arrived.logged_ms)
        spent = [RowKey(offset, session_id) for offset in state.spent_rows(session_id)]
        await self._tombstone(partition, state, spent)
        count_close(self._counts, effects)
        arrived.entry.release()
        waiting = self._closing[arrived.session]
        while waiting:
            following = waiting.popleft()
            self._behind_closes_bytes -= _bytes_of(following)
            await self._apply(following)
        del self._closing[arrived.session], self._closes[arrived.session]

    async def _send_close(self, arrived: Arrived, effects: Effects) -> None:
        """Everything but the marker, durable."""
        settings = self._settings
        await self._send_letters(arrived, effects)
        await _acknowledged(await self._outlet.send_built(samples_of(effects, settings)))
        outcome = [await self._outlet.send(record) for record in outcome_of(effects, settings)]
        traces = trace_of(effects, settings, self._counts)
        trace = [await self._outlet.send(record) for record in traces]
        await _acknowledged(outcome)
        try:
            await _acknowledged(trace)
        except TooLarge:
            self._counts["traces_too_large"] += 1

    async def _marked(self, partition: int, marker: Marker) -> Marker:
        """The marker that is stored: this one, or its totals if it is too large."""
        session_id = marker.session_id
        try:
            await self.write_marker(partition, session_id, write_marker(marker))
        except TooLarge:
            marker = marker_of_totals(marker)
            await self.write_marker(partition, session_id, write_marker(marker))
        return marker

    async def write_marker(self, partition: int, session_id: str, value: bytes) -> None:
        """The one write that closes a session for good."""
        key = write_key(MarkerKey(session_id))
        await _acknowledged([await self._outlet.put(partition, key, value)])

    async def _tombstone(self, partition: int, state: PartitionState, keys: Sequence[Key]) -> None:
        """Remove entries of the table that nothing needs any more."""
        for number, key in enumerate(keys, 1):
            state.load(write_key(key), None)
            written = await self._outlet.put(partition, write_key(key), None)
            if number % _TOMBSTONES_IN_FLIGHT == 0:
                await _acknowledged([written])

    async def clear_spent(self, partition: int) -> None:
        """After a recovery: what a crash or a zombie left of closed and purged sessions."""
        state = self.state(partition)
        await self._clear_purged(partition, state)
        for session_id in [s for s in state.rows if s in state.markers]:
            spent = [RowKey(offset, session_id) for offset in state.spent_rows(session_id)]
            await self._tombstone(partition, state, spent)

    async def _begin_purge(self, arrived: Arrived, purge: Purge) -> None:
        """Only a purge that takes effect holds up the events behind it."""
        partition = arrived.partition
        if await self._without_effect(arrived, purge):
            return
        self._purging[partition] = deque([arrived])
        self._purges[partition] = self._spawn(partition, self._behind_purge(partition))

    async def _without_effect(self, arrived: Arrived, purge: Purge) -> bool:
        """Refuse or ignore a purge that changes nothing; whether it is one."""
        state = self.states.get(arrived.partition)
        if state is not None and state.takes_purge(purge.floor, arrived.offset):
            return False
        refused = refused_purge(purge, arrived.offset)
        if state is not None and not refused.refusals:
            self._counts["ignored"] += 1
        if refused.refusals:
            self._spawn(arrived.partition, self._refuse_purge(arrived, refused))
        else:
            arrived.entry.release()
        return True

    async def _refuse_purge(self, arrived: Arrived, refused: Effects) -> None:
        await self._send_letters(arrived, refused)
        arrived.entry.release()

    async def _behind_purge(self, partition: int) -> None:
        """A purge, and what came after it: it must see every close before it, and none behind."""
        waiting = self._purging[partition]
        while waiting:
            arrived = waiting.popleft()
            if not isinstance(arrived.event, Purge):
                await self._accept(arrived)
                await self._outlet.room()
            elif not await self._without_effect(arrived, arrived.event):
                closes = [close for (p, _), close in self._closes.items() if p == partition]
                if closes:
                    await asyncio.wait(closes)
                await self._purge(arrived, arrived.event.floor)
                arrived.entry.release()
        del self._purging[partition], self._purges[partition]

    async def _purge(self, arrived: Arrived, floor: int) -> None:
        state = self.states.get(arrived.partition)
        if state is None:
            return
        key, value = write_key(FloorKey(arrived.offset)), floor.to_bytes(8)
        await _acknowledged([await self._outlet.put(arrived.partition, key, value)])
        state.raise_floor(arrived.offset, floor)
        await self._clear_purged(arrived.partition, state)

    async def _clear_purged(self, partition: int, state: PartitionState) -> None:
        gone = state.take_purged()
        self._counts["purged"] += len(gone)
        await self._tombstone(partition, state, gone)

    async def _send_letters(self, arrived: Arrived, effects: Effects) -> None:
        """Dead letters, without the event's bytes where the broker finds them too large."""
        count_refusals(self._counts, effects)
        place = Position(self._settings.turns_topic, arrived.partition, arrived.offset)
        try:
            await self._sent(letters_of(effects, place, arrived.value, self._settings))
        except TooLarge:
            await self._sent(letters_of(effects, place, None, self._settings))

    async def _sent(self, records: Iterable[Outgoing]) -> None:
        """Send records, and wait until all of them are durable."""
        await _acknowledged([await self._outlet.send(record) for record in records])

    async def _put_row(self, arrived: Arrived, row: Row) -> Acknowledged:
        key = RowKey(arrived.offset, arrived.session_id)
        return await self._outlet.put(arrived.partition, write_key(key), write_row(row))

    def _release_after(self, write: Acknowledged | None, arrived: Arrived) -> None:
        if write is None:
            arrived.entry.release()
        else:
            write.add_done_callback(lambda done: self._release(arrived, done))

    def _release(self, arrived: Arrived, written: Acknowledged) -> None:
        error = written.exception()
        if error is None:
            arrived.entry.release()
        elif (close := self._closes.get(arrived.session)) is not None:
            close.add_done_callback(lambda done: _release_unless_cancelled(arrived.entry, done))
        elif (state := self.states.get(arrived.partition)) is not None:
            # Without its row the session would be another after a restart.
            effects = state.fail(arrived.session_id, f"an event cannot be kept: {error}")
            if effects.marker is not None:
                self._begin_close(arrived, effects, state)

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


def _bytes_of(arrived: Arrived) -> int:
    return len(arrived.value) + _EVENT_BYTES


def _release_unless_cancelled(entry: Entry, task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        entry.release()


async def _acknowledged(writes: Sequence[Acknowledged]) -> None:
    """Wait for writes; a wait that is given up leaves them as they are.

    Raises:
        TooLarge: one of them is more than the log takes; the others are durable.
    """
    if writes:
        await asyncio.wait(writes)
    for write in writes:
        write.result()
