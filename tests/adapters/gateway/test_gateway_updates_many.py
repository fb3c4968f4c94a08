"""Five weight updates in the middle of turns, over fifty sessions at two gateways of one log."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streams.adapters.engines.scripted import Script
from streams.log.sqlite import SqliteLog
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.updates import LABELS, SCRIPT, TURNS_MIN, UPDATES, updated
from tests.adapters.gateway.world import World, served, world

SESSIONS = 50
SECONDS_MAX = 240.0


@contextlib.asynccontextmanager
async def two(folder: Path, script: Script) -> AsyncIterator[tuple[World, World]]:
    """Two gateways, each with a connection of its own to the log."""
    async with (
        asyncio.timeout(SECONDS_MAX),
        world(folder, script, gateway_weight_version=0) as a,
        SqliteLog(Path(a.settings.log), a.settings) as log,
    ):
        b = World(a.settings, Faulty(log), a.engine)
        async with served(b):
            yield a, b


@pytest.mark.parametrize("script", [SCRIPT, LABELS], ids=["told", "declared"])
def test_no_agent_notices_and_every_token_has_its_version(tmp_path: Path, script: Script) -> None:
    async def story() -> None:
        async with two(tmp_path, script) as (a, b):
            counts = await updated(a, b, SESSIONS)
            assert counts["turns"] >= SESSIONS * TURNS_MIN
            assert {f"changed to {version}" for version in range(1, UPDATES + 1)} <= counts.keys()
            for world in (a, b):
                assert world.gateway.metrics.counts["continued"] >= UPDATES
                assert world.gateway.metrics.counts["answers:200"] == sum(
                    count
                    for name, count in world.gateway.metrics.counts.items()
                    if name.startswith("answers:")
                )

    asyncio.run(story())
