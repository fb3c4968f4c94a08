"""What one partition holds, and what follows from one more event of its log.

Rows are the truth; a session's live tree is a cache that rows can rebuild. Events come in log
order, but after a crash the log is read again from the last commit, and of the rows written
before the crash any may be missing. So an event that comes again is judged by what was known
*before* it:

    its row is there             nothing to do, once that row is acknowledged
    newer rows are there, not it  judge it against the rows below it, then rebuild

What a purge and the sweep ask of all sessions is kept in order, so that neither looks at each.

Invariant: what an event leads to depends on the log below it and on nothing else.
"""

import sys
from collections import Counter
from collections.abc import Iterator

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import Event, Purge, Reward
from streams.core.after_close import read_back
from streams.core.effects import NOTHING, Effects
from streams.core.rewards import RewardBook
from streams.core.session import Row as CoreRow
from streams.core.session import apply, fail, refuse, restore
from streams.core.state import ClosedSession, Marker, OpenSession, Rules, State
from streams.processor.earliest import Earliest
from streams.processor.rows import (
    OFFSET_END,
    FloorKey,
    KeptMarker,
    Key,
    MarkerKey,
    Row,
    RowKey,
    check_offset,
    kept_marker,
    read_floor,
    read_key,
    read_marker,
    read_row,
    write_marker,
)

_LATE_BYTES_MAX = 16_000_000
"""Of markers and late rewards that are held as they are read, which takes ten times as much."""


class PartitionState:
    """Rows, markers and live sessions of one partition."""

    def __init__(self, rules: Rules, counts: Counter[str] | None = None) -> None:
        """Empty, as before the first event."""
        self.rules = rules
        self._counts = Counter() if counts is None else counts
        self.rows: dict[str, dict[int, Row]] = {}
        self.markers: dict[str, KeptMarker] = {}
        self.floors: dict[int, int] = {}
        self.floor = 0
        self._live: dict[str, State] = {}
        self._late: dict[str, int] = {}
        """Closed sessions that stay in `_live`, the last used last, and the bytes of each: late
        rewards often come together."""
        self._late_bytes = 0
        self._newest: dict[str, int] = {}
        """The newest row of each session; an event below it comes again."""
        self._first: dict[str, int] = {}
        """The first row of each session."""
        self._closing: set[str] = set()
        """Sessions whose closing event was applied and whose marker is not durable yet."""
        self._newest_close = -1
        self._open_rows = Earliest(self._is_first_open_row)
        self._late_rows = Earliest(lambda offset, session: self._first.get(session) == offset)
        self._closes = Earliest(lambda _, session_id: session_id in self.markers)
        self.deadlines = Earliest(lambda _, session_id: self.is_open(session_id))
        """When the sweep has to look at an open session again, in milliseconds."""
        self.nearer_deadlines: set[str] = set()
        """Sessions that began, or were sealed, since the sweep last looked."""

    def load(
        self, key: bytes, value: bytes | None, written_ms: int = 0, log_end: int = OFFSET_END
    ) -> None:
        """Take over one entry of the changelog, or its removal.

        Raises:
            ValueError: key or value were not written by a processor, or speak of an event that the
                log, which ends at `log_end`, does not have; nothing was taken over.
        """
        match read_key(key):
            case RowKey(offset, session_id):
                if value is None:
                    self.forget_row(session_id, offset)
                else:
                    check_offset(offset, log_end)
                    self.keep(session_id, offset, read_row(value))
                    self._live.pop(session_id, None)
            case MarkerKey(session_id):
                if value is None:
                    self.forget_marker(session_id)
                else:
                    kept = kept_marker(session_id, value, written_ms)
                    check_offset(kept.closed_at, log_end)
                    self._close(session_id, kept)
            case FloorKey(offset):
                if value is not None:
                    check_offset(offset, log_end)
                    self.raise_floor(offset, read_floor(value, offset))
                else:
                    self.floors.pop(offset, None)

    def keep(self, session_id: str, offset: int, row: Row) -> None:
        """Keep the row of an event that was just applied."""
        self.rows.setdefault(session_id, {})[offset] = row
        self._newest[session_id] = max(offset, self._newest.get(session_id, offset))
        first = self._first.get(session_id)
        if first is None or offset < first:
            self._set_first(session_id, offset)
        if first is None and self.is_open(session_id):
            self.nearer_deadlines.add(session_id)

    def close(self, marker: Marker, closed_ms: int) -> None:
        """The session has given its outcome; its earlier rows may go."""
        # A copy is as long as it must be; what the encoder gives has room left at its end.
        value = bytes(memoryview(write_marker(marker)))
        kept = KeptMarker(marker.first, marker.closed_at, closed_ms, value)
        self._close(marker.session_id, kept)

    def marker(self, session_id: str) -> Marker:
        """What is remembered of a closed session; one that cannot be read revises no sample."""
        kept = self.markers[session_id]
        try:
            return read_marker(kept.value)
        except ValueError as error:
            self._report_unreadable("marker", session_id, str(error))
            return Marker(
                session_id=session_id,
                key=session_id,
                first=kept.first,
                closed_at=kept.closed_at,
                samples=[],
                other_turns=[],
                reward_share="full",
                rewards=RewardBook(),
            )

    def forget_row(self, session_id: str, offset: int) -> None:
        """A row is no longer needed."""
        kept = self.rows.get(session_id, {})
        kept.pop(offset, None)
        if not kept:
            self.rows.pop(session_id, None)
            self._newest.pop(session_id, None)
            self._first.pop(session_id, None)
            self.nearer_deadlines.discard(session_id)
        elif offset == self._first[session_id]:
            self._set_first(session_id, min(kept))
        self._live.pop(session_id, None)

    def forget_rows(self, session_id: str) -> None:
        """Rows that a zombie or a foreign producer left, and that give no session."""
        for offset in list(self.rows.get(session_id, ())):
            self.forget_row(session_id, offset)

    def is_open(self, session_id: str) -> bool:
        """Whether the session has rows and no closing event was applied to it."""
        waits = session_id in self._closing or session_id in self.markers
        return session_id in self.rows and not waits

    def row_times(self, session_id: str) -> tuple[int, int]:
        """When the log took the first and the newest row of a session."""
        rows = self.rows[session_id]
        return rows[self._first[session_id]].logged_ms, rows[self._newest[session_id]].logged_ms

    def newest_row(self, session_id: str) -> int:
        """The offset of a session's newest row."""
        return self._newest[session_id]

    def first_open_row(self) -> int | None:
        """The lowest row that an open session has."""
        first = self._open_rows.first()
        return None if first is None else int(first)

    def first_row(self) -> int | None:
        """The lowest row of any session, late rewards included."""
        firsts = [f for f in (self._open_rows.first(), self._late_rows.first()) if f is not None]
        return int(min(firsts)) if firsts else None

    def forget_marker(self, session_id: str) -> None:
        """A closed session is no longer remembered; rows it has left are of one begun anew."""
        self.markers.pop(session_id, None)
        self._forget_late(session_id)
        self._live.pop(session_id, None)
        if self.is_open(session_id):
            self._open_rows.add(self._first[session_id], session_id)
            self.nearer_deadlines.add(session_id)

    def raise_floor(self, offset: int, floor: int) -> None:
        """A purge at `offset` took effect: nothing below `floor` counts any more."""
        self.floors[offset] = floor
        self.floor = max(self.floor, floor)

    def holds(self, session_id: str, offset: int) -> bool:
        """Whether the event's own row is here."""
        return offset in self.rows.get(session_id, ())

    def apply(self, event: Event | BadRecord, offset: int, logged_ms: int) -> Effects:
        """What follows from an event that has no row yet."""
        if offset < self.floor or isinstance(event, Purge):
            return NOTHING
        session_id = event.session_id or ""
        marker = self.markers.get(session_id)
        if marker is not None and offset <= marker.closed_at:
            return NOTHING
        state = self.live(session_id)
        replayed = offset < self._newest.get(session_id, -1)
        if replayed:
            state = self._rebuilt(session_id, offset)
        before = state
        was_sealed = isinstance(state, OpenSession) and state.ended is not None
        state, effects = self._judge(state, event, offset, logged_ms)
        if effects.marker is not None:
            self._closing.add(session_id)
        elif not was_sealed and isinstance(state, OpenSession) and state.ended is not None:
            self.nearer_deadlines.add(session_id)
        if isinstance(before, OpenSession) and before is not state:
            before.tree.clear()
        if replayed:
            self._live.pop(session_id, None)
        else:
            self._remember(session_id, state)
        return effects

    def fail(self, session_id: str, failure: str) -> Effects:
        """What follows from a row that the log does not take: its session closes."""
        session = self.live(session_id)
        if not isinstance(session, OpenSession):
            return NOTHING
        effects = fail(session, self._newest[session_id], failure, self.rules)
        session.tree.clear()
        self._closing.add(session_id)
        self._live.pop(session_id, None)
        return effects

    def spent_rows(self, session_id: str) -> list[int]:
        """Rows at or below the close: the marker stands for them."""
        marker = self.markers.get(session_id)
        if marker is None:
            return []
        return [offset for offset in self.rows.get(session_id, ()) if offset <= marker.closed_at]

    def takes_purge(self, floor: int, at: int) -> bool:
        """Whether a purge at offset `at` raises the floor; if not, it changes nothing."""
        return self.floor < floor <= at and at >= self.floor and not self._blocks_purge(floor, at)

    def _blocks_purge(self, floor: int, at: int) -> bool:
        """Whether a session that was open at offset `at` needs a row below the floor."""
        first = self.first_open_row()
        if first is not None and first < floor:
            return True
        # Closed behind the purge: a replay must judge as the first time.
        return self._newest_close > at and any(
            marker.closed_at > at and marker.first < floor for marker in self.markers.values()
        )

    def take_purged(self) -> list[Key]:
        """Entries that the floor removes: markers whose close and late rewards lie below it.

        Only rows before the purge itself count: one behind it is of a session that began anew.
        A row below the floor without a marker is a zombie's: an open session holds a purge up.
        The caller removes them; a second call does not give them again.
        """
        if not self.floors:
            return []
        floor = self.floor
        at = min(offset for offset, value in self.floors.items() if value == floor)
        keys: list[Key] = [
            RowKey(offset, session_id)
            for session_id in self._open_rows.take_below(floor)
            for offset in self.rows[session_id]
            if offset < floor
        ]
        for session_id in self._closes.take_below(floor):
            marker = self.markers[session_id]
            late = [offset for offset in self.rows.get(session_id, ()) if offset < at]
            last = max([marker.closed_at, *late])
            if last < floor:
                keys += [RowKey(offset, session_id) for offset in late]
                keys.append(MarkerKey(session_id))
            else:
                self._closes.add(last, session_id)
        return keys + [FloorKey(offset) for offset, old in self.floors.items() if old < floor]

    def live(self, session_id: str) -> State:
        """The session as its rows tell it."""
        state = self._live.get(session_id)
        if state is None:
            state = self._rebuilt(session_id)
            self._remember(session_id, state)
        return state

    def sessions(self) -> Iterator[tuple[str, OpenSession]]:
        """The open sessions."""
        for session_id in list(self.rows):
            state = self.live(session_id)
            if isinstance(state, OpenSession):
                yield session_id, state

    def _close(self, session_id: str, marker: KeptMarker) -> None:
        self.markers[session_id] = marker
        self._closes.add(marker.closed_at, session_id)
        self._newest_close = max(self._newest_close, marker.closed_at)
        self._closing.discard(session_id)
        self.nearer_deadlines.discard(session_id)
        if session_id in self._first:
            self._late_rows.add(self._first[session_id], session_id)
        self._live.pop(session_id, None)

    def _set_first(self, session_id: str, offset: int) -> None:
        self._first[session_id] = offset
        rows = self._open_rows if self.is_open(session_id) else self._late_rows
        rows.add(offset, session_id)

    def _is_first_open_row(self, offset: float, session_id: str) -> bool:
        return self._first.get(session_id) == offset and self.is_open(session_id)

    def _remember(self, session_id: str, state: State) -> None:
        if state is None:
            return
        if session_id in self.markers:
            self._remember_late(session_id, state)
        self._live[session_id] = state

    def _remember_late(self, session_id: str, state: State) -> None:
        self._forget_late(session_id)
        late_bytes = state.late_bytes if isinstance(state, ClosedSession) else 0
        self._late[session_id] = len(self.markers[session_id].value) + late_bytes
        self._late_bytes += self._late[session_id]
        while self._late_bytes > _LATE_BYTES_MAX and len(self._late) > 1:
            oldest = next(iter(self._late))
            self._forget_late(oldest)
            self._live.pop(oldest, None)

    def _forget_late(self, session_id: str) -> None:
        self._late_bytes -= self._late.pop(session_id, 0)

    def _judge(
        self, state: State, event: Event | BadRecord, offset: int, logged_ms: int
    ) -> tuple[State, Effects]:
        if not isinstance(event, BadRecord):
            return apply(state, event, offset, self.rules, logged_ms)
        return state, refuse(state, event, offset)

    def _rebuilt(self, session_id: str, below: int | None = None) -> State:
        kept = sorted(self.rows.get(session_id, {}).items())
        if below is not None:
            kept = [(offset, row) for offset, row in kept if offset < below]
        if session_id not in self.markers:
            return restore(self._core_rows(session_id, kept), self.rules, session_id)
        marker = self.marker(session_id)
        state = ClosedSession.of(marker)
        for offset, row in kept:
            if offset > marker.closed_at and row.value is not None:
                event = self._event_of(row.value, session_id, offset)
                # Only late rewards are kept beside a marker.
                if isinstance(event, Reward):
                    read_back(state, event, offset)
        return state

    def _core_rows(self, session_id: str, kept: list[tuple[int, Row]]) -> Iterator[CoreRow]:
        for offset, row in kept:
            if row.value is None:
                yield CoreRow(offset, None, row.code, row.refused_turn)
            elif (event := self._event_of(row.value, session_id, offset)) is not None:
                yield CoreRow(offset, event)
            else:
                yield CoreRow(offset, None, "undecodable")

    def _event_of(self, value: bytes, session_id: str, offset: int) -> Event | None:
        """The event of a row; None if the bytes are no event of the session."""
        try:
            event = codec.from_msgpack(value)
        except BadRecord as error:
            self._report_unreadable(f"row {offset}", session_id, str(error))
            return None
        if isinstance(event, Event) and getattr(event, "session_id", None) == session_id:
            return event
        self._report_unreadable(f"row {offset}", session_id, "it holds no event of the session")
        return None

    def _report_unreadable(self, what: str, session_id: str, why: str) -> None:
        """Log the first entry that a foreign producer must have written over, and count all."""
        if not self._counts["unreadable_rows"]:
            sys.stderr.write(
                f"turnstream processor: {what} of session {session_id!r:.80} in the table cannot "
                f"be read and is left out: {why:.200}\n"
            )
        self._counts["unreadable_rows"] += 1
