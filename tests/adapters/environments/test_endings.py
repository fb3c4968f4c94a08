"""How an episode ends: each way once, with the status and the reason that belong to it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymnasium.wrappers import TimeLimit

from schemas.bad_record import BadRecord
from streams.adapters.environments import MustReset, Recorder, recorded
from tests.adapters.environments.toys import Chat, Countdown, ToyError, Walk, said
from tests.adapters.environments.world import World, happens


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_environments_own_end_is_completed_with_return_and_final_reward(world: World) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(8), recorder)
        env.reset()
        for _ in range(8):
            env.step(1)
        env.close()
    told = world.only()
    assert told.kinds == ["session_opened", *["turn"] * 8, "session_ended"]
    assert told.ended.end_status == "completed"
    assert told.ended.reward == {
        "score": -7.0,
        "return": -7.0,
        "final_reward": 0.0,
        "steps": 8,
        "metrics": {"at": 8},
    }
    assert [turn.reward for turn in told.turns] == [-1.0] * 7 + [0.0]
    assert told.ended.turns == {told.turns[0].source: 8}
    assert [turn.seq for turn in told.turns] == list(range(1, 9))
    outcomes, samples = world.processed(1)
    (outcome,) = outcomes.values()
    assert (outcome.reward, outcome.turns, outcome.gaps, outcome.refused) == (-7.0, 8, 0, 0)
    assert [row.attach for row in outcome.ledger] == ["root", *["extend"] * 7]
    assert samples == []  # no step drew a token


@pytest.mark.parametrize(("score", "worth"), [("final", 0.0), ("return", -2.0)])
def test_the_score_is_the_return_or_the_final_reward(
    world: World, score: str, worth: float
) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(3), recorder, score=score)
        env.reset()
        for _ in range(3):
            env.step(1)
    reward = world.only().ended.reward
    assert isinstance(reward, dict)
    assert (reward["score"], reward["return"], reward["final_reward"]) == (worth, -2.0, 0.0)


def test_a_limit_of_steps_is_truncated_unless_the_end_is_reached_exactly_there(
    world: World,
) -> None:
    with world.recorder() as recorder:
        for length in (8, 3):
            env = recorded(TimeLimit(Walk(length), 3), recorder)
            env.reset()
            results = [env.step(1) for _ in range(3)]
            assert results[-1][3]
            env.close()
    cut, reached = world.told().values()
    assert (cut.ended.end_status, reached.ended.end_status) == ("truncated", "completed")


@pytest.mark.parametrize(("discount", "status"), [(0.0, "completed"), (0.9, "truncated")])
def test_a_last_step_with_a_discount_above_0_is_truncated(
    world: World, discount: float, status: str
) -> None:
    with world.recorder() as recorder:
        env = recorded(Countdown(2, discount), recorder)
        env.reset()
        env.step(1)
        env.step(1)
    assert world.only().ended.end_status == status


def test_the_first_step_has_no_action_reward_or_discount(world: World) -> None:
    with world.recorder() as recorder:
        env = recorded(Countdown(2), recorder)
        first = env.reset()
        assert (first.reward, first.discount) == (0.0, 1.0)  # as the environment has it
        env.step(1)
        record = env.record
        assert (env.step(1).last(), env.step(1).first()) == (True, True)  # it begins by itself
    assert record.steps[0].kind == "first"
    assert (record.steps[0].action, record.steps[0].reward, record.steps[0].discount) == (
        None,
        None,
        None,
    )
    assert (record.steps[1].reward, record.steps[1].discount) == (1.0, 1.0)
    done, begun = world.told().values()
    assert done.ended.reward == {"score": 2.0, "return": 2.0, "final_reward": 1.0, "steps": 2}
    assert begun.kinds == ["session_opened", "session_ended"]  # closed with the recorder


def test_a_reset_in_between_is_interrupted_and_another_session(world: World) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(8), recorder)
        env.reset()
        env.step(1)
        first = env.session_id
        env.reset()
        second = env.session_id
        env.step(1)
        env.close()
    told = world.told()
    assert list(told) == [first, second]
    assert first != second
    assert [one.ended.end_status for one in told.values()] == ["interrupted", "closed"]
    assert [len(one.turns) for one in told.values()] == [1, 1]
    outcomes, _ = world.processed(2)
    assert [outcomes[name].withheld for name in told] == ["status", "status"]


def failing_steps(env: Any) -> None:
    env.reset()
    env.step(1)
    env.step(9)


def failing_reset(env: Any) -> None:
    env.unwrapped.fails_on_reset = True
    env.reset()


@pytest.mark.parametrize(("run", "turns"), [(failing_steps, 1), (failing_reset, 0)])
def test_a_step_or_reset_that_raises_is_an_error_with_its_type_and_text(
    world: World, run: Callable[[Any], None], turns: int
) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(), recorder, fields={"group_id": "g", "task_id": "t"})
        with pytest.raises(ToyError) as caught:
            run(env)
        assert getattr(caught.value, "__notes__", []) == []
        env.close()
    told = world.only()
    reason = told.ended.reason
    assert reason is not None
    assert (told.ended.end_status, len(told.turns)) == ("error", turns)
    assert (reason.stage, reason.type, reason.message) == (
        "environment",
        "ToyError",
        str(caught.value),
    )
    outcomes, _ = world.processed(1)
    (outcome,) = outcomes.values()
    assert (outcome.end_status, outcome.group_id, outcome.task_id) == ("error", "g", "t")
    assert outcome.turns == turns


def test_after_an_error_only_a_reset_helps(world: World) -> None:
    inner = Walk()
    with world.recorder() as recorder:
        env = recorded(inner, recorder)
        env.reset()
        with pytest.raises(ToyError):
            env.step(9)
        with pytest.raises(MustReset, match="ToyError: the floor gave way"):
            env.step(1)
        assert inner.at == 0  # it was not asked
        env.reset()
        env.step(1)
        env.close()
    first, second = world.told().values()
    assert (first.ended.end_status, len(first.turns)) == ("error", 0)
    assert (second.ended.end_status, len(second.turns)) == ("closed", 1)


def test_a_lenient_recorder_lets_steps_after_an_error_pass_and_counts_them(world: World) -> None:
    with world.recorder(lenient=True) as recorder:
        env = recorded(Walk(), recorder)
        env.reset()
        with pytest.raises(ToyError):
            env.step(9)
        assert env.step(1)[0] == 1
        assert recorder.counts["unrecorded_steps"] == 1
    assert world.only().kinds == ["session_opened", "session_ended"]


def test_a_block_that_is_left_by_an_error_is_one_and_the_error_goes_on(world: World) -> None:
    inner = Walk()

    def leaves(env: Any, error: BaseException) -> None:
        with env:
            env.reset()
            raise error

    with world.recorder() as recorder:
        with pytest.raises(KeyError, match="lost"):
            leaves(recorded(inner, recorder), KeyError("lost"))
        with pytest.raises(KeyboardInterrupt):
            leaves(recorded(Countdown(), recorder), KeyboardInterrupt())
        with recorded(Walk(), recorder) as env:
            env.reset()
    assert inner.closed == 1
    error, interrupted, closed = world.told().values()
    assert (error.ended.end_status, interrupted.ended.end_status, closed.ended.end_status) == (
        "error",
        "cancelled",
        "closed",
    )
    assert error.ended.reason is not None
    assert (error.ended.reason.stage, error.ended.reason.type) == ("agent", "KeyError")


def test_an_async_block_that_raises_is_an_error_and_the_error_goes_on(world: World) -> None:
    inner = Chat()

    async def work(recorder: Recorder) -> None:
        async with recorded(inner, recorder) as env:
            await env.reset()
            await env.step(said("on"))
            raise KeyError("lost")

    with world.recorder() as recorder, pytest.raises(KeyError, match="lost"):
        asyncio.run(work(recorder))
    ended = world.only().ended
    assert (ended.end_status, ended.reason and ended.reason.type) == ("error", "KeyError")
    assert inner.closed == 1


@pytest.mark.parametrize("where", ["step", "reset"])
def test_an_awaited_step_or_reset_that_raises_is_an_error(world: World, where: str) -> None:
    async def work(recorder: Recorder) -> None:
        env = recorded(Chat(fails=where), recorder)
        await env.reset()
        await env.step(said("on"))

    with world.recorder() as recorder, pytest.raises(ToyError):
        asyncio.run(work(recorder))
    assert world.only().ended.end_status == "error"


def test_cancelling_ends_the_episode_and_the_task_and_frees_the_environment(world: World) -> None:
    inner = Chat(slow_s=60.0)

    async def work(recorder: Recorder) -> None:
        env = recorded(inner, recorder)
        await env.reset()
        task = asyncio.create_task(env.step(said("on")))
        await happens(lambda: inner.stuck)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert not inner.stuck
        await env.close()

    with world.recorder() as recorder:
        asyncio.run(asyncio.wait_for(work(recorder), 30))
    ended = world.only().ended
    assert ended.end_status == "cancelled"
    assert ended.reason is not None
    assert ended.reason.type == "CancelledError"


def finish(env: Any) -> None:
    for _ in range(2):
        env.step(1)


def leave(env: Any) -> None:
    env.__exit__(None, None, None)


def leave_badly(env: Any) -> None:
    env.__exit__(ToyError, ToyError("late"), None)


ORDERS: dict[str, list[Callable[[Any], Any]]] = {
    "close after the last step": [finish, lambda env: env.close()],
    "close twice": [lambda env: env.close(), lambda env: env.close()],
    "leave after close": [lambda env: env.close(), leave],
    "leave after the last step": [finish, leave],
    "leave twice": [leave, leave],
    "a raise after the last step": [finish, leave_badly],
    "a raise after close": [lambda env: env.close(), leave_badly],
    "end, then the last step": [lambda env: env.end("parse_error", reward=0.0), finish],
    "end twice": [lambda env: env.end("rejected"), lambda env: env.end("completed", reward=1.0)],
}


@pytest.mark.parametrize("orders", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("kind", [Walk, Countdown])
def test_there_is_exactly_one_end(
    world: World, orders: list[Callable[[Any], Any]], kind: Any
) -> None:
    with world.recorder() as recorder:
        env = recorded(kind(2), recorder)
        env.reset()
        for what in orders:
            what(env)
    assert world.only().kinds.count("session_ended") == 1
    outcomes, _ = world.processed(1)
    (outcome,) = outcomes.values()
    assert (outcome.ignored, outcome.duplicates) == (0, 0)


def test_what_the_caller_says_of_the_end_stands(world: World) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(), recorder)
        env.reset()
        env.end(
            "parse_error",
            reward={"score": 0.25, "why": "half a call"},
            finish_reason="content_filter",
            final_message="I cannot",
            stage="agent",
            category="parse",
            message="x" * 5000,
            retryable=True,
        )
    ended = world.only().ended
    assert (ended.end_status, ended.finish_reason) == ("parse_error", "content_filter")
    assert ended.reward == {"score": 0.25, "why": "half a call"}
    assert bytes(ended.final_message) == b'{"role":"assistant","content":"I cannot"}'
    assert ended.reason is not None
    assert (ended.reason.category, ended.reason.retryable) == ("parse", True)
    assert len(ended.reason.message or "") == 1000


def test_an_end_before_the_first_turn_is_a_record_without_a_sample(world: World) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(), recorder)
        env.reset()
        env.end("truncated", reward=0.0, finish_reason="context_overflow")
    outcomes, samples = world.processed(1)
    (outcome,) = outcomes.values()
    assert (outcome.end_status, outcome.turns, samples) == ("truncated", 0, [])


def test_a_reward_that_is_no_number_is_said_to_be_none(world: World) -> None:
    class Odd(Walk):
        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            return 1, float("nan"), True, False, {"loss": float("inf"), "n": 3}

    with world.recorder() as recorder:
        env = recorded(Odd(), recorder)
        env.reset()
        env.step(1)
    told = world.only()
    assert (told.ended.reward, told.ended.reward_invalid) == (None, True)
    assert (told.turns[0].reward, told.turns[0].reward_invalid) == (None, True)


def test_a_score_of_ones_own_that_fails_is_an_error_of_the_judger(world: World) -> None:
    def broken(_: object) -> dict[str, Any]:
        return {"points": 3}

    with world.recorder() as recorder:
        env = recorded(Walk(1), recorder, score=broken)
        env.reset()
        assert env.step(1)[2]
    ended = world.only().ended
    assert ended.end_status == "error"
    assert ended.reason is not None
    assert (ended.reason.stage, "`score`" in (ended.reason.message or "")) == ("judger", True)


def test_what_no_session_can_be_opened_with_is_refused_at_the_reset(world: World) -> None:
    with world.recorder() as recorder:
        for fields in ({"group_size": 0}, {"metadata": {"text": "x" * 2_000_000}}):
            env = recorded(Walk(1), recorder, fields=fields)
            with pytest.raises(BadRecord):
                env.reset()
            with pytest.raises(MustReset):
                env.step(1)
        env = recorded(Walk(1), recorder, score=lambda _: {"score": 1.0, "log": "x" * 2_000_000})
        env.reset()
        env.step(1)
    outcomes, _ = world.processed(len(world.told()))
    assert world.letters() == []
    assert [one.end_status for one in outcomes.values()] == ["error", "completed"]
    assert list(outcomes.values())[-1].reward == 1.0
