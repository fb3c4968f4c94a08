"""One run's whole world: broker, topics, load, workers, and the verdict in the end.

    fill ──► workers ──► faults ──► hold, drain ──► all workers killed ──► fresh ones finish
                                                                              │
                            what the topics hold  ◄── compare ──►  what the pure core gives

Invariant: whatever happens inside, every process is gone when the arena is left.
"""

import asyncio
import dataclasses
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.settings import PREFIX, Settings
from tests.chaos.comparison import Found, Verdict, compare, found
from tests.chaos.load import Load
from tests.chaos.oracle import Oracle
from tests.chaos.watch import Watch
from tests.chaos.workers import Crew
from tests.kafka.broker import Broker

DRAIN_SECONDS_MAX = 180.0
HELD_SESSIONS_MIN = 20


class Stuck(Exception):
    """The workers do not get on, although nothing holds them up."""


def short_settings(brokers: Sequence[Broker], **changes: Any) -> Settings:
    """Settings under which everything happens within seconds."""
    fields: dict[str, Any] = {
        "bootstrap_servers": ",".join(broker.bootstrap_servers for broker in brokers),
        "topic_prefix": f"chaos-{uuid.uuid4().hex[:8]}",
        "partitions": 8,
        "trace_share": 0.3,
        "idle_limit_s": 20.0,
        "reward_grace_s": 20.0,
        "processor_session_timeout_s": 6.0,
        "processor_heartbeat_interval_s": 1.5,
        "processor_rebalance_timeout_s": 15.0,
        "processor_sweep_interval_s": 1.0,
        "metrics_port": 0,
    }
    return Settings(**{**fields, **changes})


def environ_of(settings: Settings) -> dict[str, str]:
    """The variables that give these settings."""
    given = {
        f"{PREFIX}{field.name.upper()}": str(getattr(settings, field.name))
        for field in dataclasses.fields(settings)
        if getattr(settings, field.name) != field.default
    }
    # What stands in the environment of the tests must not reach the workers.
    return {name: "" for name in os.environ if name.startswith(PREFIX)} | given


class Arena:
    """Everything one run needs; enter it, hurt it, end it, judge it."""

    def __init__(
        self,
        folder: Path,
        brokers: Sequence[Broker],
        settings: Settings,
        seed: int,
        side_by_side: int = 60,
    ) -> None:
        self.brokers = brokers
        self.settings = settings
        self.crew = Crew(folder, environ_of(settings))
        # Longer than any outage, and a little more: the load must outlive what we do.
        patient = dataclasses.replace(settings, publish_timeout_s=180.0, request_timeout_s=5.0)
        self._logs = [KafkaLog(patient), KafkaLog(patient)]
        self.load = Load(self._logs[0], settings, seed, side_by_side)
        self.watch = Watch(self._logs[1], settings)
        self.oracle = Oracle(settings)
        self.found = Found()
        self._watching: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        report = await create_topics(self.settings)
        assert report.problems == [], report.problems
        self._watching = asyncio.create_task(self.watch.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.crew.__exit__(kind, error, trace)
        for task in (self._loading, self._watching):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self.oracle.close()
        await asyncio.gather(*(log.close() for log in self._logs))

    # --- load ------------------------------------------------------------------------------------

    def start_load(self, rate: float, backlog_max: int) -> None:
        """Publish from now on, in the background; an error in it shows at `hold_load`."""
        self.load.held = False
        self._loading = asyncio.create_task(
            self.load.run(rate, lambda: self.watch.lag, backlog_max)
        )

    async def hold_load(self) -> None:
        """No further entry, with sessions left open."""
        self.load.held = True
        if self._loading is not None:
            await asyncio.wait_for(self._loading, DRAIN_SECONDS_MAX)
            self._loading = None

    async def drained(self, size: int, seconds: float = DRAIN_SECONDS_MAX) -> None:
        """Until nothing waits; dead workers are started again meanwhile."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            self.crew.supervise(size)
            if await self.watch.until(lambda: self.watch.lag == 0, 2):
                return
        raise Stuck(f"lags {self.watch.lags} after {seconds:g} s\n{self.last_words()}")

    def last_words(self) -> str:
        return "\n".join(f"--- {w.name}\n{w.said()}" for w in self.crew.living)

    # --- the end ---------------------------------------------------------------------------------

    async def end_the_hard_way(self, size: int) -> list[int | str]:
        """Sessions open, all workers killed, fresh ones finish; their exit codes."""
        await self.hold_load()
        self.crew.pace(0.0)
        await self.drained(size)
        assert self.load.open_sessions >= HELD_SESSIONS_MIN, self.load.open_sessions
        self.crew.kill_all()
        self.crew.supervise(size)
        await self.load.finish()
        await self.drained(size)
        await self.all_closed(size)
        return await self.crew.terminate_all()

    async def all_closed(self, size: int) -> None:
        """Until silent sessions have expired too, and that was worked on."""
        longest_s = max(self.settings.idle_limit_s, self.settings.reward_grace_s)
        deadline_s = time.monotonic() + longest_s + 60
        while time.monotonic() < deadline_s:
            await self.drained(size)
            await self.feed(self.oracle)
            if self.oracle.open_sessions == 0 and self.watch.lag == 0:
                return
            await asyncio.sleep(0.5)
        raise Stuck(f"{self.oracle.open_sessions} sessions do not expire\n{self.last_words()}")

    async def feed(self, oracle: Oracle) -> None:
        """Let an oracle read everything there is."""
        await oracle.read_on(self._logs[0])

    async def judged(self) -> Verdict:
        """Compare, when no worker runs any more."""
        await self.feed(self.oracle)
        self.found = await found(self._logs[0], self.settings)
        return compare(self.oracle.expected, self.found)
