"""Same protocol in, same protocol out: whatever is wrapped gives what it gives unwrapped."""

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import dm_env
import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from streams.adapters.environments import NULL, RecordedAsync, current, recorded, tell_turn
from streams.adapters.environments.dm import RecordedDm
from streams.adapters.environments.gym import RecordedGym
from tests.adapters.environments.toys import Chat, Countdown, Walk, said
from tests.adapters.environments.world import World


def played(env: Any, seed: int, steps: int) -> list[Any]:
    """Everything that a gymnasium environment gave under one seed, resets included."""
    env.action_space.seed(seed)
    given = [env.reset(seed=seed)]
    for _ in range(steps):
        result = env.step(env.action_space.sample())
        given.append(result)
        if result[2] or result[3]:
            given.append(env.reset())
    return given


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CartPole-v1", "Taxi-v4"])
@pytest.mark.parametrize("records", [True, False])
def test_gymnasium_gives_the_same_wrapped_and_unwrapped(
    tmp_path: Path, name: str, records: bool
) -> None:
    world = World(tmp_path)
    with world.recorder() as recorder, gymnasium.make(name) as bare:
        wrapped = recorded(gymnasium.make(name), recorder if records else NULL)
        expected, given = played(bare, 7, 60), played(wrapped, 7, 60)
        wrapped.close()
    for ours, theirs in zip(given, expected, strict=True):
        np.testing.assert_equal(ours, theirs)
        assert [type(one) for one in ours] == [type(one) for one in theirs]
    assert isinstance(wrapped, gymnasium.Wrapper)
    assert wrapped.observation_space == bare.observation_space
    assert wrapped.spec is not None
    if records:
        told = world.told()
        assert sum(len(one.turns) for one in told.values()) == 60
        assert {one.ended.end_status for one in told.values()} <= {
            "completed",
            "truncated",
            "closed",
        }


def test_dm_env_gives_the_same_objects_wrapped_and_unwrapped(tmp_path: Path) -> None:
    world, bare = World(tmp_path), Countdown()
    with world.recorder() as recorder:
        wrapped = recorded(Countdown(), recorder)
        given = [wrapped.reset(), *(wrapped.step(1) for _ in range(8))]
        assert wrapped.colour == "red"  # what else it has
    expected = [bare.reset(), *(bare.step(1) for _ in range(8))]
    for ours, theirs in zip(given, expected, strict=True):
        np.testing.assert_equal(tuple(ours), tuple(theirs))
        assert isinstance(ours, dm_env.TimeStep)
    assert isinstance(wrapped, dm_env.Environment)
    assert wrapped.action_spec() == bare.action_spec()
    assert wrapped.observation_spec() == bare.observation_spec()
    assert wrapped.discount_spec() == bare.discount_spec()
    assert wrapped.reward_spec() == bare.reward_spec()


def test_an_awaited_environment_gives_the_same_objects(tmp_path: Path) -> None:
    world, inner = World(tmp_path), Chat()

    async def work() -> None:
        async with recorded(inner, recorder) as env:
            step = await env.reset()
            assert step.observation is inner.history
            while not step.last():
                step = await env.step(said("on"))
                assert step.observation is inner.history
            assert env.turns == 3  # what else it has
        assert (inner.entered, inner.closed) == (1, 1)

    with world.recorder() as recorder:
        asyncio.run(work())
    assert world.only().kinds == ["session_opened", "turn", "turn", "turn", "session_ended"]


class Tuples:
    """Awaited, with gymnasium's tuples."""

    async def reset(self, *, seed: int) -> tuple[int, dict[str, Any]]:
        return seed, {"why": "asked"}

    async def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return action, 1.0, False, action > 1, {}


def test_an_awaited_environment_may_give_gymnasiums_tuples(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def work() -> None:
        env = recorded(Tuples(), recorder)
        assert await env.reset(seed=5) == (5, {"why": "asked"})
        assert await env.step(1) == (1, 1.0, False, False, {})
        await env.step(2)
        await env.close()  # it has none of its own

    with world.recorder() as recorder:
        asyncio.run(work())
    ended = world.only().ended
    assert (ended.end_status, ended.reward) == (
        "truncated",
        {"score": 2.0, "return": 2.0, "final_reward": 1.0, "steps": 2},
    )


def test_without_a_recorder_the_methods_are_the_environments_own(tmp_path: Path) -> None:
    threads = threading.active_count()
    inner, countdown, chat = Walk(), Countdown(), Chat()
    walk: RecordedGym = recorded(inner)
    count: RecordedDm = recorded(countdown)
    talk: RecordedAsync = recorded(chat)
    assert (walk.step, walk.reset, walk.close) == (inner.step, inner.reset, inner.close)
    assert (count.step, count.reset) == (countdown.step, countdown.reset)
    assert (talk.step, talk.reset) == (chat.step, chat.reset)
    with walk as env:
        env.reset()
        env.step(1)
        assert env.turn(prompt_messages=[], prompt_ids=[], output_ids=[]) is None
        assert (env.record, env.session_id, env.mark()) == (None, None, None)
        env.end("rejected")
    assert inner.closed == 1
    assert current() is None
    assert tell_turn(prompt_messages=[], prompt_ids=[1], output_ids=[2]) is None
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []


def test_a_recorder_that_is_not_used_opens_nothing(tmp_path: Path) -> None:
    threads = threading.active_count()
    with World(tmp_path).recorder() as recorder:
        recorded(Walk(), recorder)
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []


def test_environments_of_a_vector_are_wrapped_one_by_one(tmp_path: Path) -> None:
    world = World(tmp_path)

    def made(length: int) -> Any:
        return recorded(Walk(length), recorder, fields={"task_id": f"w{length}"})

    with world.recorder() as recorder:
        vector = gymnasium.vector.SyncVectorEnv([partial(made, length) for length in (2, 3)])
        vector.reset(seed=1)
        for _ in range(6):
            vector.step(np.array([1, 1]))
        vector.close()
    lengths: dict[str | None, list[tuple[int, str]]] = {}
    for one in world.told().values():
        end = len(one.turns), one.ended.end_status
        lengths.setdefault(one.opened.task_id, []).append(end)
    # A vector resets in the step after the last: six steps are two, a reset, two, a reset.
    assert lengths == {
        "w2": [(2, "completed"), (2, "completed"), (0, "closed")],
        "w3": [(3, "completed"), (2, "closed")],
    }


def test_it_goes_under_and_over_other_wrappers(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.recorder() as recorder:
        env = TimeLimit(recorded(Walk(8), recorder), 3)
        env.reset()
        assert [env.step(1)[3] for _ in range(3)] == [False, False, True]
        env.reset()  # the cut was outside of what is recorded
        env.close()
    first, second = world.told().values()
    assert (first.ended.end_status, second.ended.end_status) == ("interrupted", "closed")


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(TypeError, match="object: neither gymnasium's, dm_env's nor"):
        recorded(object())
    with pytest.raises(TypeError, match="grupp_id: not a field of session_opened"):
        recorded(Walk(), fields={"grupp_id": "g"})
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        recorded(Walk(), feilds={})
    with pytest.raises(ValueError, match="step_timeout_s=0: give seconds above 0"):
        recorded(Chat(), step_timeout_s=0)
