"""Which sessions have been silent too long, and which closed ones can be forgotten.

The sweep only *asks*: it publishes `session_expired` and `purge` like any producer, and what
they lead to follows from the log. So a stalled worker that wakes with an old view can do no
harm: an expiry names the newest offset it saw and is ignored if there is a newer one.

Invariant: time a session waited while its partition was behind does not count as idle.
"""

from collections.abc import Iterator
from typing import NamedTuple

from schemas.events import ExpiryCause, Purge, SessionExpired
from streams.core.state import OpenSession
from streams.processor.partition_state import PartitionState
from streams.settings import Settings


class Silence(NamedTuple):
    """What the clock says of one open session."""

    age_ms: float
    idle_ms: float
    sealed: bool
    """It ended and waits for its reward."""


def expiry_cause(silence: Silence, settings: Settings) -> ExpiryCause | None:
    """Why the session has to end, if so."""
    if silence.age_ms > settings.hard_limit_s * 1000:
        return "hard_limit"
    if silence.sealed and silence.idle_ms > settings.reward_grace_s * 1000:
        return "reward_grace"
    if not silence.sealed and silence.idle_ms > settings.idle_limit_s * 1000:
        return "idle"
    return None


def expired_sessions(
    state: PartitionState, now_ms: float, caught_up_ms: float, settings: Settings
) -> Iterator[SessionExpired]:
    """The expiries to publish; `caught_up_ms` is since when the partition has no backlog."""
    shortest_ms = min(settings.idle_limit_s, settings.reward_grace_s) * 1000
    for session_id, rows in list(state.rows.items()):
        if session_id in state.markers or not rows:
            continue
        newest, first = max(rows), min(rows)
        idle_ms = now_ms - max(rows[newest].logged_ms, caught_up_ms)
        age_ms = now_ms - rows[first].logged_ms
        if idle_ms <= shortest_ms and age_ms <= settings.hard_limit_s * 1000:
            continue
        session = state.live(session_id)
        if isinstance(session, OpenSession):
            silence = Silence(age_ms, idle_ms, sealed=session.ended is not None)
            if (cause := expiry_cause(silence, settings)) is not None:
                yield SessionExpired(session_id=session_id, cause=cause, last_offset=newest)


def due_purge(state: PartitionState, now_ms: float, settings: Settings) -> Purge | None:
    """The purge to publish: below everything that is open or closed too recently."""
    old_ms = now_ms - settings.marker_retention_s * 1000
    floors = [
        marker.closed_at + 1 for marker in state.markers.values() if marker.closed_ms < old_ms
    ]
    if not floors:
        return None
    open_rows = [
        min(rows) for session_id, rows in state.rows.items() if session_id not in state.markers
    ]
    floor = min([max(floors), *open_rows])
    return Purge(floor=floor) if floor > state.floor else None
