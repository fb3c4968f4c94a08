"""What is done to the workers and their broker, each kind by its name.

    kill -9              a worker, started again after a while
    SIGSTOP              longer than the session timeout, then SIGCONT: a zombie wakes
    SIGTERM              a worker leaves politely (exit code 0) and another takes its place
    join, leave          one worker more, one less
    broker kill -9       and started again on its data
    broker gone          for 30 s
    kill -9 at marker    between the acknowledgement of the samples and the marker

Invariant: each fault is bounded in time and leaves the crew complete and the broker running.
"""

import asyncio
import signal
from dataclasses import dataclass
from random import Random

from tests.chaos.arena import Arena, Stuck
from tests.chaos.workers import Worker
from tests.kafka.broker import Broker

KILL = "kill -9"
STOP = "SIGSTOP"
TERM = "SIGTERM"
JOIN = "join"
LEAVE = "leave"
BROKER_KILL = "broker kill -9"
BROKER_GONE = "broker gone 30 s"
MARKER = "kill -9 at marker"
KINDS = (KILL, STOP, TERM, JOIN, LEAVE, BROKER_KILL, BROKER_GONE, MARKER)

LAG_MIN = 500
READY_SHARE = 0.8
BOTH_SHARE = 0.3
"""Of the killed brokers that take a worker along."""
GONE_SECONDS = 30.0
MOVED_SECONDS_MAX = 90.0
MARKER_SECONDS_MAX = 40.0


@dataclass(frozen=True)
class Injected:
    """One fault, and what it met."""

    kind: str
    lag: int
    open_sessions: int
    standstill_s: float
    """From the end of the fault until every partition with events waiting had moved."""

    @property
    def counts(self) -> bool:
        """A fault without backlog or open sessions proves little."""
        return self.lag > LAG_MIN and self.open_sessions > 0


class Faults:
    """Hurts one arena, by dice."""

    def __init__(self, arena: Arena, dice: Random, size: int = 3) -> None:
        self._arena = arena
        self._dice = dice
        self._size = size
        self.done: list[Injected] = []
        self.wrong_exits: list[str] = []
        """Workers that were asked to stop and did not say 0."""

    async def inject(self, kind: str) -> Injected | None:
        """Do it, and wait until the workers move again; None: it could not be done now."""
        arena = self._arena
        lag, open_sessions = arena.watch.lag, arena.load.open_sessions
        happened = await self.act(kind)
        standstill_s = await arena.watch.moved(MOVED_SECONDS_MAX)
        if standstill_s is None:
            raise Stuck(f"after {kind}: lags {arena.watch.lags}\n{arena.last_words()}")
        if not happened:
            return None
        injected = Injected(kind, lag, open_sessions, standstill_s)
        self.done.append(injected)
        return injected

    async def act(self, kind: str) -> bool:
        """Do it, and no more; False: it could not be done now."""
        acts = {
            KILL: self._kill,
            STOP: self._stop,
            TERM: self._terminate,
            JOIN: self._join,
            LEAVE: self._leave,
            BROKER_KILL: self._kill_broker,
            BROKER_GONE: self._take_broker_away,
            MARKER: self._kill_at_marker,
        }
        happened = await acts[kind]()
        self._arena.crew.supervise(self._size)
        return happened

    async def wait_for_backlog(self, seconds: float) -> bool:
        """Until a fault would count; most find every worker at work, some find one starting."""
        arena = self._arena
        if self._dice.random() < READY_SHARE:
            for worker in arena.crew.able:
                await worker.recovered(seconds)
        return await arena.watch.until(
            lambda: arena.watch.lag > LAG_MIN * 1.2 and arena.load.open_sessions > 0, seconds
        )

    def _victim(self) -> Worker:
        self._arena.crew.supervise(self._size)
        return self._dice.choice(self._arena.crew.able)

    async def _pause(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self._dice.uniform(low_s, high_s))

    async def _kill(self) -> bool:
        self._victim().kill()
        await self._pause(0.2, 4)
        return True

    async def _stop(self) -> bool:
        zombie, timeout_s = self._victim(), self._arena.settings.processor_session_timeout_s
        zombie.stop()
        try:
            await self._pause(timeout_s + 2, timeout_s + 6)
        finally:
            zombie.go_on()
        await self._pause(1, 3)
        return True

    async def _terminate(self) -> bool:
        await self._end(self._victim())
        await self._pause(0.1, 2)
        return True

    async def _join(self) -> bool:
        return await self._arena.crew.start().recovered(30)

    async def _leave(self) -> bool:
        if len(self._arena.crew.able) <= self._size:
            await self._join()
        await self._end(self._victim())
        return True

    async def _end(self, worker: Worker) -> None:
        code = await worker.terminate()
        # One that has said nothing is still being loaded, and cannot know better.
        early = code == -signal.SIGTERM and not worker.text()
        if code != 0 and not early:
            self.wrong_exits.append(f"{worker.name} SIGTERM: {code}")

    async def _kill_broker(self) -> bool:
        broker = self._dice.choice(self._arena.brokers)
        broker.kill()
        if self._dice.random() < BOTH_SHARE:
            self._victim().kill()
        await self._pause(0.2, 3)
        await self._start(broker)
        return True

    async def _take_broker_away(self) -> bool:
        broker = self._dice.choice(self._arena.brokers)
        await asyncio.to_thread(broker.stop)
        await asyncio.sleep(GONE_SECONDS)
        await self._start(broker)
        return True

    async def _start(self, broker: Broker) -> None:
        await asyncio.to_thread(broker.start, len(self._arena.brokers))

    async def _kill_at_marker(self) -> bool:
        doomed = self._victim()
        doomed.doom()
        died = await doomed.ended(MARKER_SECONDS_MAX)
        doomed.spare()
        return died
