"""Many sessions over one ordered log: each event finds its session; purges clear old ones.

Invariant: after a purge nothing below its floor is processed or kept, and no open session ever
loses a row to one.
"""

from collections.abc import Iterator

from schemas.bad_record import BadRecord
from schemas.events import Event, Purge
from streams.core.effects import NOTHING, Effects
from streams.core.policy import PROFILES, Policy
from streams.core.session import apply, finish, refuse
from streams.core.state import ClosedSession, OpenSession, Rules
from streams.errors import BadEvent


class Partition:
    """The sessions of one partition, or of one file."""

    def __init__(
        self,
        *,
        forced_policy: Policy | None = None,
        default_policy: Policy = PROFILES["seed"],
        default_reward: float | None = None,
        rules: Rules | None = None,
    ) -> None:
        """Rules are given whole, or by their most used parts."""
        self.rules = rules or Rules(
            forced_policy=forced_policy,
            default_policy=default_policy,
            default_reward=default_reward,
        )
        self.sessions: dict[str, OpenSession | ClosedSession] = {}
        self.floor = 0

    def feed(self, event: Event, position: int, logged_ms: int | None = None) -> Effects:
        """Apply one event at its position in the log."""
        if position < self.floor:
            return NOTHING
        if isinstance(event, Purge):
            return self._purge(event, position)
        session_id = event.session_id
        state = self.sessions.get(session_id)
        state, effects = apply(state, event, position, self.rules, logged_ms)
        if state is not None:
            self.sessions[session_id] = state
        return effects

    def refuse(self, error: BadRecord, position: int) -> Effects:
        """Count an event that could not even be read, if its session is known and open."""
        return refuse(self.sessions.get(error.session_id or ""), error, position)

    def finish(self) -> Iterator[Effects]:
        """Close what is still open, in the order the sessions began."""
        for session_id, state in self.sessions.items():
            if isinstance(state, OpenSession):
                effects = finish(state, self.rules)
                assert effects.marker is not None, "finishing closes"
                marker = effects.marker
                self.sessions[session_id] = ClosedSession.of(marker)
                yield effects

    def _purge(self, event: Purge, position: int) -> Effects:
        floor = event.floor
        refused = refused_purge(event, position)
        if refused.refusals:
            return refused
        if any(_needed(state, floor, position) for state in self.sessions.values()):
            return Effects(ignored=True)
        self.floor = max(self.floor, floor)
        self.sessions = {
            session_id: state
            for session_id, state in self.sessions.items()
            if isinstance(state, OpenSession) or state.newest >= floor
        }
        return NOTHING


def refused_purge(purge: Purge, position: int) -> Effects:
    """A floor above the purge itself would swallow whatever comes next."""
    if purge.floor <= position:
        return NOTHING
    detail = f"`floor` {purge.floor} is above the purge's own position {position}"
    return Effects(refusals=(BadEvent("invalid_field", detail),))


def _needed(state: OpenSession | ClosedSession, floor: int, position: int) -> bool:
    """Whether the session was open at the purge and had a row below its floor."""
    if isinstance(state, OpenSession):
        return state.first < floor
    # Closed behind the purge: a replay must judge as the first time.
    return state.marker.closed_at > position and state.marker.first < floor
