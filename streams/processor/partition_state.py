"""What one partition holds, and what follows from one more event of its log.

Rows are the truth; a session's live tree is a cache that rows can rebuild. Events come in log
order, but after a crash the log is read again from the last commit, and of the rows written
before the crash any may be missing. So an event that comes again is judged by what was known
*before* it:

    its row is there             nothing to do, once that row is acknowledged
    newer rows are there, not it  judge it against the rows below it, then rebuild

Invariant: what an event leads to depends on the log below it and on nothing else.
"""

from collections.abc import Iterator

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import Event, Purge, Reward
from streams.core.effects import NOTHING, Effects
from streams.core.session import Row as CoreRow
from streams.core.session import apply, count, restore
from streams.core.state import ClosedSession, Marker, OpenSession, Rules, State
from streams.errors import BadEvent
from streams.processor.rows import (
    FloorKey,
    KeptMarker,
    Key,
    MarkerKey,
    Row,
    RowKey,
    kept_marker,
    read_key,
    read_marker,
    read_row,
    write_marker,
)


class PartitionState:
    """Rows, markers and live sessions of one partition."""

    def __init__(self, rules: Rules) -> None:
        """Empty, as before the first event."""
        self.rules = rules
        self.rows: dict[str, dict[int, Row]] = {}
        self.markers: dict[str, KeptMarker] = {}
        self.floors: dict[int, int] = {}
        self.floor = 0
        self._live: dict[str, State] = {}
        self._late: str | None = None
        """The one closed session that stays in `_live`: late rewards often come together."""
        self._newest: dict[str, int] = {}
        """The newest row of each session; an event below it comes again."""

    def load(self, key: bytes, value: bytes | None, written_ms: int = 0) -> None:
        """Take over one entry of the changelog, or its removal."""
        match read_key(key):
            case RowKey(offset, session_id):
                if value is None:
                    self.forget_row(session_id, offset)
                else:
                    self.keep(session_id, offset, read_row(value))
                    self._live.pop(session_id, None)
            case MarkerKey(session_id):
                if value is None:
                    self.forget_marker(session_id)
                else:
                    self._close(*kept_marker(value, written_ms))
            case FloorKey(offset):
                if value is not None:
                    self.raise_floor(offset, int.from_bytes(value))
                else:
                    self.floors.pop(offset, None)

    def keep(self, session_id: str, offset: int, row: Row) -> None:
        """Keep the row of an event that was just applied."""
        self.rows.setdefault(session_id, {})[offset] = row
        self._newest[session_id] = max(offset, self._newest.get(session_id, offset))

    def close(self, marker: Marker, closed_ms: int) -> None:
        """The session has given its outcome; its earlier rows may go."""
        # A copy is as long as it must be; what the encoder gives has room left at its end.
        value = bytes(memoryview(write_marker(marker)))
        kept = KeptMarker(marker.first, marker.closed_at, closed_ms, value)
        self._close(marker.session_id, kept)

    def marker(self, session_id: str) -> Marker:
        """What is remembered of a closed session."""
        return read_marker(self.markers[session_id].value)

    def forget_row(self, session_id: str, offset: int) -> None:
        """A row is no longer needed."""
        kept = self.rows.get(session_id, {})
        kept.pop(offset, None)
        if not kept:
            self.rows.pop(session_id, None)
            self._newest.pop(session_id, None)
        self._live.pop(session_id, None)

    def forget_marker(self, session_id: str) -> None:
        """A closed session is no longer remembered."""
        self.markers.pop(session_id, None)
        self._live.pop(session_id, None)

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
        state, effects = self._judge(state, event, offset, logged_ms)
        if isinstance(before, OpenSession) and before is not state:
            before.tree.clear()
        if replayed:
            self._live.pop(session_id, None)
        else:
            self._remember(session_id, state)
        return effects

    def spent_rows(self, session_id: str) -> list[int]:
        """Rows at or below the close: the marker stands for them."""
        marker = self.markers.get(session_id)
        if marker is None:
            return []
        return [offset for offset in self.rows.get(session_id, ()) if offset <= marker.closed_at]

    def blocks_purge(self, floor: int, at: int) -> bool:
        """Whether a session that is open at offset `at` needs a row below the floor."""
        return any(
            min(kept) < floor
            for session_id, kept in self.rows.items()
            if session_id not in self.markers
        ) or any(
            # Closed behind the purge: a replay must judge as the first time.
            marker.closed_at > at and marker.first < floor
            for marker in self.markers.values()
        )

    def purged(self) -> list[Key]:
        """Entries that the floor removes: markers whose close and late rewards lie below it.

        Only rows before the purge itself count: one behind it is of a session that began anew.
        A row below the floor without a marker is a zombie's: an open session holds a purge up.
        """
        if not self.floors:
            return []
        floor = self.floor
        at = min(offset for offset, value in self.floors.items() if value == floor)
        keys: list[Key] = [
            RowKey(offset, session_id)
            for session_id, rows in self.rows.items()
            if session_id not in self.markers
            for offset in rows
            if offset < floor
        ]
        for session_id, marker in self.markers.items():
            if marker.closed_at > at:
                continue
            late = [offset for offset in self.rows.get(session_id, ()) if offset < at]
            if max([marker.closed_at, *late]) < floor:
                keys += [RowKey(offset, session_id) for offset in late]
                keys.append(MarkerKey(session_id))
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
        self._live.pop(session_id, None)

    def _remember(self, session_id: str, state: State) -> None:
        if state is None:
            return
        if session_id in self.markers:
            if self._late is not None and self._late != session_id:
                self._live.pop(self._late, None)
            self._late = session_id
        self._live[session_id] = state

    def _judge(
        self, state: State, event: Event | BadRecord, offset: int, logged_ms: int
    ) -> tuple[State, Effects]:
        if not isinstance(event, BadRecord):
            return apply(state, event, offset, self.rules, logged_ms)
        refusal = BadEvent(
            event.code, event.detail, session_id=event.session_id, turn_id=event.turn_id
        )
        if not isinstance(state, OpenSession):
            return state, Effects(refusals=(refusal,))
        count(state, event.code, offset)
        return state, Effects(row=event.code, refusals=(refusal,))

    def _rebuilt(self, session_id: str, below: int | None = None) -> State:
        kept = sorted(self.rows.get(session_id, {}).items())
        if below is not None:
            kept = [(offset, row) for offset, row in kept if offset < below]
        if session_id not in self.markers:
            return restore(self._core_rows(kept), self.rules)
        marker = self.marker(session_id)
        state: State = ClosedSession.of(marker)
        for offset, row in kept:
            if offset > marker.closed_at and row.value is not None:
                event = codec.from_msgpack(row.value)
                assert isinstance(event, Reward), "only late rewards are kept beside a marker"
                state, _ = apply(state, event, offset, self.rules)
        return state

    @staticmethod
    def _core_rows(kept: list[tuple[int, Row]]) -> Iterator[CoreRow]:
        for offset, row in kept:
            event = codec.from_msgpack(row.value) if row.value is not None else None
            yield CoreRow(offset, event, row.code)  # type: ignore[arg-type]  # rows hold events
