"""A dm_env environment whose episodes are sessions of the log.

    env = RecordedDm(environment, Recorder())

The same time steps come out. As dm_env has it, a step after LAST begins another episode.

Invariant: with the null recorder `reset` and `step` are the environment's own.
"""

import copy
from typing import Any

import dm_env

from streams.adapters.environments import blocking, steps
from streams.adapters.environments.recorder import NULL, Null, Recorder


class RecordedDm(blocking.Blocking, dm_env.Environment):  # type: ignore[misc]  # it has no types
    """Records what goes through it."""

    def __init__(
        self, environment: dm_env.Environment, recorder: Recorder | Null = NULL, **options: Any
    ) -> None:
        """Wrap it; `options` are those of `Options`."""
        self._environment = environment
        self._options = options
        self.recording = blocking.recording_of(recorder, options)
        if not recorder.records:
            # The environment's own methods, found before the class's: no call in between.
            own = environment
            self.__dict__.update(reset=own.reset, step=own.step, close=own.close)

    def reset(self) -> dm_env.TimeStep:
        """Begin an episode, and its session."""
        return blocking.reset(self.recording, self._environment.reset, steps.of_reset)

    def step(self, action: Any) -> dm_env.TimeStep:
        """One step, recorded before it returns."""
        return blocking.step(
            self.recording, action, lambda: self._environment.step(action), steps.of_time_step
        )

    def close(self) -> None:
        """Close; an episode that is under way ends as `closed`."""
        blocking.close(self.recording, self._environment.close)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        """Close; an error in the block is the end of an episode that is under way."""
        blocking.leave(self.recording, error)
        self.close()

    def observation_spec(self) -> Any:
        """The environment's."""
        return self._environment.observation_spec()

    def action_spec(self) -> Any:
        """The environment's."""
        return self._environment.action_spec()

    def reward_spec(self) -> Any:
        """The environment's."""
        return self._environment.reward_spec()

    def discount_spec(self) -> Any:
        """The environment's."""
        return self._environment.discount_spec()

    def __getattr__(self, name: str) -> Any:
        """Whatever else the environment has."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._environment, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "RecordedDm":
        """A checkpoint: the copy goes on in a session of its own that names this one."""
        made = type(self)(
            copy.deepcopy(self._environment, memo), self.recording.recorder, **self._options
        )
        made.recording = self.recording.copied()
        return made
