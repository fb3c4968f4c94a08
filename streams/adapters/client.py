"""A client for whoever starts agents: a session for the length of a block.

    with Turnstream(control_url, control_key).session(group_id="g1") as session:
        subprocess.run(agent, env={**os.environ, **session.env})
        session.reward(score)

The same with `async with` and `await`. At the end of the block the session ends:

    the block ran through    completed, with the reward that was given; else the reward is pending
    it raised                error, with type and text of what it raised
    it was cancelled         cancelled: asyncio's cancellation, Ctrl-C, a generator that is closed
    `end` was called in it   as that said; leaving adds nothing
    `timeout_s` were over    timeout, by the gateway, whatever the agent and the block do

Invariant: a call that returns is durable, and one that had to be repeated counts once; what the
block raised is what the caller sees, even if the session could not be ended.
"""

import asyncio
import functools
import ssl
import time
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx

from schemas.events import EndStatus, SessionOpened
from streams.adapters.client_session import KnownSession, Reward
from streams.adapters.client_steps import Ask, ControlRefused, GatewayAway, Steps, steps_of
from streams.adapters.client_verdicts import VerdictCalls
from streams.adapters.client_weights import WeightCalls
from streams.adapters.judgers.judging import Judging, Verdict
from streams.adapters.time_limit import WALL_MS, in_ms

__all__ = ["AsyncSession", "ControlRefused", "GatewayAway", "Session", "Turnstream"]

PATIENCE_S = 60.0


class Turnstream(WeightCalls, VerdictCalls):
    """A gateway's control API."""

    def __init__(
        self, control_url: str, control_key: str, *, patience_s: float = PATIENCE_S
    ) -> None:
        """Nothing is asked yet.

        Args:
            control_url: The gateway's address, e.g. http://127.0.0.1:8080.
            control_key: What opens its control API.
            patience_s: How long one call is tried while the gateway or its log is away.

        Raises:
            ValueError: that is no address.
        """
        url = httpx.URL(control_url)
        if url.scheme not in {"http", "https"} or not url.host:
            raise ValueError(f"{control_url!r}: give an address like http://127.0.0.1:8080")
        self._url = control_url.rstrip("/")
        self._secure = url.scheme == "https"
        self._headers = {"authorization": f"Bearer {control_key}"}
        self.patience_s = patience_s

    def session(
        self, *, session_id: str | None = None, timeout_s: float | None = None, **fields: Any
    ) -> "Opening":
        """A session that is opened when its block is entered, by `with` or `async with`.

        Args:
            session_id: Never one that was used before; unset: a new one.
            timeout_s: From its opening; then it ends as timeout, its turns are kept, and further
                calls are refused. The block itself is not stopped: see `timed_out`. A reward has to
                be given before it; later ones count with the field `reward_pending=True`.
            fields: Of `session_opened`: group_id, task_id, rollout_index, split, budgets, ...

        Raises:
            TypeError: there is no such field.
            ValueError: `timeout_s` is no time to live.
        """
        unknown = fields.keys() - set(SessionOpened.__struct_fields__)
        if unknown:
            raise TypeError(f"{', '.join(sorted(unknown))}: not a field of session_opened")
        if timeout_s is not None:
            fields["budgets"] = {**(fields.get("budgets") or {}), WALL_MS: in_ms(timeout_s)}
        given = {name: value for name, value in fields.items() if value is not None}
        return Opening(self, {"session_id": session_id or f"s-{uuid.uuid4().hex}", **given})

    def ask(
        self, path: str, body: Mapping[str, Any] | None = None, session_key: str | None = None
    ) -> Ask:
        """A call of the control API, to be sent; with the key of the session it is about."""
        return Ask(f"{self._url}{path}", None if body is None else dict(body), session_key)

    def run(self, steps: Steps) -> dict[str, Any]:
        """Take the steps; the answer at their end."""
        with httpx.Client(**self._options()) as client:
            try:
                step = next(steps)
                while True:
                    if isinstance(step, float):
                        time.sleep(step)
                        step = next(steps)
                        continue
                    try:
                        response = client.request(**step.words)
                    except httpx.TransportError as error:
                        step = steps.send(error)
                    else:
                        step = steps.send(response)
            except StopIteration as done:
                return _value(done)

    async def run_async(self, steps: Steps) -> dict[str, Any]:
        """Take the steps without holding up the event loop."""
        async with httpx.AsyncClient(**self._options()) as client:
            try:
                step = next(steps)
                while True:
                    if isinstance(step, float):
                        await asyncio.sleep(step)
                        step = next(steps)
                        continue
                    try:
                        response = await client.request(**step.words)
                    except httpx.TransportError as error:
                        step = steps.send(error)
                    else:
                        step = steps.send(response)
            except StopIteration as done:
                return _value(done)

    def _options(self) -> dict[str, Any]:
        return {
            "headers": self._headers,
            "timeout": self.patience_s,
            # Straight to the address: the control key is for nobody in between.
            "trust_env": False,
            "verify": _trusted() if self._secure else False,
        }


class Opening:
    """A session that its block opens and ends."""

    def __init__(self, gateway: Turnstream, opened: dict[str, Any]) -> None:
        """Nothing is asked yet."""
        self._gateway = gateway
        self._opened = opened
        self._session: Session | None = None
        self._async_session: AsyncSession | None = None

    def __enter__(self) -> "Session":
        """Open it.

        Raises:
            ControlRefused: the gateway does not take it.
            GatewayAway: no answer in time.
        """
        self._session = Session(self._gateway, self._gateway.run(self._steps()), self._opened)
        return self._session

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it, unless that was done."""
        assert self._session is not None, "the block was entered"
        steps = self._session._leaving(error)
        if steps is None:
            return
        try:
            self._gateway.run(steps)
        except (ControlRefused, GatewayAway) as failure:
            self._session._not_ended(failure, error)

    async def __aenter__(self) -> "AsyncSession":
        """Open it; raises what `with` does."""
        opened = await self._gateway.run_async(self._steps())
        self._async_session = AsyncSession(self._gateway, opened, self._opened)
        return self._async_session

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it, unless that was done."""
        assert self._async_session is not None, "the block was entered"
        steps = self._async_session._leaving(error)
        if steps is None:
            return
        # Shielded: being cancelled once more does not stop the request in the middle.
        ending = asyncio.ensure_future(self._gateway.run_async(steps))
        try:
            await asyncio.shield(ending)
        except (ControlRefused, GatewayAway) as failure:
            self._async_session._not_ended(failure, error)

    def _steps(self) -> Steps:
        ask = self._gateway.ask("/control/sessions", self._opened)
        return steps_of(ask, self._gateway.patience_s)


class Session(KnownSession):
    """An open session, for code that blocks."""

    def reward(self, score: Reward, *, turn_id: str | None = None, final: bool = True) -> None:
        """Give the session a reward, or one of its turns; the last one counts.

        Args:
            score: A finite number, or a mapping whose `score` is one.
            turn_id: Of the turn it is for.
            final: Whether no other is to come.

        Raises:
            ValueError: it is no finite number.
            ControlRefused: the gateway does not take it.
            GatewayAway: no answer in time.
        """
        self._gateway.run(self._rewarding(score, turn_id, final))

    def end(
        self, status: EndStatus = "completed", reward: Reward | None = None, **fields: Any
    ) -> None:
        """End the session now; `fields` are further ones of `session_ended`.

        Raises:
            ValueError: the reward is no finite number, or there is no such status.
            ControlRefused: the gateway does not take it.
            GatewayAway: no answer in time.
        """
        self._gateway.run(self._ending(status, {"reward": reward, **fields}))
        self.ended = True

    def judge(
        self, judging: Judging, messages: Sequence[Any], *, tools: Sequence[Any] = ()
    ) -> Verdict:
        """Ask judgers: their score is the reward; a rejection or an error of theirs the end.

        Args:
            judging: The judgers.
            messages: The conversation, its last message the answer.
            tools: What the model could call.
        """
        verdict = judging.judge_now(self._case(messages, tools, self.state()))
        self._gateway.run(self._judged(verdict))
        self.ended = verdict.reward is None
        return verdict

    def state(self) -> dict[str, Any]:
        """What the gateway knows of it: calls, turns under way."""
        return self._gateway.run(self._looking())


class AsyncSession(KnownSession):
    """An open session, for code that awaits; the methods are those of `Session`."""

    async def reward(
        self, score: Reward, *, turn_id: str | None = None, final: bool = True
    ) -> None:
        """Give the session a reward, or one of its turns."""
        await self._gateway.run_async(self._rewarding(score, turn_id, final))

    async def end(
        self, status: EndStatus = "completed", reward: Reward | None = None, **fields: Any
    ) -> None:
        """End the session now."""
        await self._gateway.run_async(self._ending(status, {"reward": reward, **fields}))
        self.ended = True

    async def judge(
        self, judging: Judging, messages: Sequence[Any], *, tools: Sequence[Any] = ()
    ) -> Verdict:
        """Ask judgers, before anything of the session is torn down."""
        verdict = await judging.judge(self._case(messages, tools, await self.state()))
        await self._gateway.run_async(self._judged(verdict))
        self.ended = verdict.reward is None
        return verdict

    async def state(self) -> dict[str, Any]:
        """What the gateway knows of it."""
        return await self._gateway.run_async(self._looking())


def _value(done: StopIteration) -> dict[str, Any]:
    value = done.value
    assert isinstance(value, dict), "steps return the answer"
    return value


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Made once: reading the authorities takes longer than a request."""
    return httpx.create_ssl_context()
