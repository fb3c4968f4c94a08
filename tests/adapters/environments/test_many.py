"""Many environments at once with one recorder, in threads, tasks and processes."""

import asyncio
import json
import os
import pickle
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from streams.adapters.environments import Recorder, recorded
from streams.settings import Settings
from tests.adapters.environments.test_model_calls import read
from tests.adapters.environments.toys import Chat, ToyError, Walk, said
from tests.adapters.environments.world import SECONDS_MAX, Told, World

COUNT = 50


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def spoken(told: Told) -> set[str]:
    """What was said in a session."""
    words = [json.loads(bytes(turn.response_message))["content"] for turn in told.turns]
    seen = [message["content"] for turn in told.turns for message in read(turn.prompt_messages)]
    return {word for word in [*words, *seen] if word.startswith("env")}


def test_fifty_awaited_environments_do_not_mix(world: World) -> None:
    async def one(recorder: Recorder, number: int) -> None:
        async with recorded(Chat(turns=4), recorder, fields={"task_id": f"env{number}"}) as env:
            step = await env.reset()
            while not step.last():
                step = await env.step(said(f"env{number}"))

    async def work() -> None:
        with world.recorder() as recorder:
            await asyncio.gather(*(one(recorder, number) for number in range(COUNT)))

    asyncio.run(asyncio.wait_for(work(), SECONDS_MAX))
    told = world.told()
    assert len(told) == COUNT
    for one_told in told.values():
        assert spoken(one_told) == {one_told.opened.task_id}
        assert [turn.seq for turn in one_told.turns] == [1, 2, 3, 4]
        assert one_told.ended.end_status == "completed"
    outcomes, _ = world.processed(COUNT)
    assert {(one.turns, one.gaps, one.refused) for one in outcomes.values()} == {(4, 0, 0)}
    assert world.letters() == []


def test_fifty_environments_in_threads_do_not_mix(world: World) -> None:
    def one(recorder: Recorder, number: int) -> None:
        name = f"env{number}"
        own = {"fields": {"task_id": name}, "action": lambda _: [said(name)]}
        with recorded(Walk(4), recorder, **own) as env:
            env.reset()
            for _ in range(4):
                env.step(1)

    with world.recorder() as recorder, ThreadPoolExecutor(COUNT) as pool:
        for done in [pool.submit(one, recorder, number) for number in range(COUNT)]:
            done.result(SECONDS_MAX)
    told = world.told()
    assert len(told) == COUNT
    for one_told in told.values():
        assert spoken(one_told) == {one_told.opened.task_id}
        assert len(one_told.turns) == 4
        reward = one_told.ended.reward
        assert isinstance(reward, dict)
        assert reward["return"] == -3.0


def make(recorder: Recorder, number: int) -> Any:
    return recorded(Walk(3), recorder, fields={"task_id": f"env{number}"})


def test_environments_of_a_vector_in_processes_have_sources_of_their_own(world: World) -> None:
    with world.recorder() as recorder:
        vector = gymnasium.vector.AsyncVectorEnv(
            [partial(make, recorder, number) for number in range(2)], context="spawn"
        )
        vector.reset(seed=1)
        for _ in range(3):
            vector.step(np.array([1, 1]))
        vector.close()
    told = world.told()
    assert {one.opened.task_id for one in told.values()} == {"env0", "env1"}
    assert {one.ended.end_status for one in told.values()} == {"completed"}
    assert len({one.turns[0].source for one in told.values()}) == 2


def in_a_fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_records_under_a_source_of_its_own(world: World) -> None:
    with world.recorder() as recorder:
        ours = recorded(Walk(3), recorder)
        ours.reset()
        ours.step(1)

        def child() -> None:
            assert ours.step(1)[0] == 2  # its parent's episode: it runs, and is not recorded
            env = recorded(Walk(1), recorder)
            env.reset()
            env.step(1)
            recorder.close()

        assert in_a_fork(child) == 0
        ours.step(1)
        ours.step(1)
    first, second = world.told().values()
    assert first.turns[0].source != second.turns[0].source
    assert [turn.seq for turn in first.turns] == [1, 2, 3]
    assert [one.ended.end_status for one in (first, second)] == ["completed", "completed"]


def test_a_recorder_that_was_pickled_records_in_the_same_place(tmp_path: Path) -> None:
    settings = Settings(log=str(tmp_path / "log.db"))
    with Recorder(settings, lenient=True, patience_s=3.0) as recorder:
        other = pickle.loads(pickle.dumps(recorder))
        assert (other.settings, other.lenient, other.patience_s) == (settings, True, 3.0)
        assert other.source != recorder.source
        other.close()


def test_forty_two_sessions_that_mostly_fail_are_forty_two_records(world: World) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(2), recorder, fields=lambda number: {"rollout_index": number})
        for number in range(42):
            env.reset()
            if number % 7 == 0:
                env.step(1)
                env.step(1)
            elif number % 7 == 1:
                with pytest.raises(ToyError):
                    env.step(9)
            else:
                env.step(1)
                env.end("parse_error", reward=0.0, message="no call in it")
    outcomes, _ = world.processed(42)
    assert len(outcomes) == 42
    statuses = Counter(one.end_status for one in outcomes.values())
    assert statuses == {"completed": 6, "error": 6, "parse_error": 30}
    assert [one.rollout_index for one in outcomes.values()] == list(range(42))


def test_a_second_attempt_takes_the_slot_of_the_first(world: World) -> None:
    def fields(number: int) -> dict[str, Any]:
        return {"group_id": "g", "group_size": 1, "rollout_index": 0, "attempt": number}

    call = {"prompt_messages": [said("x")], "prompt_ids": [1], "output_ids": [2]}
    with world.recorder() as recorder:
        env = recorded(Walk(1), recorder, fields=fields)
        env.reset()
        env.turn(**call)
        env.end("error", will_retry=True, retryable=True)
        env.reset()
        env.turn(**call)
        env.step(1)
    outcomes, samples = world.processed(2)
    first, second = outcomes.values()
    assert (first.will_retry, first.sample_ids, first.attempt) == (True, [], 0)
    assert (second.will_retry, len(second.sample_ids), second.attempt) == (False, 1, 1)
    assert {one.rollout_index for one in outcomes.values()} == {0}
    assert [sample.attempt for sample in samples] == [1]


def test_the_end_of_one_session_leaves_the_other_as_it_is(world: World) -> None:
    with world.recorder() as recorder:
        first, second = recorded(Walk(2), recorder), recorded(Walk(3), recorder)
        for env in (first, second):
            env.reset()
            env.step(1)
        first.step(1)
        outcomes, _ = world.processed(1)
        assert outcomes.keys() == {first.session_id}
        # The next processor has only the table that the first one left.
        second.step(1)
        second.step(1)
        outcomes, _ = world.processed(1)
    assert [(one.end_status, one.turns) for one in outcomes.values()] == [
        ("completed", 2),
        ("completed", 3),
    ]
    assert world.letters() == []
