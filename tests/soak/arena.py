"""One soak's world: topics, load, lag, and what came out.

Invariant: nothing waits for ever: every wait here ends with the run's own time at the latest.
"""

import asyncio
import itertools
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from typing import NamedTuple

from schemas import codec
from schemas.events import Purge
from schemas.samples import Sample, SampleRevised, SessionClosed
from streams.log.interface import Entry, Outgoing
from streams.log.kafka import KafkaLog
from streams.settings import Settings
from tests.kafka.broker import Broker
from tests.soak.load import entries, fate_of, small_session
from tests.soak.workers import Crew

CHUNK = 1000
BACKLOG_MAX = 8000
"""Enough that the workers never wait for us, in the warm-up as well as later."""
PURGES = 2
LOOK_EVERY_S = 0.5
SETTLE_S = 5.0
"""Longer than commit and sweep intervals: what is measured stands still."""


def soak_settings(broker: Broker) -> Settings:
    """As deployed, but silence ends a session within the run."""
    return Settings(
        bootstrap_servers=broker.bootstrap_servers,
        topic_prefix=f"soak-{uuid.uuid4().hex[:8]}",
        idle_limit_s=30.0,
        reward_grace_s=30.0,
        metrics_port=0,
    )


class Came(NamedTuple):
    """What the samples topic holds, by session and by sample id."""

    outcomes: Counter[str]
    statuses: Counter[str]
    samples: Counter[str]
    revisions: int


class Arena:
    """Feeds the workers and looks at what they make of it."""

    def __init__(self, log: KafkaLog, settings: Settings, crew: Crew) -> None:
        self.log = log
        self.settings = settings
        self.crew = crew
        self.closed = 0
        """Sessions that must have an outcome by now."""

    async def assigned(self) -> None:
        """Until every worker has partitions, and together all of them."""
        while True:
            held = [told.get("partitions", 0) for told in await self.crew.metrics()]
            if all(held) and sum(held) == self.settings.partitions:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def lag(self) -> int:
        """Events the group has not committed."""
        return sum((await self.log.lag(self.settings.processor_id, self.topic)).values())

    @property
    def topic(self) -> str:
        return self.settings.turns_topic

    async def run_through(self, seed: int, sessions: int) -> float:
        """Publish sessions and wait until all of them are closed; events a second, committed."""
        source, published = entries(seed, range(sessions)), 0
        began_s = time.monotonic()
        while chunk := list(itertools.islice(source, CHUNK)):
            sent = [
                await self.log.send(Outgoing(topic=self.topic, key=key, value=value))
                for key, value in chunk
            ]
            for one in sent:
                await one
            published += len(sent)
            await self._lag_at_most(BACKLOG_MAX)
        await self._lag_at_most(0)
        rate = published / (time.monotonic() - began_s)
        self.closed += sessions
        await self._idle()
        return rate

    async def purge(self) -> None:
        """Ask, as a worker's sweep does days later, for every closed session to be forgotten.

        Twice: the Kafka client keeps the last batches it sent until the next ones, and those of
        the first purge hold a removal for every session. The second removes only the first.
        """
        for _ in range(PURGES):
            ends = await self.log.end_positions(self.topic)
            for partition, end in ends.items():
                value = codec.to_msgpack(Purge(floor=end))
                outgoing = Outgoing(topic=self.topic, key=None, value=value, partition=partition)
                await self.log.publish(outgoing)
            await self._idle()

    async def _lag_at_most(self, most: int) -> None:
        while True:
            self.crew.check()
            if await self.lag() <= most:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _idle(self) -> None:
        """Until nothing waits, is under way or open, and everything is closed that should be."""
        while True:
            told = await self.crew.metrics()
            busy = sum(one["sessions_open"] + one["in_flight"] for one in told)
            closed = sum(one.get("sessions_closed", 0) for one in told)
            if not busy and closed >= self.closed and not await self.lag():
                break
            await asyncio.sleep(LOOK_EVERY_S)
        await asyncio.sleep(SETTLE_S)

    async def refused(self) -> int:
        """Dead letters; there is no reason for one."""
        return sum((await self.log.end_positions(self.settings.dead_letters_topic)).values())

    async def came(self) -> Came:
        """Everything in the samples topic."""
        came = Came(Counter(), Counter(), Counter(), 0)
        revisions = 0
        async for entry in self.everything(self.settings.samples_topic):
            record = codec.from_msgpack(entry.value or b"")
            match record:
                case SessionClosed():
                    came.outcomes[record.session_id] += 1
                    came.statuses[record.end_status] += 1
                case Sample():
                    came.samples[record.sample_id] += 1
                case SampleRevised():
                    revisions += 1
        return came._replace(revisions=revisions)

    async def everything(self, topic: str) -> AsyncIterator[Entry]:
        ends = await self.log.end_positions(topic)
        reader = await self.log.read(topic, await self.log.start_positions(topic))
        try:
            while any(reader.positions[partition] < end for partition, end in ends.items()):
                for entry in await reader.next_batch(LOOK_EVERY_S):
                    yield entry
        finally:
            await reader.close()


def differences(came: Came, runs: list[tuple[int, int]]) -> list[str]:
    """What came out otherwise than it had to, for runs of (seed, sessions)."""
    wanted = {
        small_session(seed, number).session_id: fate_of(number)
        for seed, sessions in runs
        for number in range(sessions)
    }
    fates = Counter(wanted.values())
    again = [name for name, times in came.outcomes.items() if times > 1]
    again_samples = sum(times > 1 for times in came.samples.values())
    figures = {
        "sessions without an outcome": (len(wanted.keys() - came.outcomes.keys()), 0),
        "outcomes of unknown sessions": (len(came.outcomes.keys() - wanted.keys()), 0),
        "sessions with several outcomes": (len(again), 0),
        "samples sent twice": (again_samples, 0),
        "samples": (len(came.samples), len(wanted) - fates["expires"]),
        "expired sessions": (came.statuses["expired"], fates["expires"]),
        "revisions": (came.revisions, fates["revised"]),
    }
    return [f"{what}: {is_} and not {must}" for what, (is_, must) in figures.items() if is_ != must]
