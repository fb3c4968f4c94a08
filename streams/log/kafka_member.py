"""One of a group that shares a topic: which partitions are its own, and its commits.

    KafkaMember     joins, beats, is given partitions, commits; it fetches nothing
    KafkaReader     reads what the member was given, from positions that somebody chose

Two consumers and not one: aiokafka starts to fetch a partition before its listener could say
where from, and one that waits for room must go on beating.

Invariant: a commit of somebody who is no longer a member, or for a partition that is no longer
his, changes nothing.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
)
from aiokafka.structs import OffsetAndMetadata

from streams.errors import LogError
from streams.log.bounded_batches import value_limit
from streams.log.kafka_calls import answered, started, stopped, told
from streams.log.security import client_options
from streams.settings import Settings

NOTE_CHARS_MAX = 4000
"""What a broker keeps beside a position, unless it is set otherwise: 4096 bytes."""
_BEAT_S = 0.5
_NOT_OURS = (CommitFailedError, IllegalStateError, RebalanceInProgressError)
"""No longer a member, no longer assigned, or just being given out."""


class KafkaMember(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """A member of a group on one topic; made by `join_group`."""

    def __init__(self, settings: Settings, topic: str, group: str, session_s: float) -> None:
        """Not joined yet."""
        self._settings = settings
        self._topic = topic
        self._group = group
        self.partitions: frozenset[int] = frozenset()
        """Its own."""
        self.generation = 0
        """Counts how often they were given out."""
        self.settled = False
        """They are its own for certain, and not just being given out."""
        self._consumer = AIOKafkaConsumer(
            **client_options(settings),
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            # Partitions stay where they are when others come and go: what is read is not lost.
            # A class of its own, since aiokafka keeps a member's partitions in the class.
            partition_assignment_strategy=(type("Sticky", (StickyPartitionAssignor,), {}),),
            session_timeout_ms=int(session_s * 1000),
            heartbeat_interval_ms=int(min(3.0, session_s / 5) * 1000),
            # Who does not even beat for so long has hung: others may have its partitions.
            max_poll_interval_ms=int(session_s * 1000),
            # It may fetch for a moment before it is paused; then let it be little.
            max_partition_fetch_bytes=1,
            value_deserializer=value_limit(settings.record_bytes_max),
        )

    async def join(self) -> None:
        """Become a member; partitions come later."""
        seconds = self._settings.request_timeout_s
        await started(f"join group {self._group}", self._consumer, self._settings, seconds)
        self._consumer.subscribe([self._topic], listener=self)

    async def beat(self) -> None:
        """Stay a member: to be called every few seconds, whatever else is slow.

        Raises:
            LogError: the group refuses.
        """
        try:
            async with asyncio.timeout(_BEAT_S):
                await self._consumer.getmany(timeout_ms=0)
        except (TimeoutError, NoOffsetForPartitionError, OffsetOutOfRangeError):
            return  # partitions are being given out; or it looked before it was paused
        except KafkaError as error:
            raise LogError(f"group {self._group}: {told(error)}") from error

    async def committed(self, partitions: Iterable[int]) -> dict[int, tuple[int, str]]:
        """Position and note of each partition that has one."""
        places = [TopicPartition(self._topic, partition) for partition in partitions]
        # Of the coordinator itself: aiokafka's own question leaves the note out.
        asked = self._consumer._coordinator.fetch_committed_offsets
        what = f"positions of group {self._group} on {self._topic}"
        seconds = self._settings.request_timeout_s
        found = await answered(what, lambda: asked(places), self._settings, seconds)
        return {place.partition: (at.offset, at.metadata) for place, at in found.items()}

    async def commit(self, positions: Mapping[int, int], notes: Mapping[int, str]) -> bool:
        """Remember what the group reads next; False if it is not this member's to say."""
        offsets = {
            TopicPartition(self._topic, partition): OffsetAndMetadata(
                offset, notes.get(partition, "")[:NOTE_CHARS_MAX]
            )
            for partition, offset in positions.items()
        }
        what = f"commit for group {self._group} on {self._topic}"
        seconds = self._settings.request_timeout_s
        try:
            await answered(what, lambda: self._consumer.commit(offsets), self._settings, seconds)
        except LogError as error:
            if isinstance(error.__cause__, _NOT_OURS):
                return False
            raise
        return True

    async def close(self) -> None:
        """Leave the group, so that others need not wait for a timeout."""
        await stopped(self._consumer, self._settings.request_timeout_s)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        """They are given out anew; some may stay."""
        self.settled = False

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """These are ours now."""
        with contextlib.suppress(IllegalStateError):  # given away again meanwhile
            self._consumer.pause(*assigned)
        self.partitions = frozenset(place.partition for place in assigned)
        self.generation += 1
        self.settled = True


async def join_group(settings: Settings, topic: str, group: str, session_s: float) -> KafkaMember:
    """A member that waits for its partitions."""
    member = KafkaMember(settings, topic, group, session_s)
    await member.join()
    return member
