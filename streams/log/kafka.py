"""The log on Kafka. Each part connects when it is first used; `close` lets all of them go.

    KafkaLog ──► KafkaWriter      one idempotent producer
             ──► KafkaReader      one consumer a reader, in no group
             ──► one consumer a group, for its positions; it joins nothing and fetches nothing
             ──► one admin client and one consumer, for partitions, starts and ends

Invariant: every call ends within its timeout, with an answer or an error that names what was
asked.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import CommitFailedError, KafkaError, for_code

from streams.errors import LogError, PositionMoved
from streams.log.interface import Outgoing, Position
from streams.log.kafka_calls import Connected, answered
from streams.log.kafka_reader import KafkaReader, new_consumer, open_reader
from streams.log.kafka_writer import KafkaWriter, Sent
from streams.log.security import client_options
from streams.settings import Settings


class KafkaLog:
    """A `Log` on the brokers that the settings name."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is connected yet."""
        self._settings = settings
        self._writer = KafkaWriter(settings)
        self._admin = Connected(lambda: AIOKafkaAdminClient(**client_options(settings)), settings)
        self._asking = Connected(lambda: new_consumer(settings), settings)
        self._groups: dict[str, Connected] = {}

    async def __aenter__(self) -> Self:
        """The log, closed at the end of the block."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    async def send(self, outgoing: Outgoing) -> Sent:
        """Hand an entry over; await what comes back to know that it is durable."""
        return await self._writer.send(outgoing)

    async def publish(self, outgoing: Outgoing) -> Position:
        """`send`, and wait until the entry is durable."""
        return await (await self._writer.send(outgoing))

    async def read(self, topic: str, positions: Mapping[int, int]) -> KafkaReader:
        """A reader of the named partitions, each from its position on."""
        await self._places(topic)  # a topic that is not there is told as such
        return await open_reader(self._settings, topic, positions)

    async def commit(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        """Remember what the group reads next; refused while the group has living members."""
        what = f"commit for group {group} on {topic}"
        consumer = await self._group(group, topic)
        offsets = {TopicPartition(topic, p): offset for p, offset in positions.items()}
        try:
            await self._ask(what, lambda: consumer.commit(offsets))
        except LogError as error:
            if isinstance(error.__cause__, CommitFailedError):
                raise PositionMoved(f"{what}: the group has living members") from error
            raise

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """What the group reads next; a partition it never committed is left out."""
        consumer = await self._group(group, topic)
        places = await self._places(topic)
        offsets = await self._ask(
            f"positions of group {group} on {topic}",
            lambda: asyncio.gather(*(consumer.committed(place) for place in places)),
        )
        pairs = zip(places, offsets, strict=True)
        return {place.partition: offset for place, offset in pairs if offset is not None}

    async def start_positions(self, topic: str) -> dict[int, int]:
        """The oldest entry that is still there, by partition."""
        places, asking = await self._places(topic), await self._asker()
        found = await self._ask(f"start of {topic}", lambda: asking.beginning_offsets(places))
        return {place.partition: offset for place, offset in sorted(found.items())}

    async def end_positions(self, topic: str) -> dict[int, int]:
        """Where the next entry will stand, by partition."""
        places, asking = await self._places(topic), await self._asker()
        found = await self._ask(f"end of {topic}", lambda: asking.end_offsets(places))
        return {place.partition: offset for place, offset in sorted(found.items())}

    async def positions_at(self, topic: str, time_ms: int) -> dict[int, int]:
        """The first entry of this time or later, else the end, by partition."""
        places, asking = await self._places(topic), await self._asker()
        wanted = dict.fromkeys(places, time_ms)
        ends = await self.end_positions(topic)
        found = await self._ask(f"time in {topic}", lambda: asking.offsets_for_times(wanted))
        at = {place.partition: first for place, first in found.items() if first is not None}
        return {p: at[p].offset if p in at else end for p, end in ends.items()}

    async def lag(self, group: str, topic: str) -> dict[int, int]:
        """Entries the group has still to read, by partition."""
        committed = await self.committed(group, topic)
        starts, ends = await self.start_positions(topic), await self.end_positions(topic)
        # What retention took below the group's position or instead of it cannot be read.
        return {p: max(0, end - max(committed.get(p, 0), starts[p])) for p, end in ends.items()}

    async def let_go(self, group: str) -> None:
        """Close the connection that is kept for a group's positions."""
        connected = self._groups.pop(group, None)
        if connected is not None:
            await connected.close(self._settings.request_timeout_s)

    async def close(self) -> None:
        """Send what is left, bounded, and let go."""
        await self._writer.close()
        clients = [self._admin, self._asking, *self._groups.values()]
        seconds = self._settings.request_timeout_s
        await asyncio.gather(*(client.close(seconds) for client in clients))

    async def _ask(self, what: str, ask: Any) -> Any:
        return await answered(what, ask, self._settings, self._settings.request_timeout_s)

    async def _places(self, topic: str) -> list[Any]:
        """The topic's partitions, as the broker has them now."""
        admin = await self._admin.client(f"topic {topic}", self._settings.request_timeout_s)

        async def describe() -> list[Any]:
            (found,) = await admin.describe_topics([topic])
            if found["error_code"]:
                error: KafkaError = for_code(found["error_code"])(topic)
                raise error
            return [TopicPartition(topic, part["partition"]) for part in found["partitions"]]

        return sorted(await self._ask(f"topic {topic}", describe))

    async def _asker(self) -> Any:
        return await self._asking.client("positions", self._settings.request_timeout_s)

    async def _group(self, group: str, topic: str) -> Any:
        """The consumer that knows this group's positions on this topic."""
        places = await self._places(topic)
        if group not in self._groups:
            self._groups[group] = Connected(
                lambda: new_consumer(self._settings, group), self._settings
            )
        consumer = await self._groups[group].client(
            f"group {group}", self._settings.request_timeout_s
        )
        missing = set(places) - consumer.assignment()
        if missing:
            # Only what is assigned can be committed; what is paused is not fetched.
            consumer.assign(sorted(consumer.assignment() | missing))
            consumer.pause(*consumer.assignment())
        return consumer
