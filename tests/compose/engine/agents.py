"""Agents at work on a deployment, and what has to be in the log when they are done.

    20 agents, each one session after another ──► router ──► gateways ──► log ──► outcome, sample

An agent is an SDK that keeps its history and sends again what was not answered, as long as its
patience lasts. The engine is a script, and its answers are spelled with tokens that no tokenizer
would choose: who had only their text could not go on from them.

Invariant: whatever was done to the deployment, each session that an agent ended has exactly one
outcome, and a sample in which every answer that the agent saw is in its place.
"""

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx
import openai

from schemas import codec
from schemas.samples import Sample, SessionClosed
from streams.adapters.client import AsyncSession, Turnstream
from streams.log.kafka import KafkaLog
from streams.settings import Settings
from tests.compose.engine.deployment import Deployment

AGENTS = 20
TURNS = 6
ASK_S = 60.0
PATIENCE_S = 300.0
BROKEN = (openai.APIError, httpx.TransportError)


@dataclass(slots=True)
class Report:
    """What agents saw."""

    turns: dict[str, int] = field(default_factory=dict)
    """Of each session that was ended: how many answers its agent has."""
    calls: int = 0
    tried_again: int = 0
    waits_s: list[float] = field(default_factory=list)
    """Of each turn, from its first call to its answer."""
    outcomes_twice: int = 0

    def figures(self) -> dict[str, object]:
        """As a run says them."""
        return {
            "sessions": len(self.turns),
            "turns": sum(self.turns.values()),
            "calls sent again": self.tried_again,
            "longest turn": f"{max(self.waits_s, default=0):.1f} s",
            "outcomes twice": self.outcomes_twice,
        }


class Load:
    """Agents in a thread of their own, from `with` to `done`."""

    def __init__(self, deployment: Deployment, agents: int = AGENTS, turns: int = TURNS) -> None:
        """Nobody runs yet."""
        self.report = Report()
        self._control = Turnstream(
            deployment.gateway_url, deployment.control_key, patience_s=PATIENCE_S
        )
        self._agents, self._turns = agents, turns
        self._stop, self._may_call = threading.Event(), threading.Event()
        self._may_call.set()
        self._thread = threading.Thread(target=self._run, name="agents")
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        """They begin."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nobody runs any more."""
        self._may_call.set()
        self._stop.set()
        self._thread.join()

    def done(self) -> Report:
        """Have every agent end its session, and wait for that."""
        self._may_call.set()
        self._stop.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive(), "agents do not end"
        if self._error is not None:
            raise self._error
        return self.report

    def until_turns(self, more: int) -> None:
        """Wait until so many more were answered; an agent that gave up is raised here."""
        wanted, until_s = len(self.report.waits_s) + more, time.monotonic() + PATIENCE_S
        while len(self.report.waits_s) < wanted:
            if self._error is not None:
                raise self._error
            assert time.monotonic() < until_s, f"{len(self.report.waits_s)} of {wanted} turns"
            time.sleep(0.1)

    @contextmanager
    def held(self) -> Iterator[None]:
        """No new call while the block runs; the sessions stay open."""
        self._may_call.clear()
        try:
            yield
        finally:
            self._may_call.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:
            self._error = error

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._agents):
                group.create_task(self._agent())

    async def _agent(self) -> None:
        while not self._stop.is_set():
            async with self._control.session() as session:
                answered = await self._work(session)
                await session.end(reward=1.0)
            self.report.turns[session.session_id] = answered

    async def _work(self, session: AsyncSession) -> int:
        messages: list[Any] = []
        async with openai.AsyncOpenAI(
            base_url=session.base_url, api_key=session.key, max_retries=0, timeout=ASK_S
        ) as sdk:
            for number in range(self._turns):
                await asyncio.to_thread(self._may_call.wait)
                messages.append({"role": "user", "content": f"And {number}?"})
                answer = await self._asked(sdk, messages)
                messages.append({"role": "assistant", "content": answer})
                if self._stop.is_set() and number:
                    break
        return len(messages) // 2

    async def _asked(self, sdk: openai.AsyncOpenAI, messages: list[Any]) -> str:
        began_s = time.monotonic()
        for wait_s in itertools.chain((0.2, 0.5), itertools.repeat(1.0)):
            self.report.calls += 1
            try:
                answer = await sdk.chat.completions.create(model="m", messages=messages)
            except BROKEN as error:
                refused = isinstance(error, openai.APIStatusError) and error.status_code < 429
                if refused or time.monotonic() - began_s > PATIENCE_S:
                    raise
                self.report.tried_again += 1
                await asyncio.sleep(wait_s)
                continue
            self.report.waits_s.append(time.monotonic() - began_s)
            return answer.choices[0].message.content or ""
        raise AssertionError


def judged(deployment: Deployment, report: Report) -> Report:
    """Hold the log against what the agents saw, waiting for the last outcomes."""
    return asyncio.run(_judged(Settings(bootstrap_servers=deployment.servers), report))


async def _judged(settings: Settings, report: Report) -> Report:
    outcomes: dict[str, SessionClosed] = {}
    samples: dict[str, list[Sample]] = {}
    closes: Counter[str] = Counter()
    async with KafkaLog(settings) as log:
        topic = settings.samples_topic
        reader = await log.read(topic, await log.start_positions(topic))
        until_s = time.monotonic() + PATIENCE_S
        while not report.turns.keys() <= outcomes.keys():
            missing = report.turns.keys() - outcomes.keys()
            assert time.monotonic() < until_s, f"no outcome of {sorted(missing)[:5]}"
            for entry in await reader.next_batch(1.0):
                record = codec.from_msgpack(entry.value or b"")
                if isinstance(record, SessionClosed):
                    closes[record.session_id] += 1
                    outcomes.setdefault(record.session_id, record)
                elif isinstance(record, Sample):
                    samples.setdefault(record.session_id, []).append(record)
        await reader.close()
    for session_id, turns in report.turns.items():
        hold(session_id, turns, outcomes[session_id], samples.get(session_id, []))
    report.outcomes_twice = sum(count > 1 for count in closes.values())
    return report


def hold(session_id: str, turns: int, outcome: SessionClosed, samples: list[Sample]) -> None:
    """What came of a session against how many answers its agent has of it."""
    assert outcome.end_status == "completed", (session_id, outcome.end_status, outcome.reason)
    assert outcome.reward == 1.0, session_id
    chains = {sample.sample_id: len(sample.turns) for sample in samples}
    # A last call that was sent again, after its answer was recorded and lost, has left a twin.
    assert {chains[sample_id] for sample_id in outcome.sample_ids} == {turns}, (
        session_id,
        turns,
        outcome.ledger,
    )
