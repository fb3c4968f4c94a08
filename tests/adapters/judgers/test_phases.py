"""How long a session spent on model calls, in its environment and on judging: told by its trace."""

import time
from pathlib import Path

from schemas.traces import Trace
from streams.adapters.environments import recorded
from streams.adapters.judgers.judging import Case, Judging
from tests.adapters.environments.test_model_calls import Model
from tests.adapters.environments.toys import Walk
from tests.adapters.environments.world import World

MODEL_S = 0.3
JUDGE_S = 0.2
SLOW_STEP_S = 0.5
"""Of action 8."""


def slowly(case: Case) -> float:
    time.sleep(JUDGE_S)
    return float(case.turns)


def test_the_phases_of_a_session_are_in_its_trace(tmp_path: Path) -> None:
    world, model = World(tmp_path), Model()
    began_s = time.monotonic()
    with world.recorder() as recorder:
        env = recorded(Walk(3), recorder, judging=Judging(slowly))
        messages = [{"role": "user", "content": "go"}]
        env.reset()
        for action in (8, 8, 1):
            time.sleep(MODEL_S)
            drawn = model.answer(messages)
            env.turn(**drawn)
            env.step(action)
            messages += [drawn["response_message"], {"role": "user", "content": "on"}]
    took_ms = 1000 * (time.monotonic() - began_s)
    world.processed(1, trace_share=1.0)
    (trace,) = world.read(world.settings.traces_topic)
    assert isinstance(trace, Trace)
    spent = (trace.generate_ms or 0, trace.tool_ms or 0, trace.reward_ms or 0)
    least = (3 * MODEL_S * 1000, 2 * SLOW_STEP_S * 1000, JUDGE_S * 1000)
    # A clock may be read to the millisecond below; nothing can take longer than all of it.
    assert all(had >= needed - 5 for had, needed in zip(spent, least, strict=True)), spent
    assert sum(spent) <= took_ms + 5
