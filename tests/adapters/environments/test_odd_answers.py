"""Environments that answer in no protocol's way, and judgers that are given up while they think."""

import asyncio
import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from schemas.checks import score as score_of
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


SCORES: dict[str, tuple[Any, float]] = {
    "float64": (np.float64(0.5), 0.5),
    "float32": (np.float32(0.5), 0.5),
    "float16": (np.float16(0.5), 0.5),
    "longdouble": (np.longdouble(0.5), 0.5),
    "int64": (np.int64(3), 3.0),
    "beyond 64 bits": (10**30, 1e30),
    "bool_": (np.bool_(True), 1.0),
    "bool": (True, 1.0),
    "an array without dimensions": (np.array(0.5), 0.5),
    "an array of one": (np.array([0.5], np.float32), 0.5),
    "a fraction": (Fraction(1, 2), 0.5),
    "a decimal": (Decimal("0.5"), 0.5),
    "in a payload": ({"score": np.float32(0.5), "terms": np.arange(2), "nan": np.nan}, 0.5),
    "in a mapping that is no dict": (MappingProxyType({"score": np.longdouble(0.5)}), 0.5),
}
INVALID = [math.nan, np.float64("nan"), np.inf, 10**400, np.ma.masked, {"score": np.nan}]


@pytest.mark.parametrize(("score", "number"), SCORES.values(), ids=SCORES)
def test_a_score_of_any_kind_of_number_is_the_reward(
    world: World, score: Any, number: float
) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(1), recorder, score=lambda _: score)
        env.reset()
        env.step(1)
    ended = world.only().ended
    assert ended.end_status == "completed"
    assert isinstance(ended.reward, dict)
    assert (ended.reward["score"], ended.reward_invalid) == (number, False)
    if isinstance(score, dict):
        assert (ended.reward["terms"], ended.reward["nan"]) == ([0, 1], None)
        assert ended.reward["not_finite"] == ["nan"]


@pytest.mark.parametrize("reward", SCORES, ids=SCORES)
def test_numbers_of_any_kind_are_rewards_of_a_turn_and_of_an_end(world: World, reward: str) -> None:
    given, number = SCORES[reward]
    with world.recorder() as recorder:
        env = recorded(Walk(1), recorder)
        env.reset()
        env.turn(prompt_messages=["go"], prompt_ids=[1], output_ids=[2], reward=given)
        env.end("completed", reward=given)
    told = world.only()
    (turn,) = told.turns
    assert told.ended.end_status == "completed"
    assert (score_of(turn.reward), score_of(told.ended.reward)) == (number, number)


class Pays(Walk):
    """Its steps are worth what it is told."""

    def __init__(self, reward: Any) -> None:
        super().__init__(1)
        self.reward = reward

    def step(self, action: int) -> Any:
        observation, _, *rest = super().step(action)
        return (observation, self.reward, *rest)


@pytest.mark.parametrize(
    ("reward", "number"),
    [
        (np.longdouble(0.5), 0.5),
        (np.bool_(True), 1.0),
        (10**30, 1e30),
        (10**400, None),
        (np.ma.masked, None),
        (np.ma.array([0.5, 1.0], mask=[False, True]), None),
    ],
)
def test_a_step_pays_in_numbers_of_any_kind(world: World, reward: Any, number: float) -> None:
    with world.recorder() as recorder:
        env = recorded(Pays(reward), recorder)
        env.reset()
        env.step(1)
    ended = world.only().ended
    assert (ended.end_status, ended.reward_invalid) == ("completed", number is None)
    assert score_of(ended.reward) == number


@pytest.mark.parametrize("score", INVALID)
def test_a_score_that_is_not_finite_is_an_invalid_reward_of_a_whole_episode(
    world: World, score: Any
) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(1), recorder, score=lambda _: score)
        env.reset()
        env.step(1)
    ended = world.only().ended
    assert (ended.end_status, ended.reward, ended.reward_invalid) == ("completed", None, True)


@pytest.mark.parametrize("score", ["0.5", [0.5], np.array([0.5, 1.0]), {"points": 1}, 1j])
def test_a_score_that_is_no_number_ends_the_episode_in_words(world: World, score: Any) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(1), recorder, score=lambda _: score)
        env.reset()
        env.step(1)
    ended = world.only().ended
    assert (ended.end_status, ended.reward) == ("error", None)
    assert ended.reason is not None
    assert "needs a number" in (ended.reason.message or "") or "1j" in (ended.reason.message or "")


def test_numbers_of_numpy_may_stand_in_every_field(world: World) -> None:
    one = np.int64(1)
    fields = {
        "group_id": "g",
        "group_size": one,
        "rollout_index": np.int32(0),
        "step": one,
        "metadata": {"level": np.float32(0.5), "seen": np.arange(2), 3: one},
    }
    with world.recorder() as recorder:
        env = recorded(Walk(1), recorder, fields=fields)
        env.reset()
        env.turn(
            prompt_messages=["go"],
            prompt_ids=np.array([1, 2]),
            output_ids=[np.int64(3), np.int64(4)],
            response_message="right",
            weight_versions=[(np.int64(7), np.int64(2))],
            untrained_runs=[(np.int64(0), one, "forced")],
            sampling={"temperature": np.float32(0.5)},
            trainable=np.bool_(True),
            started_ms=np.int64(5),
            reward=np.float32(0.25),
        )
        env.step(1)
    told = world.only()
    assert (told.opened.group_size, told.opened.rollout_index, told.opened.step) == (1, 0, 1)
    assert json.loads(bytes(told.opened.metadata)) == {"level": 0.5, "seen": [0, 1], "3": 1}
    (turn, *_) = told.turns
    assert (turn.weight_versions, turn.untrained_runs) == ([(7, 2)], [(0, 1, "forced")])
    assert turn.sampling is not None
    assert (turn.sampling.temperature, turn.trainable, turn.reward) == (0.5, True, 0.25)


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
