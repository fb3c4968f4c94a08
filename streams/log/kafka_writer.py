"""The producer: idempotent, not transactional, all replicas, and replaced when it is spent.

Idempotence keeps order and drops repeats by numbering the batches of a partition. A batch that
is given up leaves a hole in the numbers, and every later batch of that partition is refused for
ever. So a producer that failed once is flushed, dropped and replaced before the next send.

    send ──► buffer ──► batch 7 ──► refused             producer spent
    send ──► buffer ──► batch 8 ──► out of order        fails too: order is kept
    send ──► new producer ──► batch 0 ──► position

A batch that the broker finds too large says nothing about its entries: all of them, and those that
failed behind it, are sent once more, one at a time. An entry that is too large alone fails alone.

It is not transactional because control records leave holes in the offsets, and readers of the
turns take a hole for a lost event.

Invariant: two producers of one writer never deliver to a partition at the same time.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    RecordListTooLargeError,
    UnknownTopicOrPartitionError,
)

from streams.errors import LogAway, LogError, TooLarge, WrongTopic
from streams.log.interface import Outgoing, Position
from streams.log.kafka_calls import Connected, answered, may_pass, told
from streams.log.partitioner import partition_of
from streams.log.security import client_options
from streams.log.sizes import check_size
from streams.settings import FRAMING_BYTES, Settings

_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class Sent:
    """An entry on its way; awaiting it gives its position once it is durable."""

    __slots__ = (
        *("_calls", "_deadline_s", "_failure", "_future", "_settings", "_settled"),
        *("alone", "outgoing", "partition"),
    )

    def __init__(self, outgoing: Outgoing, partition: int, settings: Settings) -> None:
        """The clock runs from here, not from the first await."""
        self.outgoing = outgoing
        self.partition = partition
        self.alone = False
        """Sent in a batch of its own, so whatever the broker says is about this entry."""
        self._settings = settings
        self._deadline_s = asyncio.get_running_loop().time() + settings.publish_timeout_s
        self._future: asyncio.Future[Any] | None = None
        self._failure: LogError | None = None
        self._settled: asyncio.Event | None = None
        self._calls: list[Callable[[], None]] = []

    def __await__(self) -> Generator[Any, None, Position]:
        """Wait for the acknowledgement, bounded."""
        return self._position().__await__()

    async def _position(self) -> Position:
        try:
            if not self._done:
                if self._settled is None:
                    self._settled = asyncio.Event()
                async with asyncio.timeout_at(self._deadline_s):
                    await self._settled.wait()
        except TimeoutError:
            servers, seconds = self._settings.bootstrap_servers, self._settings.publish_timeout_s
            detail = f"not acknowledged by {servers} in {seconds:g} s; it may still be stored"
            raise LogAway(f"publish to {self.outgoing}: {detail}") from None
        return self.settled_position()

    @property
    def _done(self) -> bool:
        return self._future is not None or self._failure is not None

    def settle(self, future: "asyncio.Future[Any] | None", failure: LogError | None = None) -> None:
        """What aiokafka said of it in the end, or why it was not asked again."""
        self._future, self._failure = future, failure
        if self._settled is not None:
            self._settled.set()
        for call in self._calls:
            call()
        self._calls.clear()

    def on_settled(self, call: Callable[[], None]) -> None:
        """Call back once it is durable or has failed."""
        if self._done:
            asyncio.get_running_loop().call_soon(call)
        else:
            self._calls.append(call)

    def settled_position(self) -> Position:
        """The position, once settled."""
        if self._failure is not None:
            raise self._failure
        assert self._future is not None, "it is settled"
        try:
            stored = self._future.result()
        except _TOO_LARGE:
            size = len(self.outgoing.key or b"") + len(self.outgoing.value or b"")
            where = (self.outgoing.session_id, self.outgoing.turn_id)
            raise TooLarge(size, None, session_id=where[0], turn_id=where[1]) from None
        except KafkaError as error:
            raise LogError(f"publish to {self.outgoing}: {told(error)}") from error
        if stored.offset < 0:
            detail = "stored, but the broker no longer knows where"
            raise LogError(f"publish to {self.outgoing}: {detail}")
        return Position(stored.topic, stored.partition, stored.offset)


class KafkaWriter:
    """Sends entries; started at the first of them."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is connected yet."""
        self._settings = settings
        self._connected = Connected(self._new_producer, settings)
        self._spent = False
        self._replacing = asyncio.Lock()
        self._again: deque[Sent] = deque()
        """Entries to be sent one at a time."""
        self._sending_again: asyncio.Task[None] | None = None
        self._refused_by: Any = None
        """The last producer with a batch that was too large."""
        self._counts: dict[str, int] = {}

    async def send(self, outgoing: Outgoing) -> Sent:
        """Put the entry into the buffer, in order; refuse it if it can never fit."""
        check_size(outgoing, self._settings)
        if self._sending_again is not None:
            await asyncio.wait([self._sending_again])  # or it would overtake these
        count = self._counts.get(outgoing.topic)
        if self._connected.now is not None and count is not None and not self._spent:
            # The usual case, without a timer of its own: aiokafka bounds the wait for room.
            with contextlib.suppress(KafkaError):  # asked again below, as long as is allowed
                return await self._handed_over(self._connected.now, outgoing, count)
        what, seconds = f"publish to {outgoing}", self._settings.publish_timeout_s
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + seconds
        producer = await self._ready(what)

        async def hand_over() -> Sent:
            count = await self._count(producer, outgoing.topic)
            return await self._handed_over(producer, outgoing, count)

        until_s = max(clock() + 0.1, deadline_s)
        return await answered(what, hand_over, self._settings, seconds, until_s)

    async def close(self) -> None:
        """Flush, bounded, and let go."""
        await self._connected.close(self._settings.publish_timeout_s)
        if self._sending_again is not None:
            await asyncio.wait([self._sending_again], timeout=self._settings.publish_timeout_s)
            await self._connected.close(self._settings.request_timeout_s)

    async def _handed_over(self, producer: Any, outgoing: Outgoing, count: int) -> Sent:
        place = _place(outgoing, count)
        try:
            future = await producer.send(outgoing.topic, outgoing.value, outgoing.key, place)
        except KafkaError as error:
            self._spent = self._spent or not may_pass(error)
            raise
        sent = Sent(outgoing, place, self._settings)
        future.add_done_callback(lambda done: self._settled(producer, sent, done))
        return sent

    async def _ready(self, what: str) -> Any:
        """A producer that is not spent."""
        if self._spent:
            async with self._replacing:
                if self._spent:
                    await self._connected.close(self._settings.request_timeout_s)
                    self._spent = False
        return await self._connected.client(what, self._settings.publish_timeout_s)

    def _new_producer(self) -> Any:
        compression = self._settings.compression
        producer = AIOKafkaProducer(
            **client_options(self._settings),
            acks="all",
            enable_idempotence=True,
            compression_type=None if compression == "none" else compression,
            max_batch_size=self._settings.producer_batch_bytes,
            max_request_size=self._settings.record_bytes_max + FRAMING_BYTES,
            linger_ms=self._settings.producer_linger_ms,
        )
        # aiokafka gives a waiting batch up after one request's time; ours is the time that a
        # publish may take, which covers a broker that is away.
        producer._message_accumulator._batch_ttl = self._settings.publish_timeout_s
        return producer

    async def _count(self, producer: Any, topic: str) -> int:
        try:
            count = len(await producer.partitions_for(topic))
        except UnknownTopicOrPartitionError:
            # aiokafka says so too when no broker answers at all.
            if not await producer.client.force_metadata_update():
                raise KafkaConnectionError(f"no broker answers for {topic}") from None
            raise
        # A topic that the broker made by itself has some count of its own; a count that
        # changed has moved every key. Either would tear sessions apart.
        planned = self._settings.partitions if topic == self._settings.turns_topic else count
        wanted = self._counts.get(topic, planned)
        if count != wanted:
            raise WrongTopic(f"{topic} has {count} partitions instead of {wanted}")
        self._counts[topic] = count
        return count

    def _settled(self, producer: Any, sent: Sent, future: "asyncio.Future[Any]") -> None:
        # Asking for the exception also marks it as seen, for callers that never look.
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._spent = self._spent or producer is self._connected.now
            if not sent.alone and self._may_fit_alone(producer, error):
                self._again.append(sent)
                if self._sending_again is None:
                    self._sending_again = asyncio.create_task(self._send_again())
                return
        sent.settle(future)

    def _may_fit_alone(self, producer: Any, error: BaseException) -> bool:
        if isinstance(error, _TOO_LARGE):
            self._refused_by = producer
            return True
        return producer is self._refused_by and isinstance(error, OutOfOrderSequenceNumber)

    async def _send_again(self) -> None:
        while self._again:
            sent = self._again.popleft()
            sent.alone, outgoing = True, sent.outgoing
            try:
                producer = await self._ready(f"publish to {outgoing}")
                future = await producer.send(
                    outgoing.topic, outgoing.value, outgoing.key, sent.partition
                )
            except LogError as error:
                sent.settle(None, error)
                continue
            except KafkaError as error:
                sent.settle(None, LogError(f"publish to {outgoing}: {told(error)}"))
                continue
            await asyncio.wait([future], timeout=self._settings.publish_timeout_s)
            if future.done():
                self._settled(producer, sent, future)
            else:
                seconds = self._settings.publish_timeout_s
                detail = f"not acknowledged in {seconds:g} s; it may still be stored"
                sent.settle(None, LogAway(f"publish to {outgoing}: {detail}"))
        self._sending_again = None


def _place(outgoing: Outgoing, count: int) -> int:
    if outgoing.partition is None:
        if outgoing.key is None:
            raise ValueError("an entry without a key needs an explicit partition")
        return partition_of(outgoing.key, count)
    if not 0 <= outgoing.partition < count:
        raise WrongTopic(f"{outgoing.topic} has no partition {outgoing.partition}, but {count}")
    return outgoing.partition
