"""`turnstream replay FILE`: events from a file into the log, each session in order.

Positions change on the way, so what names one is rewritten: `last_offset` of an expiry to where
its session's newest event stands now. `prev` is dropped, since it is only a shortcut, and so is
`purge`, which speaks of the old log.
"""

from collections import deque
from typing import BinaryIO

import click
import msgspec

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import Event, Purge, SessionExpired, Turn
from streams.cli.event_lines import EventLine, read_events
from streams.cli.on_the_log import run_on_the_log
from streams.errors import TooLarge
from streams.log.blobs import blobs_from
from streams.log.interface import Outgoing
from streams.log.kafka import KafkaLog
from streams.log.kafka_writer import Sent
from streams.log.keys import event_key
from streams.settings import Settings

IN_FLIGHT_MAX = 1000
NOWHERE = -1


@click.command()
@click.argument("file", type=click.File("rb"))
def replay(file: BinaryIO) -> None:
    """Publish the events of FILE (- for standard input) to the turns topic.

    FILE holds one event a line as JSON. Each session's events keep their order. A line that
    cannot be used is reported on stderr, the rest is still published, and the exit code is 1.
    Settings come from TURNSTREAM_* variables.
    """

    async def work(settings: Settings) -> int:
        async with KafkaLog(settings) as log:
            replaying = Replaying(settings, log)
            try:
                for line in read_events(file):
                    await replaying.take(line)
                await replaying.finish()
            finally:
                click.echo(replaying.summary())
        return 1 if replaying.refused else 0

    run_on_the_log(work)


class Replaying:
    """What was published so far, and what is on its way."""

    def __init__(self, settings: Settings, log: KafkaLog) -> None:
        """Nothing is published yet."""
        self._settings = settings
        self._log = log
        self._blobs = blobs_from(settings)
        self._in_flight: deque[Sent] = deque()
        self._newest: dict[str, tuple[int, Sent]] = {}
        self._published = 0
        self._left_out = 0
        self.refused = 0

    async def take(self, line: EventLine) -> None:
        """Send one line's event, or say why not; waits while too much is on its way."""
        event = line.event
        if isinstance(event, Purge):
            self._left_out += 1
            return
        if isinstance(event, BadRecord):
            self._refuse(line, event)
            return
        try:
            sent = await self._sent(await self._moved(event))
        except TooLarge as error:
            self._refuse(line, error)
            return
        self._newest[event.session_id] = (line.position, sent)
        self._in_flight.append(sent)
        while len(self._in_flight) > IN_FLIGHT_MAX:
            await self._acknowledged()

    async def finish(self) -> None:
        """Wait until everything is durable."""
        while self._in_flight:
            await self._acknowledged()

    def summary(self) -> str:
        """What became of the file."""
        text = (
            f"published {self._published} events of {len(self._newest)} sessions to "
            f"{self._settings.turns_topic}, refused {self.refused}"
        )
        return text + (f", left out {self._left_out} purge" if self._left_out else "")

    async def _sent(self, event: Event) -> Sent:
        assert not isinstance(event, Purge), "a purge is left out"
        return await self._log.send(
            Outgoing(
                topic=self._settings.turns_topic,
                key=event_key(event.session_id),
                value=codec.to_msgpack(event),
                session_id=event.session_id,
                turn_id=getattr(event, "turn_id", None),
            )
        )

    async def _moved(self, event: Event) -> Event:
        """The event as it has to read in the new log."""
        if isinstance(event, SessionExpired):
            position, sent = self._newest.get(event.session_id, (None, None))
            # An expiry that named another event than the newest was ignored, and stays so.
            named = event.last_offset is not None and event.last_offset == position
            moved = (await sent).offset if sent is not None and named else NOWHERE
            return msgspec.structs.replace(event, last_offset=moved)
        if isinstance(event, Turn):
            event = msgspec.structs.replace(event, prev=None)
            return event if self._blobs is None else await self._blobs.put_aside(event)
        return event

    async def _acknowledged(self) -> None:
        await self._in_flight[0]
        self._in_flight.popleft()
        self._published += 1

    def _refuse(self, line: EventLine, error: BadRecord) -> None:
        self.refused += 1
        click.echo(f"line {line.number}: {error}", err=True)
