"""The private parts of Faust that the processor leans on, each with its reason.

Faust gives the app, the agent, the table, co-partitioned assignment and rebalance signals. Its
commit, its offset tracking and its recovery lose events when there is backlog at a rebalance, so
those three are ours, and they need these hooks:

    what                              why, and what breaks without it
    Recovery.need_recovery            recovery is ours; Faust's re-reads kept partitions whole
    Consumer.on_buffer_full           a full buffer would put the fetcher to sleep for a second
    Consumer.wait_first               four tasks for each event, where there is room anyway: a
                                      third of a worker's time
    stream.channel.queue              a turn of the event loop for each event that is here already
    _create_worker_consumer           fetch wait is fixed at 1.5 s there: drained partitions
                                      hold back the others; and batches are decompressed however
                                      large they become
    consumer._commit                  commits what *we* know to be durable
    consumer._thread                  asks the broker itself for a committed offset; the cache
                                      may be empty when the first events arrive
    app._stop_consumer                drain and commit before the consumer goes away
    app._create_directories           a folder for tables on disk, which nobody would remove
    consumer cluster metadata         an assignment made without our topics is empty for ever
    aiokafka's _proc_fetch_request    without a broker a fetch waits to try again; to be cancelled
                                      then, it ends the consumer's stop too, and so the worker
    aiokafka's _handle_frame          when a broker last answered: the consumer keeps partitions
                                      and high watermarks of a broker that is gone

Invariant: nothing else in the project touches a private name of Faust; another version of Faust
is refused at the start, because these names mean something in this one only.
"""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import faust
from aiokafka import TopicPartition
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.fetcher import Fetcher
from faust.tables.recovery import Recovery
from faust.transport.consumer import Consumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP
from mode import Service

from streams.errors import TurnstreamError
from streams.log.bounded_batches import value_limit

FAUST_VERSION = "0.15.3"


class WrongFaust(TurnstreamError):
    """Another Faust than the one these hooks were made for."""


def install(fetch_wait_ms: int, value_bytes_max: int) -> None:
    """Put the hooks in place, once, before the app starts."""
    if faust.__version__ != FAUST_VERSION:
        raise WrongFaust(
            f"faust-streaming {faust.__version__}; the processor needs {FAUST_VERSION}"
        )
    Recovery.need_recovery = lambda self: False  # type: ignore[method-assign]
    Consumer.on_buffer_full = lambda self, tp: None  # type: ignore[method-assign]
    Consumer.wait_first = _wait_only_if_full  # type: ignore[method-assign]
    create = AIOKafkaConsumerThread._create_worker_consumer

    def create_within_limits(self: Any, transport: Any) -> Any:
        consumer = create(self, transport)
        consumer._fetch_max_wait_ms = fetch_wait_ms
        consumer._value_deserializer = value_limit(value_bytes_max)
        return consumer

    AIOKafkaConsumerThread._create_worker_consumer = create_within_limits  # type: ignore[method-assign]
    let_fetches_be_cancelled()
    note_answers()


_answered_s = [time.monotonic()]
"""When any broker last answered any client of this process; at first, when this began."""


def silent_s() -> float:
    """Seconds since a broker answered anything at all.

    Heartbeats and fetches of a worker that has nothing to do are answered several times a second.
    """
    return time.monotonic() - _answered_s[0]


def note_answers() -> None:
    """Have every answer noted that comes from now on."""
    handle = AIOKafkaConnection._handle_frame

    def handle_and_note(self: Any, frame: bytes) -> None:
        handle(self, frame)
        _answered_s[0] = time.monotonic()

    _answered_s[0] = time.monotonic()
    AIOKafkaConnection._handle_frame = handle_and_note


def let_fetches_be_cancelled() -> None:
    """A cancelled fetch has no result, also one that waits to try again."""
    fetch = Fetcher._proc_fetch_request

    async def fetch_or_leave(self: Any, *given: Any) -> bool:
        try:
            return bool(await fetch(self, *given))
        except asyncio.CancelledError:
            return False

    Fetcher._proc_fetch_request = fetch_or_leave


async def _wait_only_if_full(self: Any, *waits: Any, **limits: Any) -> Any:
    """Hand an event over at once if the stream has room and flows; else wait as Faust does."""
    match waits:
        case (handing_over, suspended) if _has_room(self.app):
            suspended.close()
            return await handing_over
        case _:
            return await Service.wait_first(self, *waits, **limits)


def _has_room(app: Any) -> bool:
    """Whether nothing in the hand-over can wait: a rebalance could then not interrupt it."""
    waits = not app.flow_control.is_active() or app.topics._tp_to_callback_lock.locked()
    return not waits and not any(topic.queue.full() for topic in app.topics)


def buffered(app: Any, stream: Any, most: int) -> Iterator[Any]:
    """Messages that are here already, as the stream itself would give them, at most so many."""
    queue = stream.channel.queue
    for _ in range(most):
        if queue.empty() or not app.flow_control.is_active():
            return
        message = queue.get_nowait().message
        if message.generation_id == app.consumer_generation_id:
            yield message


def without_folders(app: Any) -> None:
    """Make no folder for tables on disk: ours are in memory."""
    app._create_directories = lambda: None


async def committed_offset(app: Any, topic: str, partition: int) -> int:
    """What the group reads next, as the broker tells it; else the log's start."""
    thread = app.consumer._thread
    place = TopicPartition(topic, partition)
    offset = await thread.call_thread(thread._ensure_consumer().committed, place)
    if offset is not None:
        return int(offset)
    place = TP(topic, partition)
    return int((await app.consumer.earliest_offsets(place))[place])


async def commit(app: Any, topic: str, positions: Mapping[int, int]) -> bool:
    """Commit for the group; False if it was rebalanced meanwhile."""
    offsets = {TP(topic, partition): offset for partition, offset in positions.items()}
    return bool(await app.consumer._commit(offsets))


def partitions_known(app: Any, topic: str) -> int:
    """How many partitions of a topic the consumer's own metadata shows."""
    cluster = app.consumer._thread._ensure_consumer()._client.cluster
    return len(cluster.partitions_for_topic(topic) or ())


def before_consumer_stops(
    app: Any, finish: Callable[[], Awaitable[None]], leave_after_s: float, failed: int
) -> None:
    """Run `finish` while the consumer can still commit; then the process has so long to end."""
    stop = app._stop_consumer

    async def stop_after_finishing() -> None:
        # A client whose broker is away waits for it even to say goodbye. What was durable is
        # committed by `finish`, and the rest is done again by the next worker.
        code = failed if app.crashed else os.EX_OK
        leaving = threading.Timer(leave_after_s, os._exit, [code])
        leaving.daemon = True
        leaving.start()
        if app._consumer is not None:
            app._consumer.stop_flow()
            app.flow_control.suspend()
            await finish()
        await stop()

    app._stop_consumer = stop_after_finishing
