"""Writes of sessions that are not acknowledged yet.

A session's close waits for all of them; an event that comes again waits for its own.

Invariant: a partition that is forgotten leaves no write behind that a later close would wait
for, acknowledged or not.
"""

from streams.processor.arrivals import Arrived, Session
from streams.processor.outlet import Acknowledged

Place = tuple[int, str, int]
"""Partition, session id and offset."""


class UnderWay:
    """What is on its way, by session and by event."""

    def __init__(self) -> None:
        """Nothing is."""
        self._of_session: dict[Session, set[Acknowledged]] = {}
        self._of_event: dict[Place, Acknowledged] = {}

    def add(self, arrived: Arrived, write: Acknowledged) -> None:
        """Remember the write that makes an event durable, until it is acknowledged."""
        session = arrived.session
        place = (*session, arrived.offset)
        self._of_session.setdefault(session, set()).add(write)
        self._of_event[place] = write
        write.add_done_callback(lambda done: self._done(session, place, done))

    def of_session(self, session: Session) -> list[Acknowledged]:
        """Everything of a session that is not durable yet."""
        return list(self._of_session.get(session, ()))

    def of_event(self, arrived: Arrived) -> Acknowledged | None:
        """The write of this very event, if it came before."""
        return self._of_event.get((*arrived.session, arrived.offset))

    def forget(self, partition: int) -> None:
        """The partition is another worker's now, or is read again from its last commit."""
        self._of_session = {s: w for s, w in self._of_session.items() if s[0] != partition}
        self._of_event = {p: w for p, w in self._of_event.items() if p[0] != partition}

    def _done(self, session: Session, place: Place, write: Acknowledged) -> None:
        if self._of_event.get(place) is write:
            del self._of_event[place]
        writes = self._of_session.get(session, set())
        writes.discard(write)
        if not writes:
            self._of_session.pop(session, None)
