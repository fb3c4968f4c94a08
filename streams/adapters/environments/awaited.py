"""An environment whose methods are awaited, its episodes sessions of the log.

    async with RecordedAsync(environment, Recorder()) as env:
        step = await env.reset()
        while not step.last():
            step = await env.step(await act(step.observation))

It has `reset` and `step`, and maybe `close` and a block of its own. `reset` gives a time step, an
observation with its info, or an observation; `step` a time step or gymnasium's five values. The
same objects come out.

Being cancelled ends the episode as `cancelled` at once: the end is handed to another thread, so
that no further cancellation can stop it.

Invariant: nothing here waits without a limit, but for the environment, which has one if asked for.
"""

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Protocol, Self

from schemas.events import EndStatus
from streams.adapters.environments.blocking import Wrapper, recording_of
from streams.adapters.environments.problems import TookTooLong
from streams.adapters.environments.publisher import Handed
from streams.adapters.environments.recorder import NULL, Null, Recorder
from streams.adapters.environments.recording import Recording
from streams.adapters.environments.steps import of_reset, of_step
from streams.errors import TurnstreamError


class AsyncEnvironment(Protocol):
    """What can be wrapped."""

    async def reset(self, *args: Any, **words: Any) -> Any:
        """Begin an episode."""
        ...

    async def step(self, action: Any) -> Any:
        """One step."""
        ...


class RecordedAsync(Wrapper):
    """Records what goes through it."""

    def __init__(self, env: Any, recorder: Recorder | Null = NULL, **options: Any) -> None:
        """Wrap it; `options` are those of `Options`."""
        self.env = env
        self.recording = recording_of(recorder, options)
        if not recorder.records:
            # The environment's own methods, found before the class's: no call in between.
            self.__dict__.update(reset=env.reset, step=env.step)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the environment has."""
        if name.startswith("__") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    async def reset(self, *args: Any, **words: Any) -> Any:
        """Begin an episode, and its session."""
        handed = self.recording.begin()
        with self.recording.running("reset"):
            result = await self._in_time("reset", self.env.reset(*args, **words))
        answer = self.recording.read(of_reset, result)
        if answer is not None:
            self.recording.first(answer)
        await settled(self.recording, handed)
        return result

    async def step(self, action: Any, **words: Any) -> Any:
        """One step, recorded before it returns."""
        with self.recording.running("step"):
            result = await self._in_time("step", self.env.step(action, **words))
        answer = self.recording.read(of_step, result)
        if answer is None:
            return result
        if answer.kind == "first":  # it began another episode by itself
            handed = self.recording.begin()
            self.recording.first(answer)
        else:
            handed = self.recording.stepped(action, answer)
            if answer.status is not None:
                handed += await self._finished(answer.status)
        await settled(self.recording, handed)
        return result

    async def turn(self, **call: Any) -> str | None:
        """Tell a model call: it becomes a turn of the session that trains like any other.

        The words and the answer are those of `Blocking.turn`.
        """
        if not self.recording.recorder.records:
            return None
        turn_id, handed = self.recording.call(call)
        await settled(self.recording, handed)
        return turn_id

    async def end(self, status: EndStatus = "completed", **words: Any) -> None:
        """End the episode now; the words are those of `Blocking.end`."""
        await settled(self.recording, self.recording.end(status, **words))

    async def close(self) -> None:
        """Close; an episode that is under way ends as `closed`."""
        handed = self.recording.leaving(None)
        await self._close()
        await settled(self.recording, handed)

    async def __aenter__(self) -> Self:
        """Enter the environment's own block, if it has one."""
        enter = getattr(self.env, "__aenter__", None)
        if enter is not None:
            await enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Leave it; an error in the block is the end of an episode that is under way."""
        handed = self.recording.leaving(error)
        leave = getattr(self.env, "__aexit__", None)
        swallowed = False
        if leave is None:
            await self._close()
        else:
            swallowed = bool(await leave(kind, error, trace))
        await settled(self.recording, handed)
        return swallowed

    async def _close(self) -> None:
        close = getattr(self.env, "close", None)
        if close is not None:
            closing = close()
            if isinstance(closing, Awaitable):
                await closing

    async def _finished(self, status: EndStatus) -> list[Handed]:
        recording = self.recording
        judging, episode = recording.options.judging, recording.episode
        if judging is None or episode is None or not episode.is_ours:
            return recording.end(status)
        try:
            verdict = await judging.judge(episode.case(status))
        except asyncio.CancelledError as error:
            recording.cancelled(error)
            raise
        return recording.judged(status, verdict)

    async def _in_time(self, what: str, call: Awaitable[Any]) -> Any:
        limit_s = self.recording.time_left_s()
        if limit_s is None:
            return await call
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await call
        except TimeoutError as error:
            if not limit.expired():
                raise  # the environment's own
            raise TookTooLong(f"{what} gave no answer in {limit_s:g} s") from error


async def settled(recording: Recording, handed: list[Handed]) -> None:
    """Wait until it is durable; what is not ends the episode."""
    recorder = recording.recorder
    if handed and isinstance(recorder, Recorder):
        try:
            await recorder.settle_async(handed)
        except TurnstreamError as error:
            recording.not_recorded(error)
            raise
        except asyncio.CancelledError as error:
            recording.cancelled(error)
            raise
