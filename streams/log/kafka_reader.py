"""A reader of one topic, outside of any group: it decides itself where it starts.

Invariant: no entry between the start and `positions` is skipped unseen. Where aiokafka would go
on silently (a position that retention took, a batch larger than a fetch) the reader raises. What
is too large once it is decompressed comes as one entry that holds nothing (`bounded_batches`).
"""

import time
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from streams.errors import LogError, NoSuchPosition
from streams.log.bounded_batches import value_limit
from streams.log.interface import Entry, Position
from streams.log.kafka_calls import answered, started, stopped, told
from streams.log.security import client_options
from streams.settings import FRAMING_BYTES, Settings


class KafkaReader:
    """Reads the partitions it was given; made by `open_reader`."""

    def __init__(
        self, consumer: Any, settings: Settings, topic: str, positions: Mapping[int, int]
    ) -> None:
        """The consumer is started and stands at the positions."""
        self._consumer = consumer
        self._settings = settings
        self._topic = topic
        self._positions = dict(positions)
        self._places = [TopicPartition(topic, partition) for partition in positions]
        self._heard_s = time.monotonic()

    @property
    def positions(self) -> dict[int, int]:
        """What comes next, by partition."""
        return dict(self._positions)

    @property
    def silent_s(self) -> float:
        """Seconds since the broker answered a fetch or the last entry was handed out."""
        polls_ms = [self._consumer.last_poll_timestamp(place) for place in self._places]
        # aiokafka notes the wall clock; the time since then is all that is used of it.
        newest_ms = max((ms for ms in polls_ms if ms is not None), default=None)
        since_batch_s = time.monotonic() - self._heard_s
        if newest_ms is None:
            return since_batch_s
        since_poll_s = time.time() - float(newest_ms) / 1000
        return max(0.0, min(since_batch_s, since_poll_s))

    async def next_batch(self, wait_s: float, entries_max: int = 1000) -> list[Entry]:
        """What is there, waiting at most `wait_s` for the first."""
        try:
            found = await self._consumer.getmany(
                timeout_ms=int(wait_s * 1000), max_records=entries_max
            )
            for place in self._places:
                # Not the last offset + 1: compaction leaves holes, also at the end.
                self._positions[place.partition] = await self._consumer.position(place)
        except OffsetOutOfRangeError as error:
            detail = f"read {self._topic} at {self._positions}: retention has overtaken the reader"
            raise NoSuchPosition(detail) from error
        except KafkaError as error:
            raise LogError(f"read {self._topic}: {told(error)}") from error
        if found:
            self._heard_s = time.monotonic()
        return [
            Entry(Position(self._topic, r.partition, r.offset), r.timestamp, r.key, r.value)
            for records in found.values()
            for r in records
        ]

    async def close(self) -> None:
        """Let go."""
        await stopped(self._consumer, self._settings.request_timeout_s)


def new_consumer(settings: Settings, group: str | None = None) -> Any:
    """A consumer that never moves or commits a position by itself."""
    return AIOKafkaConsumer(
        **client_options(settings),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="none",
        # A batch larger than this would be skipped, so it is what the broker takes at most.
        max_partition_fetch_bytes=settings.record_bytes_max + FRAMING_BYTES,
        # Of all partitions together as much: it waits in memory, compressed, beside any buffer.
        fetch_max_bytes=settings.record_bytes_max + FRAMING_BYTES,
        fetch_max_wait_ms=settings.fetch_wait_ms,
        value_deserializer=value_limit(settings.record_bytes_max + FRAMING_BYTES),
    )


async def open_reader(settings: Settings, topic: str, positions: Mapping[int, int]) -> KafkaReader:
    """A reader that stands at these positions, all of which the log holds."""
    what = f"read {topic}"
    consumer = new_consumer(settings)
    await started(what, consumer, settings, settings.request_timeout_s)
    places = [TopicPartition(topic, partition) for partition in positions]
    try:
        # First of all: a consumer that is asked about a topic it does not know waits at first.
        consumer.assign(places)
        for place in places:
            consumer.seek(place, max(0, positions[place.partition]))
        seconds = settings.request_timeout_s
        first = await answered(what, lambda: consumer.beginning_offsets(places), settings, seconds)
        last = await answered(what, lambda: consumer.end_offsets(places), settings, seconds)
        for place in places:
            wanted = positions[place.partition]
            if not first[place] <= wanted <= last[place]:
                detail = (
                    f"{Position(topic, place.partition, wanted)}: the log holds "
                    f"{first[place]} up to {last[place]}"
                )
                raise NoSuchPosition(detail)
    except BaseException:
        await stopped(consumer, settings.request_timeout_s)
        raise
    return KafkaReader(consumer, settings, topic, positions)
