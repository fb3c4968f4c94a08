"""A real model behind the gateway, in this process: agents in, samples out.

agent (openai SDK) ──HTTP──► gateway ──► local engine, which computes the model
                                └──► log ──► processor ──► log: samples, outcome
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from schemas import codec
from schemas.events import Turn
from schemas.record import Record
from schemas.samples import Sample, SessionClosed
from streams.adapters.client import AsyncSession, Turnstream
from streams.adapters.engines.local import LocalEngine
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.server import Gateway
from streams.log.sqlite import SqliteLog
from streams.processor.embedded import EmbeddedProcessor
from streams.settings import Settings
from tests.adapters.gateway.agents import Agent, user
from tests.adapters.gateway.world import SECRETS, nothing_logged, until

SECONDS_MAX = 240.0


class Model(Protocol):
    """What samples and what spells."""

    engine: LocalEngine
    renderer: Renderer


@dataclass
class Became:
    """What a session became."""

    turns: list[Turn]
    samples: list[Sample]
    closed: SessionClosed


@dataclass
class Stage:
    """All of it."""

    settings: Settings
    log: SqliteLog
    gateway: Gateway

    @contextlib.asynccontextmanager
    async def session(self, **fields: Any) -> AsyncIterator[Agent]:
        """An agent of a session that ends with a reward."""
        control = Turnstream(self.gateway.base_url, self.gateway.keys.control_key)
        async with control.session(**fields) as opened:
            agent = Agent(_words(opened))
            try:
                yield agent
            finally:
                await agent.client.close()
            await opened.reward(1.0)

    async def became(self, agent: Agent) -> Became:
        """Of a session that has ended."""
        samples: list[Record] = []

        async def closed() -> bool:
            samples[:] = await self._records(self.settings.samples_topic, agent.session_id)
            return any(isinstance(record, SessionClosed) for record in samples)

        await until(closed)
        events = await self._records(self.settings.turns_topic, agent.session_id)
        (end,) = [record for record in samples if isinstance(record, SessionClosed)]
        return Became(
            [event for event in events if isinstance(event, Turn)],
            [record for record in samples if isinstance(record, Sample)],
            end,
        )

    async def _records(self, topic: str, session_id: str) -> list[Record]:
        ends = await self.log.end_positions(topic)
        reader = await self.log.read(topic, dict.fromkeys(ends, 0))
        found: list[Record] = []
        try:
            while any(reader.positions[partition] < end for partition, end in ends.items()):
                for entry in await reader.next_batch(1.0):
                    record = codec.from_msgpack(entry.value or b"")
                    if getattr(record, "session_id", None) == session_id:
                        found.append(record)
        finally:
            await reader.close()
        return found


async def streamed(agent: Agent, question: str, tokens: int) -> AsyncIterator[int]:
    """Ask, and give the number of parts of the answer so far, each time one comes."""
    agent.messages.append(user(question))
    answer, parts = "", 0
    async with await agent.client.chat.completions.create(
        model="m", messages=agent.messages, stream=True, max_tokens=tokens
    ) as chunks:
        async for chunk in chunks:
            text = "".join(choice.delta.content or "" for choice in chunk.choices)
            if text:
                answer, parts = answer + text, parts + 1
                yield parts
    agent.messages.append({"role": "assistant", "content": answer})


def play(
    folder: Path,
    real: Model,
    story: Callable[[Stage], Awaitable[None]],
    seconds_max: float = SECONDS_MAX,
) -> None:
    """Run a story with everything started; it is bounded and leaves no task behind."""

    async def whole() -> None:
        async with asyncio.timeout(seconds_max), _staged(folder, real) as stage:
            await story(stage)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    asyncio.run(whole())


@contextlib.asynccontextmanager
async def _staged(folder: Path, real: Model) -> AsyncIterator[Stage]:
    settings = Settings(log=str(folder / "log.db"), gateway_port=0)
    stop = asyncio.Event()
    async with SqliteLog(Path(settings.log), settings) as log:
        processing = asyncio.create_task(EmbeddedProcessor(settings, log).run(stop))
        try:
            with nothing_logged():
                async with Gateway(settings, log, real.engine, real.renderer, SECRETS) as gateway:
                    yield Stage(settings, log, gateway)
        finally:
            stop.set()
            await processing


def _words(session: AsyncSession) -> dict[str, Any]:
    env = session.env
    return {
        "session_id": session.session_id,
        "base_url": env["OPENAI_BASE_URL"],
        "key": env["OPENAI_API_KEY"],
    }
