"""The same endings while the log takes nothing: nobody waits for long, nothing is masked.

The file of the log is held by another connection, as a writer that hangs would. What ends
meanwhile is in the log as soon as it answers again; what a strict recorder could not record is an
error of the step it belongs to, what a lenient one could not is counted.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streams.adapters.environments import MustReset, NotRecorded, Recorder, recorded
from tests.adapters.environments.toys import Chat, Countdown, ToyError, Walk, said
from tests.adapters.environments.world import SECONDS_MAX, World, happens, until

PATIENCE_S = 1.5


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A log that gives up soon, before anybody stops waiting for what it does."""
    return World(tmp_path, request_timeout_s=0.5, publish_timeout_s=10.0)


def begun(env: Any) -> Any:
    env.reset()
    env.step(1)
    return env


def raises(env: Any) -> None:
    env.step(9)


def interrupts(env: Any) -> None:
    env.reset()


def closes(env: Any) -> None:
    env.close()


def leaves(env: Any) -> None:
    with env:
        raise KeyError("lost")


def ends(env: Any) -> None:
    env.step(1)


ENDINGS: dict[str, tuple[Callable[[Any], None], type[BaseException], str]] = {
    "step raises": (raises, ToyError, "error"),
    "reset while active": (interrupts, NotRecorded, "interrupted"),
    "close while active": (closes, NotRecorded, "closed"),
    "leaving by an error": (leaves, KeyError, "error"),
    "last step": (ends, NotRecorded, "completed"),
}


@pytest.mark.parametrize(("how", "error", "status"), ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("kind", [Walk, Countdown])
def test_a_strict_recorder_says_what_it_could_not_record_and_masks_nothing(
    world: World, how: Callable[[Any], None], error: type[BaseException], status: str, kind: Any
) -> None:
    with world.recorder(patience_s=PATIENCE_S) as recorder:
        env = begun(recorded(kind(2), recorder))
        session_id = env.session_id
        with world.away():
            start_s = time.monotonic()
            with pytest.raises(error):
                how(env)
            assert time.monotonic() - start_s < SECONDS_MAX  # it came back
        told = world.ended()[session_id]
    assert told.kinds.count("session_ended") == 1
    assert told.ended.end_status == status


@pytest.mark.parametrize(("how", "error", "status"), ENDINGS.values(), ids=ENDINGS)
def test_a_lenient_recorder_never_waits_and_tells_it_later(
    world: World, how: Callable[[Any], None], error: type[BaseException], status: str
) -> None:
    with world.recorder(patience_s=SECONDS_MAX, lenient=True) as recorder:
        env = begun(recorded(Walk(2), recorder))
        session_id = env.session_id
        with world.away():
            if error is NotRecorded:
                how(env)
            else:
                with pytest.raises(error):
                    how(env)
        told = world.ended()[session_id]
        assert told.ended.end_status == status
    assert [turn.seq for turn in told.turns] == list(range(1, len(told.turns) + 1))


@pytest.mark.parametrize("lenient", [False, True])
def test_cancelling_while_the_log_is_away_is_not_held_up(world: World, lenient: bool) -> None:
    inner = Chat(slow_s=60.0)

    async def work(recorder: Recorder) -> None:
        env = recorded(inner, recorder)
        await env.reset()
        with world.away():
            task = asyncio.create_task(env.step(said("on")))
            await happens(lambda: inner.stuck)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 30)

    with world.recorder(patience_s=SECONDS_MAX, lenient=lenient) as recorder:
        asyncio.run(work(recorder))
        (told,) = world.ended().values()
    assert told.ended.end_status == "cancelled"


def test_cancelling_whoever_waits_for_the_log_is_cancelled_too(world: World) -> None:
    async def work(recorder: Recorder) -> None:
        env = recorded(Chat(), recorder)
        await env.reset()
        with world.away():
            task = asyncio.create_task(env.step(said("on")))
            await happens(lambda: recorder.counts["retries"])
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 30)

    with world.recorder(patience_s=SECONDS_MAX) as recorder:
        asyncio.run(work(recorder))
        (told,) = world.ended().values()
    assert told.kinds == ["session_opened", "turn", "session_ended"]
    assert told.ended.end_status == "cancelled"


def test_a_step_that_could_not_be_recorded_ends_its_episode(world: World) -> None:
    with world.recorder(patience_s=PATIENCE_S) as recorder:
        env = begun(recorded(Walk(8), recorder))
        with world.away():
            with pytest.raises(NotRecorded, match=r"turn t2|has not said"):
                env.step(1)
            with pytest.raises(MustReset):
                env.step(1)
        (told,) = world.ended().values()
        assert told.ended.end_status == "error"
        assert told.ended.reason is not None
        assert told.ended.reason.stage == "log"
        env.reset()
        env.step(1)
        env.close()
    assert [one.ended.end_status for one in world.told().values()] == ["error", "closed"]


def test_a_lenient_recorder_counts_what_is_lost_and_the_outcome_shows_the_hole(
    world: World,
) -> None:
    with world.recorder(patience_s=0.2, lenient=True) as recorder:
        env = recorded(Walk(3), recorder)
        env.reset()
        until(lambda: recorder.counts["stored"], bool)
        with world.away():
            env.step(1)
            until(lambda: recorder.counts["lost"], bool)
        env.step(1)
        env.step(1)
        told = next(iter(world.ended().values()))
    assert [turn.seq for turn in told.turns] == [2, 3]
    # No later turn hangs on the lost one: the next tells its whole prompt.
    assert told.turns[0].base_turn_id is None
    assert len(told.turns[0].prompt_messages) == 3
    assert recorder.counts["lost"] == 1
    outcomes, _ = world.processed(1)
    (outcome,) = outcomes.values()
    assert (outcome.gaps, outcome.withheld, outcome.refused) == (1, "gap", 0)
    assert world.letters() == []


def test_a_full_queue_refuses_turns_but_no_end(world: World) -> None:
    with world.recorder(patience_s=SECONDS_MAX, lenient=True, queue_max=2) as recorder:
        env = recorded(Walk(8), recorder)
        env.reset()
        until(lambda: recorder.counts["stored"], bool)
        with world.away():
            for _ in range(8):
                env.step(1)
            assert recorder.counts["refused"] == 6
        told = next(iter(world.ended().values()))
    assert (len(told.turns), told.ended.end_status) == (2, "completed")
    assert told.ended.turns == {told.turns[0].source: 8}


def test_a_recorder_that_is_closed_says_how_much_is_left(world: World) -> None:
    recorder = world.recorder(patience_s=SECONDS_MAX, lenient=True)
    env = begun(recorded(Walk(8), recorder))
    until(lambda: recorder.counts["stored"], lambda stored: stored == 2)
    with world.away():
        env.step(1)
        assert recorder.close(0.5) == 2  # the turn and the end
    assert env.step(1)[0] == 3
    assert recorder.counts["unrecorded_steps"] == 1
