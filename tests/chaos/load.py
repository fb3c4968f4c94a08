"""Sessions published side by side, in an order that the seed decides, at a pace that does not.

    ready ──► open, some 60 at a time, one entry of one of them after the other
          ──► late: what comes after a session has said all else, much later

The load can be held with sessions open, and finished afterwards.

Invariant: an entry counts as sent only when the log has acknowledged it, and a session's
entries stand in the log in the order of its script.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable
from random import Random

from streams.log.interface import Log, Outgoing
from streams.settings import Settings
from tests.chaos.sessions import Script, Step, script

CHUNK = 40
LATE_SHARE = 0.03


class Running:
    """A script and how far it was published."""

    def __init__(self, session: Script) -> None:
        self.session = session
        self.left = deque(session.steps)

    @property
    def open(self) -> bool:
        """Whether an entry is left that is not a late one."""
        return bool(self.left) and not self.left[0].late


class Load:
    """Publishes sessions until it is held."""

    def __init__(self, log: Log, settings: Settings, seed: int, side_by_side: int) -> None:
        self._log = log
        self._topic = settings.turns_topic
        self._seed = seed
        self._side_by_side = side_by_side
        self._dice = Random(f"load {seed}")
        self._open: list[Running] = []
        self._late: list[Running] = []
        self.begun = 0
        self.sent = 0
        self.kinds: Counter[str] = Counter()
        self.held = False
        self.growing = True
        """Whether new sessions may begin."""

    @property
    def open_sessions(self) -> int:
        """Begun, and not yet told to the end."""
        return sum(len(r.left) < len(r.session.steps) for r in self._open)

    async def publish(self, count: int) -> int:
        """The next entries, acknowledged; fewer only if there are no more."""
        steps: list[Step] = []
        while len(steps) < count and (step := self.next_step()) is not None:
            steps.append(step)
        sent = [
            await self._log.send(Outgoing(topic=self._topic, key=step.key, value=step.value))
            for step in steps
        ]
        for one in sent:
            await one
        self.sent += len(sent)
        self.kinds.update(step.kind for step in steps)
        return len(sent)

    async def run(self, rate: float, backlog: Callable[[], int], backlog_max: int) -> None:
        """Publish until held, at most so much a second, while less than this waits."""
        while not self.held:
            if backlog() >= backlog_max:
                await asyncio.sleep(0.1)
                continue
            began_s = asyncio.get_running_loop().time()
            count = max(1, min(CHUNK, int(rate / 5)))
            await self.publish(count)
            spent_s = asyncio.get_running_loop().time() - began_s
            await asyncio.sleep(max(0.0, count / rate - spent_s))

    async def finish(self) -> None:
        """Everything that is left of the sessions that were begun."""
        self.growing = False
        while await self.publish(CHUNK):
            pass

    def next_step(self, sessions_max: float = math.inf) -> Step | None:
        """What is published next; none if there are no more."""
        while self._grows(sessions_max) and len(self._open) < self._side_by_side:
            self._open.append(Running(script(self._seed, self.begun)))
            self.begun += 1
        pools = [pool for pool in (self._open, self._late) if pool]
        if not pools:
            return None
        late = pools[0] is self._late or (self._late and self._dice.random() < LATE_SHARE)
        pool = self._late if late else self._open
        at = self._dice.randrange(len(pool))
        running = pool[at]
        step = running.left.popleft()
        if not running.left or (pool is self._open and not running.open):
            pool[at] = pool[-1]
            pool.pop()
            if running.left:
                self._late.append(running)
        return step

    def _grows(self, sessions_max: float) -> bool:
        return self.growing and self.begun < sessions_max
