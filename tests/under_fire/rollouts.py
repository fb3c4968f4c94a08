"""Agents that come and go: sessions in groups, so many at a time, up to twenty turns each.

    open ──► questions and tool results, by three SDKs, streamed or whole ──► end ──► reward

How a session is rewarded follows from its number: with its end, after it, before it and said
twice, or with its end and once more with another number.

Invariant: a session that was begun is ended, and one that could not be is told of.
"""

import asyncio
import itertools
from dataclasses import dataclass, field
from random import Random
from typing import Any

from streams.adapters.client import AsyncSession, Turnstream
from streams.adapters.client_steps import steps_of
from tests.adapters.gateway.agents_kinds import KINDS
from tests.failover.processes import CONTROL_KEY
from tests.failover.talking import Walker, walker

RUN = "under-fire"
GROUP_SIZE = 4
TURNS_MAX = 20
TRIES_MAX = 60
"""An agent outlives an outage of the log, which is longer than what an SDK tries by itself."""
PATIENCE_S = 240.0
REWARDS = ("with the end", "after the end", "twice before the end", "changed after the end")


@dataclass
class Rollouts:
    """All sessions of a run."""

    url: str
    seed: int
    at_once: int
    rest_s: float
    turns_max: int = TURNS_MAX
    walkers: list[Walker] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    """By session, the last one that a gateway acknowledged."""
    begun: int = 0
    ended: int = 0

    async def run(self, least: int, enough: asyncio.Event) -> None:
        """Begin sessions until there are so many, and it is enough; whole groups."""
        room = asyncio.Semaphore(self.at_once)
        going: set[asyncio.Task[None]] = set()
        try:
            for number in itertools.count():
                if number % GROUP_SIZE == 0 and number >= least and enough.is_set():
                    break
                await room.acquire()
                self.begun += 1
                task = asyncio.create_task(self._session(number))
                going.add(task)
                task.add_done_callback(going.discard)
                task.add_done_callback(lambda _: room.release())
            await asyncio.gather(*going)
        finally:
            for task in going:
                task.cancel()

    async def _session(self, number: int) -> None:
        kind, stream = list(KINDS)[number % len(KINDS)], number // len(KINDS) % 2 == 1
        control = Turnstream(self.url, CONTROL_KEY, patience_s=PATIENCE_S)
        dice = Random(f"session {self.seed} {number}")
        opening = control.session(
            session_id=f"{kind}-{number}",
            run_id=RUN,
            group_id=f"g{number // GROUP_SIZE}",
            group_size=GROUP_SIZE,
            rollout_index=number % GROUP_SIZE,
        )
        one: Walker | None = None
        try:
            async with opening as session:
                opened = {"session_id": session.session_id, "key": session.key}
                one = walker(self.url, opened, kind, stream=stream)
                one.tries_max = TRIES_MAX
                self.walkers.append(one)
                await one.run(dice.randint(1, self.turns_max), None, self.rest_s)
                await self._reward(control, session, REWARDS[number % 5 % len(REWARDS)], dice)
        except Exception as error:  # told of; the others go on
            self.failed.append(f"{kind}-{number}: {error!r:.500}")
        finally:
            self.ended += 1
            if one is not None:
                await one.close()

    async def _reward(
        self, control: Turnstream, session: AsyncSession, how: str, dice: Random
    ) -> None:
        reward = float(dice.randint(0, 1))
        match how:
            case "with the end":
                await session.end(reward=reward)
            case "after the end":
                await session.end()
                await asyncio.sleep(dice.uniform(0, self.rest_s))
                await session.reward(reward)
            case "twice before the end":
                body: dict[str, Any] = {"reward_id": "only", "reward": reward}
                for _ in range(2):
                    path = f"/control/sessions/{session.session_id}/rewards"
                    ask = control.ask(path, body, session.key)
                    await control.run_async(steps_of(ask, PATIENCE_S))
                await session.end()
            case _:
                await session.end(reward=reward)
                await asyncio.sleep(dice.uniform(0, 3 * self.rest_s))
                reward = 1.0 - reward
                await session.reward(reward)
        self.rewards[session.session_id] = reward
