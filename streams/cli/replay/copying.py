"""Events into a log, each session in order.

Positions change on the way, so what names one is rewritten: `last_offset` of an expiry to where
its session's newest event stands now. `prev` is dropped, since it is only a shortcut, and so is
`purge`, which speaks of the old log.

Invariant: an event counts as published once it is durable.
"""

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
        self._in_flight = InFlight(log, self._settled)
        self._newest: dict[str, tuple[int, int | Sending]] = {}
        """By session, its newest event: where it stood, and where it stands or will."""
        self._published = 0
        self._sessions: set[str] = set()
        """Those of which something was published."""
        self._left_out = 0
        self.refused = 0

    async def take(self, arrived: Arrived, progress: Progress) -> None:
        """Send one event, or say why not; waits while too much is on its way."""
        event = arrived.event
        if isinstance(event, Purge):
            self._left_out += 1
            return
        if isinstance(event, BadRecord):
            self._refuse(arrived, event, progress)
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
            sending = await self._in_flight.send(outgoing)
        except TooLarge as error:
            self._refuse(arrived, error, progress)
            return
        if not isinstance(event, SessionExpired):  # one that was ignored is no session's newest
            self._newest[event.session_id] = (arrived.position, sending)

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
            position, newest = self._newest.get(event.session_id, (None, NOWHERE))
            # An expiry that named another event than the newest was ignored, and stays so.
            if event.last_offset is None or event.last_offset != position:
                newest = NOWHERE
            moved = newest if isinstance(newest, int) else (await newest).offset
            return msgspec.structs.replace(event, last_offset=moved)
        if isinstance(event, Turn):
            event = msgspec.structs.replace(event, prev=None)
            return event if self._blobs is None else await self._blobs.put_aside(event)
        return event

    def _settled(self, outgoing: Outgoing, sending: Sending, stands: Position) -> None:
        self._published += 1
        session_id = outgoing.session_id or ""
        self._sessions.add(session_id)
        position, newest = self._newest.get(session_id, (NOWHERE, NOWHERE))
        if newest is sending:
            # The number alone: what is on its way holds the whole event.
            self._newest[session_id] = (position, stands.offset)

    def _refuse(self, arrived: Arrived, error: BadRecord, progress: Progress) -> None:
        self.refused += 1
        session_id = error.session_id or ""
        if session_id in self._newest:
            # It counted in the old log, and an expiry there may name it. Here the one before it
            # is the newest.
            self._newest[session_id] = (arrived.position, self._newest[session_id][1])
        progress.say(f"{arrived.place}: {error}")
