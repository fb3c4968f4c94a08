"""The record of one wrapped environment: which episode is under way, and how each of them ends.

    the environment says LAST, terminated       completed, or truncated if it was cut
    reset while one is under way                interrupted; the reset begins another session
    close or leaving the block, likewise        closed; error if something was raised in the block
    reset, step or a model call raises          error, with type and text; cancelled if cancelled
    its time is over                            timeout

What the environment raised reaches the caller as it is and at once: its end is handed to the log
in the background, and a log that is away changes nothing about it.

Invariant: no step is ever added to an episode that is over.
"""

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator
from typing import Any

from schemas.bad_record import BadRecord
from schemas.events import EndStatus
from streams.adapters.environments.episode import Episode, Mark
from streams.adapters.environments.options import Options
from streams.adapters.environments.problems import MustReset, NotRecorded, TookTooLong
from streams.adapters.environments.publisher import Handed
from streams.adapters.environments.recorder import Null, Recorder
from streams.adapters.environments.steps import Answer, Record
from streams.adapters.judgers.judging import Verdict

CANCELLED = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)
_CURRENT: contextvars.ContextVar["Recording | None"] = contextvars.ContextVar(
    "turnstream_recording", default=None
)


def current() -> "Recording | None":
    """The recording of the environment whose reset or step runs now; None outside of one."""
    return _CURRENT.get()


class Recording:
    """Begins, tells and ends the episodes of one environment."""

    def __init__(self, recorder: Recorder | Null, options: Options) -> None:
        """Nothing is told yet."""
        self.recorder = recorder
        self.options = options
        self.episode: Episode | None = None
        self._number = 0
        self._origin: Mark | None = None
        """Of another session: the next step goes on from there, in a session of its own."""
        self._broken: str | None = None
        """Why only a reset helps."""
        self._started_ms = 0

    @property
    def record(self) -> Record | None:
        """Of the newest episode, frozen; None if nothing was recorded."""
        return None if self.episode is None else self.episode.record

    def begin(self) -> list[Handed]:
        """A reset: what is under way is interrupted, another session begins."""
        handed = self._end("interrupted", stage="environment", message="reset before its end")
        self._origin, self._broken = None, None
        return handed + self._open(None)

    @contextlib.contextmanager
    def running(self, what: str) -> Iterator[None]:
        """The environment's own code runs inside; what it raises ends the episode.

        Raises:
            MustReset: a step in an episode that is over by an error.
        """
        if what == "step":
            self._may_step()
        token = _CURRENT.set(self)
        self._started_ms = time.time_ns() // 1_000_000
        try:
            yield
        except TookTooLong as error:
            self._fail(error, "timeout", "environment", category="timeout")
            raise
        except CANCELLED as error:
            self._fail(error, "cancelled", "environment")
            raise
        except (NotRecorded, BadRecord) as error:
            self._fail(error, "error", "log")
            raise
        except BaseException as error:
            self._fail(error, "error", "environment")
            raise
        finally:
            _CURRENT.reset(token)

    def read(self, reader: Callable[[Any], Answer], result: Any) -> Answer | None:
        """What the environment gave; None if that is of no protocol, and only counted."""
        try:
            return reader(result)
        except Exception as error:
            if self._lenient:
                self._count("unrecorded_steps")
                return None
            self._fail(error, "error", "environment")
            raise

    def first(self, answer: Answer) -> None:
        """What the reset gave."""
        self._try("unrecorded_steps", lambda episode: episode.first(answer))

    def stepped(self, action: Any, answer: Answer) -> list[Handed]:
        """What a step gave.

        Raises:
            TookTooLong: the episode's time was over before the step was.
        """
        episode = self.episode
        if episode is not None and episode.over == "timeout" and self._broken is None:
            self._broken = "its time is over"
            raise TookTooLong(f"session {episode.session_id}: {self._broken}: reset first")
        if episode is None or not episode.is_ours:
            self._count("unrecorded_steps")
            return []
        started_ms = self._started_ms
        return (
            self._try("unrecorded_steps", lambda one: one.stepped(action, answer, started_ms)) or []
        )

    def call(self, call: dict[str, Any]) -> tuple[str | None, list[Handed]]:
        """A model call becomes a turn; its id, and the turn on its way."""
        told = self._try("unrecorded_turns", lambda episode: episode.call(**call))
        return told if told is not None else (None, [])

    def end(self, status: EndStatus, **words: Any) -> list[Handed]:
        """End the episode as the caller says; whatever comes after adds nothing."""
        return self._end(status, **words)

    def judged(self, status: EndStatus, verdict: Verdict) -> list[Handed]:
        """End the episode as its judgers say."""
        if verdict.error is not None:
            words = {name: getattr(verdict.error, name) for name in verdict.error.__struct_fields__}
            return self._end("error", **words)
        if not verdict.accepted:
            return self._end("rejected", accepted=False, stage="judger")
        return self._end(
            status,
            reward=verdict.reward,
            reward_origin="judged",
            judged_ms=verdict.judged_ms,
        )

    def leaving(self, error: BaseException | None) -> list[Handed]:
        """The environment is closed, or its block is left, maybe because of an error."""
        if error is None or not self.recorder.records:
            return self._end("closed", stage="environment", message="closed before its end")
        status: EndStatus = "cancelled" if isinstance(error, CANCELLED) else "error"
        self._fail(error, status, "agent")
        return []

    def cancelled(self, error: BaseException) -> None:
        """Whoever waited for the log was cancelled."""
        self._fail(error, "cancelled", "agent")

    def time_left_s(self) -> float | None:
        """How long the environment may take for its next answer; None: as long as it likes."""
        limits = [self.options.step_timeout_s]
        if self.episode is not None and self.options.episode_timeout_s is not None:
            limits.append(self.episode.until_s - time.monotonic())
        known = [limit for limit in limits if limit is not None]
        return max(0.0, min(known)) if known else None

    def not_recorded(self, error: BaseException) -> None:
        """The log did not take something of the episode: fail closed."""
        self._fail(error, "error", "log")

    def mark(self) -> Mark | None:
        """The present place in the episode; None if nothing is recorded."""
        return None if self.episode is None or self._origin else self.episode.mark()

    def resume(self, mark: Mark | None) -> None:
        """Go on from a mark: as a branch if its session is under way here, else in one of its own.

        The environment's own state is whoever's who asks for it.
        """
        episode = self.episode
        if mark is None:
            return
        if episode is not None and episode.is_ours and episode.session_id == mark.session_id:
            episode.go_back(mark)
            return
        self._end("interrupted", stage="environment", message="another state was restored")
        self._origin, self._broken = mark, None

    def copied(self) -> "Recording":
        """For a copy of the environment: it goes on from here in a session of its own."""
        other = Recording(self.recorder, self.options)
        other._origin = self._origin or self.mark()
        other._number = self._number
        return other

    def _open(self, origin: Mark | None) -> list[Handed]:
        recorder = self.recorder
        assert isinstance(recorder, Recorder), "the null recorder begins nothing"
        number, self._number = self._number, self._number + 1
        episode = Episode(recorder, self.options, number, origin)
        self.episode = episode
        return self._try("unrecorded_episodes", lambda one: one.open()) or []

    def _may_step(self) -> None:
        if self._origin is not None:
            origin, self._origin = self._origin, None
            self._open(origin)
        if self._broken is not None and not self._lenient:
            raise MustReset(f"the episode is over, {self._broken}: reset before the next step")

    def _end(self, status: EndStatus, **words: Any) -> list[Handed]:
        episode = self.episode
        return [] if episode is None else episode.end(status, **words)

    def _fail(self, error: BaseException, status: EndStatus, stage: str, **more: Any) -> None:
        self._broken = f"{type(error).__name__}: {error}"[:200]
        if self.episode is not None:
            self.episode.failed(error, status, stage, **more)

    def _try(self, unrecorded: str, tell: Callable[[Episode], Any]) -> Any:
        """Tell something; a lenient recorder counts what cannot be told."""
        if self.episode is None:
            self._count(unrecorded)
            return None
        try:
            return tell(self.episode)
        except Exception as error:
            if self._lenient:
                self._count(unrecorded)
                return None
            self._fail(error, "error", "recorder")
            raise

    @property
    def _lenient(self) -> bool:
        return isinstance(self.recorder, Recorder) and self.recorder.lenient

    def _count(self, name: str) -> None:
        if isinstance(self.recorder, Recorder):
            self.recorder.count(name)
