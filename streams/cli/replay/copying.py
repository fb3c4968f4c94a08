"""Events into a log, each session in order.

Positions change on the way, so what names one is rewritten: `last_offset` of an expiry to where
its session's newest event stands now. `prev` is dropped, since it is only a shortcut, and so is
`purge`, which speaks of the old log.

Invariant: an event counts as published once it is durable; one that is refused, by us or later by
the broker, costs itself alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import click
import msgspec

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import Event, Purge, SessionExpired, Turn
from streams.cli.progress import Progress, counted
from streams.cli.replay.in_flight import InFlight
from streams.cli.replay.source import Arrived, Source
from streams.errors import TooLarge
from streams.log.blobs import blobs_from
from streams.log.interface import Log, Outgoing, Position, Sending
from streams.log.keys import event_key
from streams.log.opening import open_log
from streams.settings import Settings

NOWHERE = -1


@dataclass(slots=True)
class _Newest:
    """A session's newest event."""

    position: int
    """Where it stood."""
    stands: int = NOWHERE
    """The newest that is durable, where it stands now."""
    on_its_way: list[Sending] = field(default_factory=list)
    """Newer ones, in order; each of them the broker may still refuse."""

    async def moved(self) -> int:
        """Where the newest stands, of those that the log takes."""
        for sending in tuple(reversed(self.on_its_way)):
            try:
                return (await sending).offset
            except TooLarge:
                continue  # counted where it is waited for in its turn
        return self.stands


async def copy_events(source: Source, settings: Settings) -> int:
    """Publish all that the source has to the turns; the exit code."""
    async with open_log(settings, create=True) as log:
        copying = Copying(settings, log)
        try:
            await source.each("replay", copying.take)
            await copying.finish()
        finally:
            click.echo(copying.summary())
    return 1 if copying.refused else 0


class Copying:
    """What was published so far, and what is on its way."""

    def __init__(self, settings: Settings, log: Log) -> None:
        """Nothing is published yet."""
        self._settings = settings
        self._blobs = blobs_from(settings)
        self._in_flight = InFlight(log, self._settled, self._refused_later)
        self._newest: dict[str, _Newest] = {}
        """By session."""
        self._say: Callable[[str], None] = lambda _: None
        self._published = 0
        self._sessions: set[str] = set()
        """Those of which something was published."""
        self._left_out = 0
        self.refused = 0

    async def take(self, arrived: Arrived, progress: Progress) -> None:
        """Send one event, or say why not; waits while too much is on its way."""
        event, self._say = arrived.event, progress.say
        if isinstance(event, Purge):
            self._left_out += 1
            return
        if isinstance(event, BadRecord):
            self._refuse(arrived, event)
            return
        moved = await self._moved(event)
        outgoing = Outgoing(
            topic=self._settings.turns_topic,
            key=event_key(event.session_id),
            value=codec.to_msgpack(moved),
            session_id=event.session_id,
            turn_id=getattr(event, "turn_id", None),
        )
        try:
            sending = await self._in_flight.send(outgoing, arrived.place)
        except TooLarge as error:
            self._refuse(arrived, error)
            return
        if not isinstance(event, SessionExpired):  # one that was ignored is no session's newest
            newest = self._newest.setdefault(event.session_id, _Newest(arrived.position))
            newest.position = arrived.position
            newest.on_its_way.append(sending)

    async def finish(self) -> None:
        """Wait until everything is durable."""
        await self._in_flight.finish()

    def summary(self) -> str:
        """What became of the events."""
        text = (
            f"published {counted(self._published, 'event')} of "
            f"{counted(len(self._sessions), 'session')} to "
            f"{self._settings.turns_topic}, refused {self.refused}"
        )
        return text + (f", left out {self._left_out} purge" if self._left_out else "")

    async def _moved(self, event: Event) -> Event:
        """The event as it has to read in the new log."""
        if isinstance(event, SessionExpired):
            newest = self._newest.get(event.session_id)
            # An expiry that named another event than the newest was ignored, and stays so.
            named = newest is not None and event.last_offset == newest.position
            moved = await newest.moved() if newest is not None and named else NOWHERE
            return msgspec.structs.replace(event, last_offset=moved)
        if isinstance(event, Turn):
            event = msgspec.structs.replace(event, prev=None)
            return event if self._blobs is None else await self._blobs.put_aside(event)
        return event

    def _settled(self, outgoing: Outgoing, sending: Sending, stands: Position) -> None:
        self._published += 1
        session_id = outgoing.session_id or ""
        self._sessions.add(session_id)
        newest = self._newest.get(session_id)
        if newest is not None and sending in newest.on_its_way:
            # The number alone: what is on its way holds the whole event.
            newest.stands = stands.offset
            newest.on_its_way.remove(sending)

    def _refused_later(
        self, place: str, outgoing: Outgoing, sending: Sending, error: TooLarge
    ) -> None:
        """By the broker; others of the session may be on their way behind it."""
        self.refused += 1
        newest = self._newest.get(outgoing.session_id or "")
        if newest is not None and sending in newest.on_its_way:
            newest.on_its_way.remove(sending)
        self._say(f"{place}: {error}")

    def _refuse(self, arrived: Arrived, error: BadRecord) -> None:
        self.refused += 1
        session_id = error.session_id or ""
        if session_id in self._newest:
            # It counted in the old log, and an expiry there may name it. Here the one before it
            # is the newest.
            self._newest[session_id].position = arrived.position
        self._say(f"{arrived.place}: {error}")
