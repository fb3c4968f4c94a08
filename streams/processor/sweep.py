"""Which sessions have been silent too long, and which closed ones can be forgotten.

The sweep only *asks*: it publishes `session_expired` and `purge` like any producer, and what
they lead to follows from the log. So a stalled worker that wakes with an old view can do no
harm: an expiry names the newest offset it saw and is ignored if there is a newer one.

Each open session has a deadline in a heap, never later than it can expire; one that was reached
too early is computed again. So a sweep costs what is due, however many sessions are open.

Invariant: time a session waited while its partition was behind does not count as idle.
"""

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
) -> list[SessionExpired]:
    """The expiries to publish; `caught_up_ms`, since when there is no backlog, never goes back."""
    shortest_ms = min(settings.idle_limit_s, settings.reward_grace_s) * 1000
    hard_ms = settings.hard_limit_s * 1000
    if state.nearer_deadlines:
        times = [(state.row_times(session_id), session_id) for session_id in state.nearer_deadlines]
        state.deadlines.add_all(
            [
                (min(newest_ms + shortest_ms, first_ms + hard_ms), session_id)
                for (first_ms, newest_ms), session_id in times
            ]
        )
        state.nearer_deadlines.clear()
    expired: list[SessionExpired] = []
    for session_id in state.deadlines.take_below(now_ms):
        first_ms, newest_ms = state.row_times(session_id)
        quiet_since_ms = max(newest_ms, caught_up_ms)
        deadline_ms = min(quiet_since_ms + shortest_ms, first_ms + hard_ms)
        if deadline_ms < now_ms:
            session = state.live(session_id)
            if not isinstance(session, OpenSession):
                state.forget_rows(session_id)
                continue
            sealed = session.ended is not None
            silence = Silence(now_ms - first_ms, now_ms - quiet_since_ms, sealed)
            if (cause := expiry_cause(silence, settings)) is not None:
                last = state.newest_row(session_id)
                expired.append(SessionExpired(session_id=session_id, cause=cause, last_offset=last))
            limit_s = settings.reward_grace_s if sealed else settings.idle_limit_s
            deadline_ms = min(quiet_since_ms + limit_s * 1000, first_ms + hard_ms)
        state.deadlines.add(deadline_ms, session_id)
    return expired


def due_purge(state: PartitionState, now_ms: float, settings: Settings) -> Purge | None:
    """The purge to publish: below everything that is open or closed too recently."""
    old_ms = now_ms - settings.marker_retention_s * 1000
    first_open = state.first_open_row()
    if first_open is not None and first_open <= state.floor:
        return None
    floor = 0
    # Markers are in the order they were written, so those behind the first young one are young.
    for marker in state.markers.values():
        if marker.closed_ms >= old_ms or (first_open is not None and floor >= first_open):
            break
        floor = max(floor, marker.closed_at + 1)
    if first_open is not None:
        floor = min(floor, first_open)
    return Purge(floor=floor) if floor > state.floor else None
