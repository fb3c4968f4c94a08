"""Many agents side by side in one world, each with a script and a session of its own.

A world costs more than what is said in it. So a module's scenes are played together, once, and
each test tells of one: what one agent does is no other's business, which is shown by it.

Invariant: a scene sees only its own answers, and fails alone.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.agents_kinds import Talker, opened
from tests.adapters.gateway.world import World, play

SECONDS_MAX = 120.0
AT_ONCE = 4
Play = Callable[[World, Any], Awaitable[None]]


Failures = dict[str, BaseException | None]


@dataclass(frozen=True)
class Scene:
    """One agent's story."""

    play: Play
    script: Sequence[Rule]
    kind: str
    stream: bool
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of the session."""


class Stage:
    """The scenes of one module: claims that hold for some kinds of agents, streamed or not."""

    def __init__(self, *kinds: str) -> None:
        self.scenes: dict[str, Scene] = {}
        self._kinds = kinds

    def scene(
        self, *script: Rule, streams: Sequence[bool] = (False, True), **fields: Any
    ) -> Callable[[Play], Play]:
        """A story with these answers, in a session with these fields."""

        def made(play: Play) -> Play:
            for kind, stream in itertools.product(self._kinds, streams):
                way = "stream" if stream else "whole"
                name = f"{getattr(play, '__name__', '')}-{kind}-{way}"
                self.scenes[name] = Scene(play, script, kind, stream, fields)
            return play

        return made


def assert_held(failures: Failures, name: str) -> None:
    """The scene did not fail."""
    failure = failures[name]
    if failure is not None:
        raise failure


def played_together(folder: Path, scenes: Mapping[str, Scene]) -> Failures:
    """Play them all, a few at once; what each failed with."""
    failed: Failures = {}
    ids = {name: f"scene-{number}" for number, name in enumerate(scenes)}
    some = asyncio.Semaphore(AT_ONCE)

    async def one(world: World, name: str, scene: Scene) -> None:
        async with some:
            talker: Talker = await opened(
                world, scene.kind, stream=scene.stream, session_id=ids[name], **scene.fields
            )
            await scene.play(world, talker)

    async def story(world: World) -> None:
        playing = (one(world, name, scene) for name, scene in scenes.items())
        ended = await asyncio.gather(*playing, return_exceptions=True)
        failed.update(zip(scenes, ended, strict=True))

    script = [
        msgspec.structs.replace(rule, routing_key=ids[name])
        for name, scene in scenes.items()
        for rule in scene.script
    ]
    play(folder, story, script, seconds_max=SECONDS_MAX)
    return failed
