"""A gateway over real HTTP with everything behind it, in this process.

    agent (openai SDK) ──HTTP──► gateway ──► scripted engine, which keeps a journal
                                    └──► log ──► processor ──► log: samples, outcome

The tokenizer and the template are Qwen3's own, the log is a file, the processor is the embedded
one. `Faulty` stands between the gateway and its log, so that a test can hold the log back or take
it away. When a world ends, no task is left, and nothing has failed that was not said to.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from schemas import codec
from schemas.events import Turn, TurnUndelivered
from schemas.record import Record
from schemas.samples import Sample, SessionClosed
from streams.adapters.engines.scripted import Rule, Script, ScriptedEngine
from streams.adapters.gateway.access.secret import Secrets
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.server import Gateway
from streams.log.sqlite import SqliteLog
from streams.operations.pages import serve_pages
from streams.processor.embedded import EmbeddedProcessor
from streams.settings import Settings
from tests.adapters.gateway.agents import Agent
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.outcomes import (
    Outcome,
    assert_all_trains,
    assert_faithful,
    whole_prompts,
)
from tests.adapters.gateway.prompts.prompt_setting import renderer as qwen3_renderer

SECRETS: Secrets = (b"a secret for tests alone",)
SECONDS_MAX = 30.0
REWARD = 1.0


class World:
    """All of it."""

    def __init__(self, settings: Settings, log: Faulty, engine: ScriptedEngine) -> None:
        self.settings = settings
        self.log = log
        self.engine = engine
        self.renderer: Renderer = qwen3_renderer()
        self.gateway = self._new_gateway()
        self.http: aiohttp.ClientSession
        self.counts: Counter[str] = Counter()
        """What the processor counts, where it is the embedded one."""
        self.agents: list[Agent] = []
        self.failures_expected = 0

    def _new_gateway(self) -> Gateway:
        return Gateway(self.settings, self.log, self.engine, self.renderer, SECRETS)

    async def restart(self) -> None:
        """Another gateway on the same log, with the same secrets and at the same place."""
        url = self.gateway.base_url
        await self.gateway.__aexit__(None, None, None)
        self.settings = dataclasses.replace(self.settings, gateway_port=int(url.rpartition(":")[2]))
        self.gateway = await self._new_gateway().__aenter__()

    async def control(
        self, path: str, body: Any = None, *, method: str = "POST", key: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """A call of the control API; bytes are sent as they are."""
        bearer = self.gateway.keys.control_key if key is None else key
        sent: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.http.request(
            method,
            f"{self.gateway.base_url}/control/{path}",
            **sent,
            headers={"authorization": f"Bearer {bearer}"},
        ) as reply:
            return reply.status, await reply.json()

    @contextlib.asynccontextmanager
    async def pages(self) -> AsyncIterator[str]:
        """Where its pages for operators are, while the block runs."""
        settings = dataclasses.replace(self.settings, metrics_port=0)
        runner = await serve_pages(settings, self.gateway.pages, "the gateway of a test")
        try:
            yield "http://{}:{}".format(*runner.addresses[0][:2])
        finally:
            await runner.cleanup()

    async def open(self, *, client: dict[str, Any] | None = None, **fields: Any) -> Agent:
        status, opened = await self.control("sessions", fields)
        assert status == 200, opened
        agent = Agent(opened, **(client or {}))
        self.agents.append(agent)
        return agent

    async def end(self, agent: Agent, **fields: Any) -> Outcome:
        """End a session and wait for what it becomes."""
        body = {"reward": REWARD, **fields}
        status, told = await self.control(f"sessions/{agent.session_id}/end", body)
        assert status == 200, told
        return await self.outcome(agent.session_id)

    async def ends_whole(self, agent: Agent, **fields: Any) -> Outcome:
        """End a session of which everything has to train."""
        outcome = await self.end(agent, **fields)
        assert_all_trains(self.engine, outcome)
        return outcome

    async def ends(self, agent: Agent, **fields: Any) -> Outcome:
        """End a session of which the log has to have what was sampled."""
        outcome = await self.end(agent, **fields)
        assert_faithful(self.engine, outcome)
        return outcome

    async def records(self, topic: str, session_id: str | None = None) -> list[Record]:
        """What a topic holds of a session, or of all, in order."""
        ends = await self.log.end_positions(topic)
        reader = await self.log.read(topic, dict.fromkeys(ends, 0))
        found: list[Record] = []
        try:
            while any(reader.positions[partition] < end for partition, end in ends.items()):
                for entry in await reader.next_batch(1.0):
                    record = codec.from_msgpack(entry.value or b"")
                    if session_id in (None, getattr(record, "session_id", None)):
                        found.append(record)
        finally:
            await reader.close()
        return found

    async def events(self, session_id: str) -> list[Record]:
        return await self.records(self.settings.turns_topic, session_id)

    async def turns(self, session_id: str) -> list[Turn]:
        return [event for event in await self.events(session_id) if isinstance(event, Turn)]

    async def asked(self, times: int = 1) -> None:
        """Wait until the engine was asked so often."""

        async def holds() -> bool:
            return len(self.engine.journal) >= times

        await until(holds)

    async def recorded(self, session_id: str, count: int = 1) -> list[Turn]:
        """Wait until the log has so many turns of a session."""

        async def holds() -> bool:
            return len(await self.turns(session_id)) >= count

        await until(holds)
        return await self.turns(session_id)

    async def told(self, session_id: str, count: int = 1) -> list[TurnUndelivered]:
        """Wait until so many turns of a session are said not to have been delivered."""
        found: list[TurnUndelivered] = []

        async def holds() -> bool:
            events = await self.events(session_id)
            found[:] = [event for event in events if isinstance(event, TurnUndelivered)]
            return len(found) >= count

        await until(holds)
        return found

    async def outcome(self, session_id: str) -> Outcome:
        records: list[Record] = []

        async def closed() -> bool:
            records[:] = await self.records(self.settings.samples_topic, session_id)
            return any(isinstance(record, SessionClosed) for record in records)

        await until(closed)
        turns = {turn.turn_id: turn for turn in await self.turns(session_id)}
        (end,) = [record for record in records if isinstance(record, SessionClosed)]
        samples = [record for record in records if isinstance(record, Sample)]
        return Outcome(turns, whole_prompts(turns), samples, end)


async def until(holds: Callable[[], Awaitable[bool]], *, every_s: float = 0.02) -> None:
    """Wait for something that has to happen."""
    deadline_s = time.monotonic() + SECONDS_MAX
    while not await holds():
        assert time.monotonic() < deadline_s, "it does not happen"
        await asyncio.sleep(every_s)


@contextlib.asynccontextmanager
async def world(
    folder: Path, script: Sequence[Rule] | Script = (), **settings: Any
) -> AsyncIterator[World]:
    """Everything started; everything taken down, and looked at, at the end."""
    path = folder / "log.db"
    given = Settings(log=str(path), gateway_port=0, **{"gateway_drain_timeout_s": 5.0, **settings})
    played = script if isinstance(script, Script) else Script(answers=tuple(script))
    engine = ScriptedEngine(played, qwen3_renderer().backend)
    stop = asyncio.Event()
    async with SqliteLog(path, given) as log:
        processor = EmbeddedProcessor(given, log)
        processing = asyncio.create_task(processor.run(stop))
        made = World(given, Faulty(log), engine)
        made.counts = processor.counts
        try:
            async with served(made):
                yield made
        finally:
            stop.set()
            await processing


@contextlib.asynccontextmanager
async def served(made: World) -> AsyncIterator[None]:
    """The gateway of a world and its clients, while its log is open."""
    with nothing_logged():
        await made.gateway.__aenter__()
        try:
            async with aiohttp.ClientSession() as made.http:
                yield
        finally:
            for agent in made.agents:
                await agent.client.close()
            await made.gateway.__aexit__(None, None, None)
        assert made.gateway.metrics.counts["failures"] == made.failures_expected
        assert made.gateway.publisher.repairing == 0
        assert made.gateway.limits.bytes == 0
        assert made.gateway.gate.running == made.gateway.gate.waiting == 0


@contextlib.contextmanager
def nothing_logged() -> Iterator[None]:
    """Neither the server nor the loop complains of anything."""
    said: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(self.format(record))

    listening = Listening(logging.WARNING)
    loggers = [logging.getLogger(name) for name in ("aiohttp", "asyncio")]
    for logger in loggers:
        logger.addHandler(listening)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(listening)
    assert said == []


Story = Callable[[World], Awaitable[None]]


def play(
    folder: Path,
    story: Story,
    script: Sequence[Rule] | Script = (),
    *,
    seconds_max: float = 2 * SECONDS_MAX,
    **settings: Any,
) -> None:
    """Run a story in a world of its own; it is bounded and leaves no task behind."""

    async def whole() -> None:
        async with asyncio.timeout(seconds_max), world(folder, script, **settings) as made:
            await story(made)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    asyncio.run(whole())


def played(
    *script: Rule, otherwise: Rule | None = None, **settings: Any
) -> Callable[[Story], Callable[[Path], None]]:
    """A test that is a story in a world with these answers."""

    def made(story: Story) -> Callable[[Path], None]:
        def test(tmp_path: Path) -> None:
            play(tmp_path, story, Script(answers=script, otherwise=otherwise), **settings)

        test.__name__ = story.__name__
        return test

    return made
