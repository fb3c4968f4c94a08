"""Where the records of a replay go: nowhere, to stdout, or into a topic of their own.

Invariant: a session's samples come before its outcome, wherever they go; a record that is too large
for the log costs itself alone, and is named.
"""

import sys
from collections.abc import Sequence
from typing import Protocol

import click

from schemas import codec
from schemas.record import Record
from streams.cli.replay.in_flight import InFlight
from streams.core.drawing import visible
from streams.errors import TooLarge
from streams.log.interface import Log, Outgoing, Position, Sending


class Target(Protocol):
    """Takes records."""

    refused: int
    """Records that could not be written; each was named on stderr."""

    async def emit(self, records: Sequence[Record], key: str) -> None:
        """Take what one event led to."""
        ...

    async def finish(self) -> str | None:
        """All of it is where it belongs; a line about it, if there is something to say."""
        ...


class Nowhere:
    """Only the table is wanted."""

    refused = 0

    async def emit(self, records: Sequence[Record], key: str) -> None:
        """Let it go."""

    async def finish(self) -> str | None:
        """Say how to keep them."""
        return "the samples were not kept: --stdout prints them, --name NAME writes them to a topic"


class Stdout:
    """JSON lines."""

    refused = 0

    async def emit(self, records: Sequence[Record], key: str) -> None:
        """One line each."""
        for record in records:
            sys.stdout.buffer.write(codec.to_json(record) + b"\n")

    async def finish(self) -> str | None:
        """Out with it."""
        sys.stdout.buffer.flush()
        return None


class Topic:
    """Entries of a topic."""

    def __init__(self, log: Log, topic: str) -> None:
        """The topic is there and empty."""
        self._topic = topic
        self._in_flight = InFlight(log, self._settled, self._refuse)
        self._written = 0
        self.refused = 0

    async def emit(self, records: Sequence[Record], key: str) -> None:
        """One entry each."""
        for record in records:
            session_id = getattr(record, "session_id", None)
            value = codec.to_msgpack(record)
            outgoing = Outgoing(
                topic=self._topic, key=key.encode(), value=value, session_id=session_id
            )
            name = getattr(record, "sample_id", None) or record.__struct_config__.tag
            place = f"{name} of {outgoing}"
            try:
                await self._in_flight.send(outgoing, place)
            except TooLarge as error:
                self._refuse(place, outgoing, None, error)

    async def finish(self) -> str | None:
        """Wait until all of it is durable."""
        await self._in_flight.finish()
        refused = f", refused {self.refused}" if self.refused else ""
        return f"wrote {self._written} records to {self._topic}{refused}"

    def _settled(self, _: Outgoing, __: Sending, ___: Position) -> None:
        self._written += 1

    def _refuse(self, place: str, _: Outgoing, __: Sending | None, error: TooLarge) -> None:
        self.refused += 1
        raised = "; raise TURNSTREAM_MESSAGE_BYTES_MAX" if error.limit_bytes is not None else ""
        click.echo(visible(f"{place}: {error}{raised}", most=None), err=True)
