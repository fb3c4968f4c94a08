"""Environments that answer in no protocol's way, and judgers that are given up while they think."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streams.adapters.environments import Recorder, recorded
from streams.adapters.environments.steps import Unreadable
from streams.adapters.judgers.judging import Case, Judging
from tests.adapters.environments.toys import Chat, Walk, said
from tests.adapters.environments.world import World, happens


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class OldWalk(Walk):
    """As the older gym had it: whether it is over is one value."""

    def step(self, action: int) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OldChat(Chat):
    async def step(self, action: dict[str, Any]) -> Any:
        return "an observation alone"


class WordyWalk(Walk):
    def step(self, action: int) -> Any:
        return 1, "good", False, False, {}


@pytest.mark.parametrize(
    ("inner", "kind", "words"),
    [
        (OldWalk(), Unreadable, "a step gave 4 values, where gymnasium's gives 5"),
        (WordyWalk(), ValueError, "could not convert string to float"),
    ],
)
def test_a_step_of_no_protocol_ends_the_episode_as_an_error(
    world: World, inner: Walk, kind: type[Exception], words: str
) -> None:
    with world.recorder() as recorder:
        env = recorded(inner, recorder)
        env.reset()
        with pytest.raises(kind, match=words):
            env.step(1)
    ended = world.only().ended
    assert ended.end_status == "error"
    assert ended.reason is not None
    assert (ended.reason.stage, ended.reason.type) == ("environment", kind.__name__)
    assert words in (ended.reason.message or "")


def test_an_awaited_step_of_no_protocol_ends_the_episode_as_an_error(world: World) -> None:
    async def work(recorder: Recorder) -> None:
        env = recorded(OldChat(), recorder)
        await env.reset()
        with pytest.raises(Unreadable, match="neither a time step nor five values"):
            await env.step(said("on"))

    with world.recorder() as recorder:
        asyncio.run(work(recorder))
    assert world.only().ended.end_status == "error"


def test_a_lenient_recorder_counts_such_a_step_and_gives_it_back(world: World) -> None:
    async def work(recorder: Recorder) -> None:
        env = recorded(OldChat(), recorder)
        await env.reset()
        assert await env.step(said("on")) == "an observation alone"

    with world.recorder(lenient=True) as recorder:
        env = recorded(OldWalk(), recorder)
        env.reset()
        assert env.step(1)[:3] == (1, -1.0, False)
        asyncio.run(work(recorder))
        assert recorder.counts["unrecorded_steps"] == 2


def test_cancelling_while_a_judger_thinks_ends_the_episode_as_cancelled(world: World) -> None:
    asked = asyncio.Event()

    async def ponders(_: Case) -> float:
        asked.set()
        await asyncio.sleep(60)
        return 1.0

    async def work(recorder: Recorder) -> None:
        env = recorded(Chat(turns=1), recorder, judging=Judging(ponders))
        await env.reset()
        task = asyncio.create_task(env.step(said("on")))
        await happens(asked.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with world.recorder() as recorder:
        asyncio.run(asyncio.wait_for(work(recorder), 30))
    told = world.only()
    assert told.kinds.count("session_ended") == 1
    assert told.ended.end_status == "cancelled"
