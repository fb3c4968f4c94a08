"""Every wait has a limit: for an environment that hangs, for an episode, for a log that hangs."""

import asyncio
import time
from pathlib import Path

import pytest

from streams.adapters.environments import MustReset, NotRecorded, Recorder, TookTooLong, recorded
from tests.adapters.environments.toys import Chat, Walk, said
from tests.adapters.environments.world import SECONDS_MAX, World, happens, until


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("limits", [{"step_timeout_s": 0.3}, {"episode_timeout_s": 0.5}])
def test_an_awaited_environment_that_hangs_ends_as_timeout_and_its_neighbour_goes_on(
    world: World, limits: dict[str, float]
) -> None:
    inner = Chat(turns=3)

    async def hung(recorder: Recorder) -> None:
        env = recorded(inner, recorder, **limits)
        await env.reset()
        await env.step(said("on"))
        inner.slow_s = 5.0
        with pytest.raises(TookTooLong, match="step gave no answer in 0"):
            await env.step(said("on"))
        assert not inner.stuck
        with pytest.raises(MustReset):
            await env.step(said("on"))

    async def well(recorder: Recorder) -> None:
        env = recorded(Chat(turns=3), recorder)
        step = await env.reset()
        while not step.last():
            step = await env.step(said("on"))

    async def work() -> None:
        with world.recorder() as recorder:
            await asyncio.gather(hung(recorder), well(recorder))

    asyncio.run(asyncio.wait_for(work(), SECONDS_MAX))
    told = sorted(world.told().values(), key=lambda one: one.ended.end_status)
    assert [(one.ended.end_status, len(one.turns)) for one in told] == [
        ("completed", 3),
        ("timeout", 1),
    ]
    reason = told[1].ended.reason
    assert reason is not None
    assert "0." in (reason.message or "")
    assert reason.category == "timeout"
    outcomes, _ = world.processed(2)
    assert {one.end_status for one in outcomes.values()} == {"completed", "timeout"}


def test_a_limit_of_the_environments_own_is_an_error_of_the_environment(world: World) -> None:
    class Impatient(Chat):
        async def step(self, action: object) -> object:
            raise TimeoutError("its own")

    async def work(recorder: Recorder) -> None:
        env = recorded(Impatient(), recorder, step_timeout_s=30.0)
        await env.reset()
        with pytest.raises(TimeoutError, match="its own"):
            await env.step(said("on"))

    with world.recorder() as recorder:
        asyncio.run(work(recorder))
    assert world.only().ended.end_status == "error"


def test_a_blocking_episode_that_takes_too_long_ends_while_it_runs(world: World) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(8), recorder, episode_timeout_s=0.2)
        env.reset()
        env.step(1)
        with pytest.raises(TookTooLong, match="its time is over: reset first"):
            env.step(8)  # takes half a second
        with pytest.raises(MustReset):
            env.step(1)
        env.reset()
        assert env.step(1)[0] == 1
    first, second = world.told().values()
    assert (first.ended.end_status, len(first.turns)) == ("timeout", 1)
    assert first.ended.reason is not None
    assert first.ended.reason.message == "the episode was not over in 0.2 s"
    reward = first.ended.reward
    assert isinstance(reward, dict)
    assert reward["return"] == -1.0  # with what it had: else looping is never penalised
    assert len(second.turns) == 1


def test_an_episode_without_a_score_waits_for_its_judge_also_when_its_time_is_over(
    world: World,
) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(8), recorder, episode_timeout_s=0.2, score=None)
        env.reset()
        with pytest.raises(TookTooLong):
            env.step(8)
    ended = world.only().ended
    assert (ended.end_status, ended.reward, ended.reward_pending) == ("timeout", None, True)


def test_an_episode_that_is_over_in_time_is_not_touched(world: World) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(1), recorder, episode_timeout_s=0.3)
        env.reset()
        env.step(1)
        time.sleep(0.5)
    assert world.only().ended.end_status == "completed"


def test_a_log_that_cannot_be_opened_is_said_in_time(tmp_path: Path) -> None:
    world = World(tmp_path / "not" / "there", request_timeout_s=0.5)
    recorder = world.recorder(patience_s=1.0)
    env = recorded(Walk(1), recorder)
    with pytest.raises(NotRecorded, match=r"has not said|cannot be made"):
        env.reset()
    recorder.close(0.1)


def test_a_reset_that_waits_for_a_log_that_hangs_comes_back(world: World) -> None:
    async def work(recorder: Recorder) -> None:
        env = recorded(Chat(), recorder)
        await env.reset()
        with world.away(), pytest.raises(NotRecorded):
            await env.reset()
        await happens(lambda: recorder.counts["lost"] or recorder.counts["stored"] > 1)

    with world.recorder(patience_s=1.0) as recorder:
        asyncio.run(asyncio.wait_for(work(recorder), SECONDS_MAX))
        world.ended(2)


def test_a_log_that_takes_nothing_is_said_once_each_time(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with world.recorder(patience_s=SECONDS_MAX, lenient=True) as recorder:
        env = recorded(Walk(8), recorder)
        env.reset()
        until(lambda: recorder.counts["stored"], bool)
        for times in (1, 2):
            before = recorder.counts.copy()
            with world.away():
                env.step(1)
                until(lambda: (recorder.counts - before)["retries"] > 1, bool)  # noqa: B023
            until(lambda: recorder.counts["stored"] > times, bool)  # noqa: B023
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2, said
    assert all(line.startswith("turnstream environments: publish to ") for line in said)
    assert all(line.endswith("; trying again") and str(world.path) in line for line in said)


def test_a_hung_log_does_not_keep_a_recorder_from_closing(world: World) -> None:
    recorder = world.recorder(patience_s=SECONDS_MAX, lenient=True)
    env = recorded(Walk(8), recorder)
    env.reset()
    until(lambda: recorder.counts["stored"], bool)
    with world.away():
        env.step(1)
        assert recorder.close(0.2) == 2  # the step and the end
        recorder.close(0.2)
