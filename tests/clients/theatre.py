"""Scenes played at a gateway with everything behind it, and what they add up to.

Invariant: a scene that was played is faithful, and what trains is exactly what the wire says was
delivered.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from streams.adapters.engines.scripted import Rule, Script, ScriptedEngine
from streams.log.kafka import KafkaLog
from streams.settings import Settings
from tests.adapters.gateway import world as embedded
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.adapters.gateway.world import World, served
from tests.clients.accounts import Account, account
from tests.clients.faithful import assert_faithful
from tests.clients.installing import Programs, wanted
from tests.clients.scene import Scene, perform

SECONDS_MAX = 150.0
AT_ONCE_MAX = 6
"""Clients running at one time."""
PACKAGES = {"Claude Code": "@anthropic-ai/claude-code", "Codex": "@openai/codex"}
WINDOW = 26_000
"""The model's; a prompt beyond it is refused, so that clients compact."""


NONE_LEFT = Rule(text="No answer of the scene is left.")


def script(scenes: Sequence[Scene]) -> Script:
    answers = tuple(rule for scene in scenes for rule in scene.rules())
    return Script(answers=answers, otherwise=NONE_LEFT)


async def play_all(scenes: Sequence[Scene], world: World, programs: Programs) -> dict[str, Account]:
    """All of them at once; an account for each client."""
    room = asyncio.Semaphore(AT_ONCE_MAX)
    found: dict[str, Account] = {}

    async def one(scene: Scene) -> None:
        async with room:
            seen = await perform(scene, world, programs)
        answered = [entry.rule for entry in world.engine.journal.of(scene.session_id)]
        assert "otherwise" not in answered, (scene.session_id, answered)
        assert_faithful(seen, world.engine)
        told = account(seen, world.engine)
        assert told.trained == told.delivered, (scene.session_id, told, seen.outcome.untrained)
        assert told.trained + told.untrained.total() == told.sampled, (scene.session_id, told)
        statuses = {one.status for one in seen.wire.exchanges if one.fault is None}
        assert statuses == {200}, (scene.session_id, statuses)
        name = f"{scene.client} {wanted()[PACKAGES[scene.client]]}"
        found.setdefault(name, Account()).add(told)

    ends = await asyncio.gather(*(one(scene) for scene in scenes), return_exceptions=True)
    failed = {scene: end for scene, end in zip(scenes, ends, strict=True) if end is not None}
    if len(failed) == 1:
        raise next(iter(failed.values()))
    assert not failed, "\n".join(f"{scene.session_id}: {end!r}" for scene, end in failed.items())
    return found


def played_embedded(
    scenes: Sequence[Scene], folder: Path, programs: Programs
) -> dict[str, Account]:
    """In one process, over a file."""

    async def whole() -> dict[str, Account]:
        async with (
            asyncio.timeout(SECONDS_MAX),
            embedded.world(folder, script(scenes), gateway_context_tokens=WINDOW) as world,
        ):
            return await play_all(scenes, world, programs)

    return asyncio.run(whole())


def played_on_kafka(
    scenes: Sequence[Scene], settings: Settings, programs: Programs
) -> dict[str, Account]:
    """Over a broker; the processors are somebody else's processes."""

    async def whole() -> dict[str, Account]:
        async with asyncio.timeout(SECONDS_MAX), _on_kafka(settings, script(scenes)) as world:
            return await play_all(scenes, world, programs)

    return asyncio.run(whole())


@contextlib.asynccontextmanager
async def _on_kafka(settings: Settings, answers: Script) -> AsyncIterator[World]:
    given = dataclasses.replace(
        settings, gateway_port=0, gateway_drain_timeout_s=10.0, gateway_context_tokens=WINDOW
    )
    engine = ScriptedEngine(answers, renderer().backend)
    async with KafkaLog(given) as log:
        made = World(given, Faulty(log), engine)
        async with served(made):
            yield made
