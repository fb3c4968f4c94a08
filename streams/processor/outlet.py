"""Everything a worker writes, counted until it is acknowledged.

Writes leave in order; each gives a future that ends with the broker's acknowledgement. A write
that fails ends the worker: nothing is committed past it, and a fresh worker repeats it. A record
that is too large fails alone, with `TooLarge`: a fresh worker would fare no better with it.

Invariant: `tips[p]` is the last changelog offset that is surely ours, with no foreign write
before it; a partition whose tip is the changelog's end need not be read again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

from streams.errors import TooLarge
from streams.log.interface import Log, Outgoing, Position
from streams.log.partitioner import partition_of
from streams.settings import Settings

Acknowledged = asyncio.Future[None]
_SHARE_OF_SAMPLES = 4
"""Samples wait while more than this part of what may be in flight is; rows of others do not."""


class Outlet:
    """The worker's way out: sample topics and the table's changelog."""

    def __init__(
        self, settings: Settings, log: Log, counts: Counter[str], die: Callable[[str], NoReturn]
    ) -> None:
        """`die` ends the process; a failed write must never be survived."""
        self._settings = settings
        self._log = log
        self._counts = counts
        self._die = die
        self._in_flight_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._room_for_samples = asyncio.Event()
        self._room_for_samples.set()
        self._building = asyncio.Lock()
        self.tips: dict[int, int] = {}

    async def send(self, record: Outgoing) -> Acknowledged:
        """Send a record; its key decides the partition, unless it names one."""
        if record.partition is None and record.key is not None:
            place = partition_of(record.key, self._settings.partitions)
            record = replace(record, partition=place)
        return await self._send(record)

    async def send_built(self, records: Iterator[Outgoing]) -> list[Acknowledged]:
        """Send records that are built as they are gone through: one at a time, when there is room.

        Sessions that close together take turns, so that one with many samples neither fills the
        memory nor holds the others up.
        """
        sent: list[Acknowledged] = []
        while True:
            async with self._building:
                await self._room_for_samples.wait()
                record = next(records, None)
                if record is None:
                    return sent
                sent.append(await self.send(record))

    async def put(self, partition: int, key: bytes, value: bytes | None) -> Acknowledged:
        """Write one entry of the table; None removes it."""
        topic = self._settings.changelog_topic
        return await self._send(
            Outgoing(topic=topic, key=key, value=value, partition=partition), self._stored
        )

    async def room(self) -> None:
        """Wait until less is in flight than the settings allow."""
        await self._room.wait()

    async def _send(
        self, outgoing: Outgoing, stored: Callable[[Position], None] | None = None
    ) -> Acknowledged:
        size = len(outgoing.key or b"") + len(outgoing.value or b"")
        done: Acknowledged = asyncio.get_running_loop().create_future()
        self._count_in_flight(size)
        try:
            sent = await self._log.send(outgoing)
        except TooLarge as error:
            self._refused(size, done, error)
            return done

        def settle() -> None:
            try:
                position = sent.settled_position()
            except TooLarge as error:
                self._refused(size, done, error)
                return
            except Exception as error:  # any failure of a write ends the worker
                self._die(f"write to {outgoing}: {error!r}")
            self._count_in_flight(-size)
            if stored is not None:
                stored(position)
            done.set_result(None)

        sent.on_settled(settle)
        return done

    def _refused(self, size: int, done: Acknowledged, error: TooLarge) -> None:
        self._counts["records_too_large"] += 1
        self._count_in_flight(-size)
        done.set_exception(error)
        done.exception()  # seen, also where nobody waits for it

    def _count_in_flight(self, size: int) -> None:
        self._in_flight_bytes += size
        most = self._settings.processor_in_flight_bytes_max
        for room, limit in (
            (self._room, most),
            (self._room_for_samples, most // _SHARE_OF_SAMPLES),
        ):
            if self._in_flight_bytes > limit:
                room.clear()
            else:
                room.set()

    def _stored(self, position: Position) -> None:
        tip = self.tips.get(position.partition)
        if tip is None:
            return
        if position.offset == tip + 1:
            self.tips[position.partition] = position.offset
        else:
            self._counts["foreign_writes"] += 1
