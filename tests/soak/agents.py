"""Agents that come at a steady rate, talk for some turns and go: the same ones at every run.

    open ──► system prompt, question ──► answer, tool call ──► result ... ──► end and reward

    of fifty    what becomes of the session
    49          ended, its reward with the end, after it or before it
     1          left without a word: it has to expire

They speak through three SDKs, streamed or whole, with both gateways; one of ten goes on at the
other gateway in the middle, which has to read it back from the log.

Invariant: what an agent says follows from its number and the seed alone; one that fails is told of.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from streams.adapters.client import AsyncSession, Turnstream
from streams.adapters.engines.scripted import Rule, Script
from tests.adapters.gateway.agents import Message, calls, says, user
from tests.adapters.gateway.agents_kinds import KINDS, Said
from tests.failover.processes import CONTROL_KEY
from tests.failover.talking import Walker, walker

RUN = "soak"
GROUP_SIZE = 8
STEPS_MAX = 6
REST_S = 1.0
"""Between an answer and the next question, on average."""
OPEN_MAX = 100
"""Sessions at a time: where the machine cannot keep up, agents come later."""
PATIENCE_S = 60.0
SILENT_EVERY = 50
MOVES_EVERY = 10
_WAYS = 12
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "en", "or")]
_VOCABULARY = ["".join(Random(n).choices(_SYLLABLES, k=1 + n % 4)) for n in range(2000)]


def words(dice: Random, least: int, most: int) -> str:
    """So many, of no language."""
    return " ".join(dice.choices(_VOCABULARY, k=dice.randint(least, most)))


def script() -> Script:
    """An answer for every tag; a prompt has the tags of all its steps, and the last one counts."""
    steps = [(step, way) for step in reversed(range(STEPS_MAX)) for way in range(_WAYS)]
    return Script(answers=tuple(_answer(step, way) for step, way in steps))


def tag(step: int, way: int) -> str:
    """What an agent says to be answered so."""
    return f"[step {step} way {way}]"


def _answer(step: int, way: int) -> Rule:
    dice = Random(f"answer {step} {way}")
    how: dict[str, Any] = {
        "contains": tag(step, way),
        "times": None,
        "drift": 3 * (way % 2),
        "chunks": (8,),
        "gap_ms": 20,
    }
    thought = words(dice, 10, 60) if way % 2 else ""
    if way % 3 == 0:
        return says(words(dice, 20, 120), thought, **how)
    return calls(words(dice, 3, 20), reasoning=thought, **how)


@dataclass
class Agents:
    """All of a run's, and what they saw."""

    urls: list[str]
    seed: int
    per_s: float
    begun: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    turns: int = 0
    _numbers: "count[int]" = field(default_factory=count)

    async def come(self, enough: asyncio.Event) -> None:
        """Begin sessions until it is enough, whole groups of them, and see them to their ends."""
        dice, room = Random(f"soak {self.seed}"), asyncio.Semaphore(OPEN_MAX)
        async with asyncio.TaskGroup() as going:
            while not enough.is_set():
                for number in [next(self._numbers) for _ in range(GROUP_SIZE)]:
                    await asyncio.sleep(dice.expovariate(self.per_s))
                    await room.acquire()
                    task = going.create_task(self._session(number))
                    task.add_done_callback(lambda _: room.release())

    async def one_group(self) -> None:
        """A last group, all of which is ended: with it a trainer commits what it passed over."""
        numbers = [next(self._numbers) for _ in range(GROUP_SIZE)]
        await asyncio.gather(*(self._session(number, may_be_silent=False) for number in numbers))

    async def _session(self, number: int, *, may_be_silent: bool = True) -> None:
        kind, stream = list(KINDS)[number % len(KINDS)], number // len(KINDS) % 2 == 1
        here, there = (self.urls[(number + more) % len(self.urls)] for more in (0, 1))
        dice = Random(f"agent {self.seed} {number}")
        name = f"{kind}-{number}"
        self.begun.add(name)
        try:
            opening = Turnstream(here, CONTROL_KEY, patience_s=PATIENCE_S).session(
                session_id=name,
                run_id=RUN,
                group_id=f"g{number // GROUP_SIZE}",
                group_size=GROUP_SIZE,
                rollout_index=number % GROUP_SIZE,
            )
            session = await opening.__aenter__()  # left by those that end it, and by nobody else
            one = walker(here, {"session_id": name, "key": session.key}, kind, stream=stream)
            try:
                await self._talk(one, dice, None if number % MOVES_EVERY else there)
            finally:
                await one.close()
            if may_be_silent and number % SILENT_EVERY == SILENT_EVERY - 1:
                self.silent.add(name)
            else:
                await _end(session, number, dice)
        except Exception as error:  # told of; the others go on
            self.failed.append(f"{name}: {error!r:.500}")

    async def _talk(self, one: Walker, dice: Random, there: str | None) -> None:
        one.talker.head = words(dice, 200, 600)
        said: Said | None = None
        for step in range(dice.randint(2, STEPS_MAX)):
            if step == STEPS_MAX // 2 and there is not None:
                one.move(there)
            said = await one.talker.ask(*_next_words(said, step, dice))
            self.turns += 1
            await asyncio.sleep(dice.uniform(0.2, 1.8) * REST_S)


def _next_words(said: Said | None, step: int, dice: Random) -> list[Message]:
    """Results of what was called, or a question."""
    asked = tag(step, dice.randrange(_WAYS))
    if said is None or not said.calls:
        return [user(f"{words(dice, 5, 100)} {asked}")]
    return [
        {"role": "tool", "tool_call_id": call.id, "content": f"{words(dice, 50, 1000)} {asked}"}
        for call in said.calls
    ]


async def _end(session: AsyncSession, number: int, dice: Random) -> None:
    reward = dice.random()
    match number % 3:
        case 0:
            await session.end(reward=reward)
        case 1:
            await session.end()
            await asyncio.sleep(dice.uniform(0, REST_S))
            await session.reward(reward)
        case _:
            await session.reward(reward)
            await session.end()
