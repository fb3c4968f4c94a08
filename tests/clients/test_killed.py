"""`kill -9` of the gateway under a real client: its run ends well, what it saw the end of trains.

client ──► recorder ──► gateway, a process ──► scripted engine, here, with its journal
                           └──► log, a file ──► processor, here
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from streams.adapters.engines.scripted import ScriptedEngine
from streams.adapters.engines.scripted.server import application
from streams.log.sqlite import SqliteLog
from streams.processor.embedded import EmbeddedProcessor
from streams.settings import Settings
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.outcomes import journalled, recorded
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.adapters.gateway.world import SECRETS, World
from tests.clients.accounts import Account, delivered
from tests.clients.installing import Programs, wanted
from tests.clients.killed_scenes import SCENES, KilledScene
from tests.clients.scene import Seen, perform
from tests.clients.theatre import PACKAGES, script
from tests.failover.processes import CONTROL_KEY, gateways

SECONDS_MAX = 120.0


@contextlib.asynccontextmanager
async def apart(folder: Path, scene: KilledScene) -> AsyncIterator[World]:
    """A world whose gateways are other processes, one of which can be killed."""
    path = folder / "log.db"
    settings = Settings(
        log=str(path), gateway_secret=SECRETS[0].decode(), gateway_control_key=CONTROL_KEY
    )
    engine = ScriptedEngine(script([scene]), renderer().backend)
    stop = asyncio.Event()
    async with SqliteLog(path, settings) as log, served(engine) as url:
        processing = asyncio.create_task(EmbeddedProcessor(settings, log).run(stop))
        made = World(settings, Faulty(log), engine)
        try:
            with gateways(folder / "gateways", "ab", settings, url) as processes:
                scene.gateway, scene.another = processes
                for process in processes:
                    process.start()
                await asyncio.gather(*(process.listening() for process in processes))
                scene.world, made.gateway.base_url = made, scene.gateway.url
                async with aiohttp.ClientSession() as made.http:
                    yield made
        finally:
            stop.set()
            await processing


@contextlib.asynccontextmanager
async def served(engine: ScriptedEngine) -> AsyncIterator[str]:
    runner = web.AppRunner(application(engine), access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_killed_gateway_costs_the_client_nothing_but_time(
    scene: type[KilledScene], tmp_path: Path, clients: Programs, accounts: dict[str, Account]
) -> None:
    async def whole() -> tuple[Seen, ScriptedEngine]:
        played = scene(tmp_path)
        async with asyncio.timeout(SECONDS_MAX), apart(tmp_path, played) as world:
            return await perform(played, world, clients), world.engine

    seen, engine = asyncio.run(whole())
    outcome = seen.outcome
    sampled = journalled(engine, outcome.closed.session_id)
    assert recorded(outcome) <= sampled
    (cut,) = (sampled - recorded(outcome)).elements()
    assert len(cut[1]) > 0
    given = {turn: count for turn, count in delivered(seen).items() if count}
    assert given == Counter({row.turn_id: row.trained for row in outcome.closed.ledger})
    assert outcome.untrained == {}
    assert outcome.closed.gaps == 0
    name = f"{scene.client} {wanted()[PACKAGES[scene.client]]}, gateway killed"
    turns, trained = len(outcome.turns), outcome.closed.trained
    accounts[name] = Account(
        sessions=1,
        turns=turns,
        sampled=trained + len(cut[1]),
        delivered=sum(given.values()),
        trained=trained,
        untrained=Counter({"cut by the kill": len(cut[1])}),
        samples=len(outcome.samples),
    )
