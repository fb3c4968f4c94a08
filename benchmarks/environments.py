"""What a wrapper costs: CPU time of wrapped environments beside the bare ones.

    null       `recorded(env)`: nothing is recorded
    lenient    a real log in a file; a step never waits for it
    strict     the same; a step returns when it is durable

The bare environment and the wrapped one take turns, run by run, and the least of each counts: what
disturbs a run only ever adds to it. CPU time is the whole process's, so the log's threads count.

    python -m benchmarks.environments [STEPS] [RUNS]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from dm_env import TimeStep, restart, termination, transition

from streams.adapters.environments import NULL, Null, Recorder, recorded
from streams.settings import Settings

STEPS = 500
RUNS = 600
"""Many short ones: some fall between two disturbances."""
RECORDED_STEPS = 1000
"""Where something is recorded a step costs far more."""


class Counting:
    """The cheapest environment there is: what a wrapper adds weighs most here."""

    def __init__(self) -> None:
        """At 0."""
        self.at = 0
        self.seen = np.zeros(1)

    def action_spec(self) -> None:
        """Not looked at."""

    def reset(self) -> TimeStep:
        """Begin again."""
        self.at = 0
        return restart(self.seen)

    def step(self, action: Any) -> TimeStep:
        """Count to a hundred."""
        self.at += 1
        last = self.at >= 100  # noqa: PLR2004 - an episode
        return termination(1.0, self.seen) if last else transition(1.0, self.seen)

    def close(self) -> None:
        """Nothing to do."""


def play_gymnasium(env: Any, steps: int) -> float:
    """CPU seconds of so many steps with one action, resets included."""
    env.reset(seed=1)
    start_s = time.process_time()
    for number in range(steps):
        result = env.step(number & 1)
        if result[2] or result[3]:
            env.reset()
    return time.process_time() - start_s


def play_dm_env(env: Any, steps: int) -> float:
    """The same in dm_env's protocol."""
    env.reset()
    start_s = time.process_time()
    for _ in range(steps):
        if env.step(1).last():
            env.reset()
    return time.process_time() - start_s


Play = Callable[[Any, int], float]
ENVIRONMENTS: dict[str, tuple[Callable[[], Any], Play]] = {
    "CartPole-v1 (gymnasium)": (lambda: gymnasium.make("CartPole-v1"), play_gymnasium),
    "FrozenLake-v1 (gymnasium)": (lambda: gymnasium.make("FrozenLake-v1"), play_gymnasium),
    "a counter (dm_env)": (Counting, play_dm_env),
}


def least(
    make: Callable[[], Any], play: Play, recorder: Recorder | Null, runs: int, steps: int
) -> tuple[float, float]:
    """Microseconds a step, of the bare environment and of the wrapped one."""
    bare, wrapped = make(), recorded(make(), recorder)
    pairs = []
    for number in range(runs):
        order = [bare, wrapped] if number % 2 else [wrapped, bare]
        spent = {id(env): play(env, steps) for env in order}
        pairs.append((spent[id(bare)], spent[id(wrapped)]))
    wrapped.close()
    alone, with_it = (min(column) * 1e6 / steps for column in zip(*pairs, strict=True))
    return alone, with_it


def main() -> None:
    """Print the table."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else RUNS  # noqa: PLR2004 - the second argument
    row = "{:<28}{:<10}{:>12}{:>12}   {}"
    print(row.format("environment", "recorder", "bare, us", "wrapped, us", "more"))
    for name, (make, play) in ENVIRONMENTS.items():
        alone, with_it = least(make, play, NULL, runs, steps)
        more = f"{100 * (with_it / alone - 1):+.1f} %, {with_it - alone:+.3f} us"
        print(row.format(name, "null", f"{alone:.3f}", f"{with_it:.3f}", more))
        for mode in ("lenient", "strict"):
            with tempfile.TemporaryDirectory() as folder:
                settings = Settings(log=str(Path(folder) / "log.db"))
                with Recorder(settings, lenient=mode == "lenient", queue_max=1_000_000) as recorder:
                    alone, with_it = least(make, play, recorder, 2, RECORDED_STEPS)
            more = f"+{with_it - alone:.0f} us"
            print(row.format(name, mode, f"{alone:.3f}", f"{with_it:.3f}", more))


if __name__ == "__main__":
    main()
