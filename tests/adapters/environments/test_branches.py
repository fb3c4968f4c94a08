"""A restored state goes on as a branch of the same tree, or in a session that names its origin."""

import copy
import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from streams.adapters.environments import recorded
from tests.adapters.environments.test_model_calls import Model
from tests.adapters.environments.toys import Countdown, Walk, said
from tests.adapters.environments.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def metadata(raw: Any) -> dict[str, Any]:
    held = json.loads(bytes(raw))
    assert isinstance(held, dict)
    return held


def test_two_continuations_of_one_mark_are_two_leaves_of_one_tree(world: World) -> None:
    first = Model()
    talk: list[dict[str, Any]] = [{"role": "user", "content": "begin"}]
    with world.recorder() as recorder:
        inner = Walk(8)
        env = recorded(inner, recorder)
        env.reset()
        call = first.answer(talk)
        env.turn(**call)
        env.step(1)
        mark, at, ids = env.mark(), inner.at, list(first.ids)
        talk += [call["response_message"], {"role": "user", "content": "on"}]
        for word in ("left", "right"):
            first.ids = list(ids)
            env.resume(mark)
            inner.at = at
            env.turn(**first.answer(talk) | {"response_message": said(word)})
            env.step(1)
        env.end(reward={"score": 1.0})
    told = world.only()
    assert [turn.base_turn_id for turn in told.turns] == [None, "t1", "t1"]
    assert told.kinds.count("session_ended") == 1
    reward = told.ended.reward
    assert isinstance(reward, dict)
    (branch,) = reward["branches"]
    assert (branch["turn_id"], branch["return"], branch["steps"]) == ("t2", -2.0, 2)
    outcomes, samples = world.processed(1)
    (outcome,) = outcomes.values()
    assert [row.attach for row in outcome.ledger] == ["root", "extend", "extend"]
    assert (outcome.trained, outcome.generated, len(samples)) == (9, 9, 2)


def test_steps_without_calls_branch_too(world: World) -> None:
    with world.recorder() as recorder:
        env = recorded(Countdown(4), recorder)
        env.reset()
        env.step(1)
        mark, left = env.mark(), env._environment.left
        env.step(2)
        env.step(3)
        env.resume(mark)
        env._environment.left = left
        for action in (4, 5, 6):
            env.step(action)
    told = world.only()
    assert [turn.base_turn_id for turn in told.turns] == [None, "t1", "t2", "t1", "t4", "t5"]
    assert told.ended.end_status == "completed"
    assert told.ended.reward == {
        "score": 4.0,
        "return": 4.0,
        "final_reward": 1.0,
        "steps": 4,
        "branches": [
            {"score": 3.0, "return": 3.0, "final_reward": 1.0, "steps": 3, "turn_id": "t3"}
        ],
    }
    world.processed(1)
    assert world.letters() == []


def test_a_copy_of_an_environment_goes_on_in_a_session_of_its_own(world: World) -> None:
    with world.recorder() as recorder:
        env = recorded(gymnasium.make("FrozenLake-v1", is_slippery=False), recorder)
        env.reset(seed=1)
        env.step(2)
        unused, checkpoint = copy.deepcopy(env), copy.deepcopy(env)
        assert unused.session_id is None
        ours, theirs = env.step(1), checkpoint.step(1)
        assert ours[:2] == theirs[:2]
        env.close()
        checkpoint.close()
        again = copy.deepcopy(recorded(Walk(2)))  # with nothing recorded, a copy is a copy
        again.reset()
        assert again.step(1)[0] == 1
    first, second = world.told().values()
    assert metadata(second.opened.metadata)["branched_from"] == {
        "session_id": first.opened.session_id,
        "turn_id": "t1",
    }
    (turn,) = second.turns
    assert turn.base_turn_id is None
    assert len(turn.prompt_messages) == 3  # what led there, whole
    outcomes, _ = world.processed(2)
    assert [one.turns for one in outcomes.values()] == [2, 1]


def test_a_mark_of_a_session_that_is_over_gives_a_linked_session(world: World) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(3), recorder)
        env.reset()
        env.step(1)
        mark = env.mark()
        env.step(1)
        env.step(1)
        assert env.record.end_status == "completed"
        env.resume(mark)
        env.unwrapped.at = 1
        env.step(1)
        env.step(1)
    first, second = world.told().values()
    assert metadata(second.opened.metadata)["branched_from"]["session_id"] == (
        first.opened.session_id
    )
    assert [len(first.turns), len(second.turns)] == [3, 2]
    assert [one.ended.end_status for one in (first, second)] == ["completed", "completed"]
    reward = second.ended.reward
    assert isinstance(reward, dict)
    assert (reward["return"], reward["steps"]) == (-2.0, 3)  # with what led there
