"""Everything a worker writes, counted until it is acknowledged.

Writes leave in order; each gives a future that ends with the broker's acknowledgement. A write
that fails ends the worker: nothing is committed past it, and a fresh worker repeats it.

Invariant: `tips[p]` is the last changelog offset that is surely ours, with no foreign write
before it; a partition whose tip is the changelog's end need not be read again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from streams.log.interface import Log, Outgoing, Position
from streams.log.partitioner import partition_of
from streams.settings import Settings

Acknowledged = asyncio.Future[None]


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
        self.tips: dict[int, int] = {}

    async def send(self, record: Outgoing) -> Acknowledged:
        """Send a record; its key decides the partition, unless it names one."""
        if record.partition is None and record.key is not None:
            place = partition_of(record.key, self._settings.partitions)
            record = replace(record, partition=place)
        return await self._send(record)

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
        self._in_flight_bytes += size
        if self._in_flight_bytes > self._settings.processor_in_flight_bytes_max:
            self._room.clear()
        sent = await self._log.send(outgoing)
        done: Acknowledged = asyncio.get_running_loop().create_future()

        def settle() -> None:
            try:
                position = sent.settled_position()
            except Exception as error:  # any failure of a write ends the worker
                self._die(f"write to {outgoing}: {error!r}")
            self._in_flight_bytes -= size
            if self._in_flight_bytes <= self._settings.processor_in_flight_bytes_max:
                self._room.set()
            if stored is not None:
                stored(position)
            done.set_result(None)

        sent.on_settled(settle)
        return done

    def _stored(self, position: Position) -> None:
        tip = self.tips.get(position.partition)
        if tip is None:
            return
        if position.offset == tip + 1:
            self.tips[position.partition] = position.offset
        else:
            self._counts["foreign_writes"] += 1
