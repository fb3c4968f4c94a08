"""Environments of three protocols, each with a way to raise, to hang and to be seen."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs


class ToyError(Exception):
    """What a toy raises."""


class Walk(gymnasium.Env[Any, Any]):
    """So many steps of -1, the last of 0; action 9 raises, 8 takes long."""

    def __init__(self, length: int = 8) -> None:
        self.observation_space = gymnasium.spaces.Discrete(100)
        self.action_space = gymnasium.spaces.Discrete(10)
        self.length = length
        self.at = 0
        self.closed = 0
        self.fails_on_reset = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        if self.fails_on_reset:
            raise ToyError("no world to begin in")
        self.at = 0
        return self.at, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if action == 9:
            raise ToyError("the floor gave way")
        if action == 8:
            time.sleep(0.5)
        self.at += 1
        over = self.at >= self.length
        return self.at, 0.0 if over else -1.0, over, False, {"at": self.at, "big": [1] * 1000}

    def close(self) -> None:
        self.closed += 1


class Countdown(dm_env.Environment):  # type: ignore[misc]  # it has no types
    """Counts down; its first step carries a reward and a discount, as it should not."""

    def __init__(self, start: int = 3, last_discount: float = 0.0) -> None:
        self.start = start
        self.last_discount = last_discount
        self.left = 0
        self.over = True
        self.colour = "red"

    def reset(self) -> dm_env.TimeStep:
        self.left, self.over = self.start, False
        return dm_env.TimeStep(dm_env.StepType.FIRST, 0.0, 1.0, np.array([self.left]))

    def step(self, action: Any) -> dm_env.TimeStep:
        if self.over:
            return self.reset()
        if action == 9:
            raise ToyError("the floor gave way")
        self.left -= 1
        self.over = self.left == 0
        kind = dm_env.StepType.LAST if self.over else dm_env.StepType.MID
        discount = self.last_discount if self.over else 1.0
        return dm_env.TimeStep(kind, 1.0, discount, np.array([self.left]))

    def observation_spec(self) -> Any:
        return specs.Array((1,), np.int64)

    def action_spec(self) -> Any:
        return specs.DiscreteArray(10)


@dataclass
class Chat:
    """An awaited environment with a conversation of its own, as agents have them."""

    turns: int = 3
    slow_s: float = 0.0
    fails: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    closed: int = 0
    entered: int = 0
    stuck: bool = False

    async def reset(self) -> dm_env.TimeStep:
        if self.fails == "reset":
            raise ToyError("no world to begin in")
        self.history = [{"role": "user", "content": "begin"}]
        return dm_env.restart(self.history)

    async def step(self, action: dict[str, Any]) -> dm_env.TimeStep:
        if self.slow_s:
            self.stuck = True
            try:
                await asyncio.sleep(self.slow_s)
            finally:
                self.stuck = False
        if self.fails == "step":
            raise ToyError("the floor gave way")
        # The same list, grown in place: whoever kept it sees it change.
        self.history += [action, {"role": "user", "content": f"number {len(self.history)}"}]
        done = len(self.history) > 2 * self.turns
        return (
            dm_env.termination(1.0, self.history) if done else dm_env.transition(0.5, self.history)
        )

    async def close(self) -> None:
        self.closed += 1

    async def __aenter__(self) -> "Chat":
        self.entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
