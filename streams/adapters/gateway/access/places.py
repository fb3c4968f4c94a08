"""How many sessions are open at a time: one more is told to try again.

    opening ──► is there a place? ──► taken until the session is over
                     └ none: look whether somebody else ended one meanwhile; else 429

Whoever goes on with a session after a restart has a place, whatever the limit is: nothing that was
begun is refused here.

Invariant: of the sessions opened here no more are open than the limit says, however many ask at
the same moment.
"""

from streams.errors import TurnstreamError
from streams.settings import PREFIX


class NoPlace(TurnstreamError):
    """A new session that has to wait until another is over."""


class Places:
    """Who is open."""

    def __init__(self, limit: int | None) -> None:
        """Nobody is."""
        self._limit = limit
        self.taken: dict[str, None] = {}

    @property
    def full(self) -> bool:
        """Whether one more has to wait."""
        return self._limit is not None and len(self.taken) >= self._limit

    def take(self, session_id: str) -> None:
        """Have a place until `free`.

        Raises:
            NoPlace: there is none.
        """
        if self.full and session_id not in self.taken:
            raise NoPlace(
                f"{len(self.taken)} sessions are open, the limit is "
                f"{PREFIX}GATEWAY_SESSIONS_OPEN_MAX={self._limit}: end one, or try again"
            )
        self.hold(session_id)

    def hold(self, session_id: str) -> None:
        """It is open, whatever the limit is; without one nobody is counted."""
        if self._limit is not None:
            self.taken[session_id] = None

    def free(self, session_id: str) -> None:
        """It is over, or was never opened."""
        self.taken.pop(session_id, None)
