"""What a judger is given and what it may answer. This is the one place that says so.

    def exact(case: Case) -> float:
        return float(text_of(case.final_message) == case.metadata["answer"])

A judger is any callable, `async` or not. It answers with

    a number                        the score
    a mapping with `score`          the score; everything else in it is kept as it is
    a mapping with accepted: False  the session is rejected: recorded, no sample
    None                            likewise

Several numbers go beside the score, under a name of their own: `{"score": 0.5, "terms": [1, 0]}`.
Anything else, a raise or no answer in time is an error with stage `judger`; it never becomes a
score of 0. One that is out of time is cancelled. Whoever asked waits a second for that and no
longer, whatever the judger makes of it; nor does the end of the process wait. With several judgers
the score is the weighted sum of theirs, and each one's own answer stands under its name.

Invariant: a verdict has a finite score, or is a rejection, or says what went wrong.
"""

import asyncio
import concurrent.futures
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from schemas.events import EndReason, EndStatus
from schemas.finite import NOT_FINITE
from streams.core.content import Message
from streams.core.plain_values import plain, plain_reward

TIMEOUT_S = 60.0
MESSAGE_CHARS_MAX = 1000
_CANCELLING_S = 1.0
"""For what a judger has to put away when it is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a judger is given of a session; a copy, to do with as it likes."""

    session_id: str
    messages: list[Message]
    """Of the branch that the newest turn ends, its answer included."""
    tools: list[Any] = field(default_factory=list)
    """What the model could call, as it was told."""
    final_message: Message | None = None
    """The last message whole: calls, reasoning and parts included."""
    turns: int = 0
    """Model calls of the whole session."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """As the session was opened with: the ground truth belongs here."""
    end_status: EndStatus = "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of it."""

    reward: dict[str, Any] | None = None
    """With `score`; none if rejected or wrong."""
    accepted: bool = True
    error: EndReason | None = None
    judged_ms: int | None = field(default=None, compare=False)
    """How long it took."""


Answer = float | Mapping[str, Any] | None
Judger = Callable[[Case], Answer | Awaitable[Answer]]


class Named:
    """A judger with its name and its weight among others."""

    __slots__ = ("judger", "name", "weight")

    def __init__(self, judger: Judger, name: str | None = None, weight: float = 1.0) -> None:
        """Unset: the function's own name."""
        self.judger = judger
        self.name = str(name or getattr(judger, "__name__", type(judger).__name__))
        self.weight = weight


class Judging:
    """One judger or several, asked side by side, within a limit of time."""

    def __init__(self, *judgers: Judger | Named, timeout_s: float = TIMEOUT_S) -> None:
        """Nobody is asked yet.

        Raises:
            ValueError: no judger, two of one name, one with a name that is taken, or no time.
        """
        self.judgers = [one if isinstance(one, Named) else Named(one) for one in judgers]
        names = [one.name for one in self.judgers]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"judgers {names}: give at least one, each with a name of its own")
        taken = {"score", NOT_FINITE} & set(names)
        if taken and len(names) > 1:
            said = f"{', '.join(sorted(taken))}: beside others a judger cannot have this name"
            raise ValueError(f"{said}, under which the reward has its own; give it another")
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise ValueError(f"timeout_s={timeout_s!r}: give seconds above 0")
        self.timeout_s = timeout_s
        self._let_go: set[asyncio.Task[Verdict]] = set()

    @property
    def still_running(self) -> int:
        """Judgers that were cancelled, took no notice and are no longer waited for."""
        return len(self._let_go)

    async def judge(self, case: Case) -> Verdict:
        """The verdict; never raises but when cancelled."""
        began_s = time.monotonic()
        asked = [self._one(named, case) for named in self.judgers]
        verdict = self._together(await asyncio.gather(*asked))
        return replace(verdict, judged_ms=int((time.monotonic() - began_s) * 1000))

    def judge_now(self, case: Case) -> Verdict:
        """`judge`, for code that blocks; works inside a running event loop too."""
        done: concurrent.futures.Future[Verdict] = in_thread(lambda: asyncio.run(self.judge(case)))
        return done.result(self.timeout_s + TIMEOUT_S)  # each judger has its own limit inside

    async def _one(self, named: Named, case: Case) -> Verdict:
        # A task of its own, for a wait for it can be given up; one for a coroutine cannot.
        asked = asyncio.ensure_future(_answered(named, _copy(case)))
        try:
            done, _ = await asyncio.wait({asked}, timeout=self.timeout_s)
        finally:
            await self._cancel(asked)
        if done:
            return asked.result()
        said = f"{named.name} gave no answer in {self.timeout_s:g} s"
        if asked in self._let_go:
            said += ", took no notice of being cancelled and still runs"
        return failure("timeout", TimeoutError.__name__, said, retryable=True)

    async def _cancel(self, asked: "asyncio.Task[Verdict]") -> None:
        if not asked.cancel():
            return  # it is over
        try:
            await asyncio.wait({asked}, timeout=_CANCELLING_S)
        finally:
            if not asked.done():
                self._let_go.add(asked)
                asked.add_done_callback(self._let_go.discard)
                # The end of an event loop waits for all tasks that it knows.
                asyncio.tasks._unregister_task(asked)
                asked._log_destroy_pending = False  # type: ignore[attr-defined]

    def _together(self, verdicts: Sequence[Verdict]) -> Verdict:
        for verdict in verdicts:
            if verdict.error is not None:
                return verdict
        for verdict in verdicts:
            if not verdict.accepted:
                return verdict
        rewards = [verdict.reward or {} for verdict in verdicts]
        if len(rewards) == 1:
            return verdicts[0]
        pairs = zip(self.judgers, rewards, strict=True)
        score = math.fsum(named.weight * reward["score"] for named, reward in pairs)
        if not math.isfinite(score):
            return failure("bad_answer", "float", f"the weighted sum is {score}")
        names = [named.name for named in self.judgers]
        return Verdict(reward={"score": score, **dict(zip(names, rewards, strict=True))})


def in_thread(call: Callable[[], Any]) -> "concurrent.futures.Future[Any]":
    """Run it in a thread that does not keep the process from ending, however long it hangs."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        future.set_running_or_notify_cancel()  # from here on nobody can take it back
        try:
            answer = call()
        except Exception as error:  # whoever waits gets it
            future.set_exception(error)
        except BaseException as error:  # and a `sys.exit` in it ends nothing but itself
            future.set_exception(RuntimeError(repr(error)))
        else:
            future.set_result(answer)

    threading.Thread(target=run, name="turnstream-judger", daemon=True).start()
    return future


async def _answered(named: Named, case: Case) -> Verdict:
    try:
        answer = await _asked(named.judger, case)
    except (Exception, SystemExit) as error:  # graders exit; it ends nothing but their answer
        return failure("raised", type(error).__name__, f"{named.name}: {error}")
    return _verdict(named.name, answer)


async def _asked(judger: Judger, case: Case) -> Answer:
    if inspect.iscoroutinefunction(judger) or inspect.iscoroutinefunction(
        getattr(judger, "__call__", None)  # noqa: B004 - of an object whose call is async
    ):
        answer = judger(case)
    else:
        # In a thread: one that blocks must not hold up the others.
        answer = await asyncio.wrap_future(in_thread(lambda: judger(case)))
    return await answer if isinstance(answer, Awaitable) else answer


def _verdict(name: str, answer: Any) -> Verdict:
    if answer is None:
        return Verdict(accepted=False)
    payload = plain_reward(answer if isinstance(answer, Mapping) else {"score": answer})
    if payload.get("accepted") is False:
        return Verdict(accepted=False)
    score = payload.get("score")
    if not isinstance(score, int | float) or not _is_finite(score):
        said = f"{name} answered {answer!r:.200}: give a finite number, or a mapping with `score`"
        return failure("bad_answer", type(answer).__name__, said)
    return Verdict(reward={**payload, "score": float(score)})


def _is_finite(score: float) -> bool:
    try:
        return math.isfinite(score)
    except OverflowError:
        return False


def failure(category: str, kind: str, message: str, *, retryable: bool = False) -> Verdict:
    """The verdict on a session that nobody could judge."""
    reason = EndReason(
        stage="judger",
        category=category,
        type=kind,
        message=plain(message[:MESSAGE_CHARS_MAX]),  # an exception's text may be no text
        retryable=retryable,
    )
    return Verdict(error=reason)


def _copy(case: Case) -> Case:
    """A judger may change what it was given; the others must not see it."""
    return Case(
        session_id=case.session_id,
        messages=plain(case.messages),
        tools=plain(case.tools),
        final_message=plain(case.final_message),
        turns=case.turns,
        metadata=plain(case.metadata),
        end_status=case.end_status,
    )
