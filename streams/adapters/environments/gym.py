"""A gymnasium environment whose episodes are sessions of the log.

    env = RecordedGym(gymnasium.make("FrozenLake-v1"), Recorder())

The same five values come out of `step`, the same two out of `reset`. Wrap each environment of a
vector, not the vector: every one of them has episodes of its own.

Invariant: with the null recorder `reset` and `step` are the environment's own.
"""

import copy
from typing import Any

import gymnasium

from streams.adapters.environments import blocking, steps
from streams.adapters.environments.recorder import NULL, Null, Recorder


class RecordedGym(blocking.Blocking, gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records what goes through it."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], recorder: Recorder | Null = NULL, **options: Any
    ) -> None:
        """Wrap it; `options` are those of `Options`."""
        super().__init__(env)
        self._options = options
        self.recording = blocking.recording_of(recorder, options)
        if not recorder.records:
            # The environment's own methods, found before the class's: no call in between.
            self.__dict__.update(reset=env.reset, step=env.step, close=env.close)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, and its session."""
        own = self.env
        return blocking.reset(
            self.recording, lambda: own.reset(seed=seed, options=options), steps.of_reset
        )

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step, recorded before it returns."""
        return blocking.step(
            self.recording, action, lambda: self.env.step(action), steps.of_gymnasium
        )

    def close(self) -> None:
        """Close; an episode that is under way ends as `closed`."""
        blocking.close(self.recording, self.env.close)

    def __exit__(self, *args: Any) -> Any:
        """Close; an error in the block is the end of an episode that is under way."""
        blocking.leave(self.recording, args[1] if args else None)
        return super().__exit__(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> "RecordedGym":
        """A checkpoint: the copy goes on in a session of its own that names this one."""
        made = type(self)(copy.deepcopy(self.env, memo), self.recording.recorder, **self._options)
        made.recording = self.recording.copied()
        return made
