"""A process that dies leaves its turns, and the processor ends its session."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.environments.world import SECONDS_MAX, World

CHILD = """
import sys, time
from streams.adapters.environments import Recorder, recorded
from streams.settings import Settings
from tests.adapters.environments.toys import Walk

env = recorded(Walk(8), Recorder(Settings(log=sys.argv[1])), fields={"task_id": "t"})
env.reset()
for _ in range(3):
    env.step(1)
print(env.session_id, flush=True)
if sys.argv[2] == "waits":
    time.sleep(120)
if sys.argv[2] == "raises":
    raise RuntimeError("and nobody closes anything")
"""


def child(world: World, then: str) -> "subprocess.Popen[str]":
    root = Path(__file__).resolve().parents[3]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(world.path), then],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_after_sigkill_the_session_expires_with_the_turns_it_has(tmp_path: Path) -> None:
    world = World(tmp_path, idle_limit_s=0.5)
    running = child(world, "waits")
    assert running.stdout is not None
    session_id = running.stdout.readline().strip()
    assert session_id
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=SECONDS_MAX)
    assert world.only().kinds == ["session_opened", "turn", "turn", "turn"]
    outcomes, samples = world.processed(1)
    outcome = outcomes[session_id]
    assert (outcome.end_status, outcome.turns, outcome.task_id) == ("expired", 3, "t")
    assert (outcome.withheld, samples) == ("status", [])


@pytest.mark.parametrize("then", ["ends", "raises"])
def test_a_process_that_ends_closes_what_is_under_way(tmp_path: Path, then: str) -> None:
    world = World(tmp_path)
    running = child(world, then)
    out, err = running.communicate(timeout=SECONDS_MAX)
    assert running.returncode == (1 if then == "raises" else 0), err
    told = world.told()[out.strip()]
    assert told.kinds == ["session_opened", "turn", "turn", "turn", "session_ended"]
    assert told.ended.end_status == "closed"
