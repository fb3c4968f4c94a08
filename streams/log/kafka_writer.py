"""The producer: idempotent, not transactional, all replicas, and replaced when it is spent.

Idempotence keeps order and drops repeats by numbering the batches of a partition. A batch that
is given up leaves a hole in the numbers, and every later batch of that partition is refused for
ever. So a producer that failed once is flushed, dropped and replaced before the next send.

    send ──► buffer ──► batch 7 ──► refused             producer spent
    send ──► buffer ──► batch 8 ──► out of order        fails too: order is kept
    send ──► new producer ──► batch 0 ──► position

It is not transactional because control records leave holes in the offsets, and readers of the
turns take a hole for a lost event.

Invariant: two producers of one writer never deliver to a partition at the same time.
"""

import asyncio
from collections.abc import Generator
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streams.errors import LogAway, LogError, TooLarge, WrongTopic
from streams.log.interface import Position
from streams.log.kafka_calls import answered, started, stopped, told
from streams.log.partitioner import partition_of
from streams.log.security import client_options
from streams.settings import FRAMING_BYTES, Settings


class Sent:
    """An entry on its way; awaiting it gives its position once it is durable."""

    def __init__(self, what: str, future: "asyncio.Future[Any]", settings: Settings) -> None:
        """The clock runs from here, not from the first await."""
        self._what = what
        self._future = future
        self._settings = settings
        self._deadline_s = asyncio.get_running_loop().time() + settings.publish_timeout_s

    def __await__(self) -> Generator[Any, None, Position]:
        """Wait for the acknowledgement, bounded."""
        return self._position().__await__()

    async def _position(self) -> Position:
        try:
            async with asyncio.timeout_at(self._deadline_s):
                # Shielded: giving up the wait does not take the entry back, and a second
                # await may still learn its position.
                stored = await asyncio.shield(self._future)
        except TimeoutError:
            detail = (
                f"{self._what}: not acknowledged by {self._settings.bootstrap_servers} in "
                f"{self._settings.publish_timeout_s:g} s; it may still be stored"
            )
            raise LogAway(detail) from None
        except KafkaError as error:
            raise LogError(f"{self._what}: {told(error)}") from error
        if stored.offset < 0:
            raise LogError(f"{self._what}: stored, but the broker no longer knows where")
        return Position(stored.topic, stored.partition, stored.offset)


class KafkaWriter:
    """Sends entries; started at the first of them."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is connected yet."""
        self._settings = settings
        self._producer: Any = None
        self._spent = False
        self._changing = asyncio.Lock()
        self._counts: dict[str, int] = {}

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None,
        session_id: str | None,
        turn_id: str | None,
    ) -> Sent:
        """Put the entry into the buffer, in order; refuse it if it can never fit."""
        size, limit = len(key or b"") + len(value or b""), self.limit_bytes(topic)
        if size > limit:
            raise TooLarge(size, limit, session_id=session_id, turn_id=turn_id)
        what = f"publish to {topic}{_about(session_id, turn_id)}"

        async def hand_over() -> "asyncio.Future[Any]":
            producer = await self._ready(what)
            count = await self._count(producer, topic)
            place = partition if partition is not None else _place(key, count)
            if not 0 <= place < count:
                raise WrongTopic(f"{what}: partition {place} of {count}")
            future: asyncio.Future[Any] = await producer.send(topic, value, key, place)
            future.add_done_callback(lambda done: self._settled(producer, done))
            return future

        future = await answered(what, hand_over, self._settings, self._settings.publish_timeout_s)
        return Sent(what, future, self._settings)

    def limit_bytes(self, topic: str) -> int:
        """Events have the user's limit; what holds a whole event has room for it."""
        if topic == self._settings.turns_topic:
            return self._settings.message_bytes_max
        return self._settings.record_bytes_max

    async def close(self) -> None:
        """Flush, bounded, and let go."""
        async with self._changing:
            producer, self._producer = self._producer, None
            if producer is not None:
                await stopped(producer, self._settings.publish_timeout_s)

    async def _ready(self, what: str) -> Any:
        if self._producer is not None and not self._spent:
            return self._producer
        async with self._changing:
            if self._producer is not None and self._spent:
                spent, self._producer = self._producer, None
                await stopped(spent, self._settings.request_timeout_s)
            if self._producer is None:
                producer = self._new_producer()
                await started(what, producer, self._settings)
                self._producer, self._spent = producer, False
            return self._producer

    def _new_producer(self) -> Any:
        compression = self._settings.compression
        return AIOKafkaProducer(
            **client_options(self._settings),
            acks="all",
            enable_idempotence=True,
            compression_type=None if compression == "none" else compression,
            max_batch_size=self._settings.producer_batch_bytes,
            max_request_size=self._settings.record_bytes_max + FRAMING_BYTES,
            linger_ms=self._settings.producer_linger_ms,
        )

    async def _count(self, producer: Any, topic: str) -> int:
        count = len(await producer.partitions_for(topic))
        known = self._counts.setdefault(topic, count)
        if count != known:
            detail = f"{topic} had {known} partitions and now has {count}: its keys have moved"
            raise WrongTopic(detail)
        return count

    def _settled(self, producer: Any, future: "asyncio.Future[Any]") -> None:
        # Asking for the exception also marks it as seen, for callers that never look.
        if not future.cancelled() and future.exception() is not None:
            self._spent = self._spent or producer is self._producer


def _place(key: bytes | None, count: int) -> int:
    if key is None:
        raise ValueError("an entry without a key needs an explicit partition")
    return partition_of(key, count)


def _about(session_id: str | None, turn_id: str | None) -> str:
    named = [f"session {session_id}"] if session_id else []
    named += [f"turn {turn_id}"] if turn_id else []
    return ", " + ", ".join(named) if named else ""
