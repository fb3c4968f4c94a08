"""Recording for environments that block: gymnasium's and dm_env's.

Invariant: what `reset`, `step` and `close` of the environment gave or raised is what the caller
gets, unless the log failed and the recorder is strict.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from schemas.events import EndStatus
from streams.adapters.environments.episode import Mark
from streams.adapters.environments.options import Options
from streams.adapters.environments.publisher import Handed
from streams.adapters.environments.recorder import Null, Recorder
from streams.adapters.environments.recording import Recording
from streams.adapters.environments.steps import Answer, Record
from streams.errors import TurnstreamError

T = TypeVar("T")


class Wrapper:
    """What every wrapper has beside the environment's own methods."""

    recording: Recording

    @property
    def record(self) -> Record | None:
        """The newest episode as it was recorded, frozen; None if nothing is."""
        return self.recording.record

    @property
    def session_id(self) -> str | None:
        """Of the newest episode."""
        episode = self.recording.episode
        return None if episode is None else episode.session_id

    def mark(self) -> Mark | None:
        """A place to come back to, beside the environment's own checkpoint."""
        return self.recording.mark()

    def resume(self, mark: Mark | None) -> None:
        """Go on from a mark, once the environment's own state is restored."""
        self.recording.resume(mark)


class Blocking(Wrapper):
    """What a wrapper of a blocking environment has too."""

    def turn(self, **call: Any) -> str | None:
        """Tell a model call: it becomes a turn of the session that trains like any other.

        Args:
            call: `prompt_messages`, `prompt_ids`, `output_ids`, and as far as known `logprobs`,
                `response_message`, `finish_reason`, `tools` and further fields of a turn.

        Returns:
            The turn's id; None if nothing is recorded.

        Raises:
            NotRecorded: it is not durable; the episode has ended as an error.
        """
        if not self.recording.recorder.records:
            return None
        turn_id, handed = self.recording.call(call)
        settled(self.recording, handed)
        return turn_id

    def end(self, status: EndStatus = "completed", **words: Any) -> None:
        """End the episode now; whatever comes after adds nothing.

        Args:
            status: How it ended.
            words: `reward`, `final_message`, `finish_reason`, `accepted`, `will_retry`, and of its
                reason `stage`, `category`, `type`, `message`, `retryable`.
        """
        settled(self.recording, self.recording.end(status, **words))


def recording_of(recorder: Recorder | Null, options: dict[str, Any]) -> Recording:
    """A recording with these options.

    Raises:
        TypeError: there is no such option.
    """
    return Recording(recorder, Options(**options))


def settled(recording: Recording, handed: Sequence[Handed]) -> None:
    """Wait until it is durable; what is not ends the episode."""
    recorder = recording.recorder
    if handed and isinstance(recorder, Recorder):
        try:
            recorder.settle(handed)
        except TurnstreamError as error:
            recording.not_recorded(error)
            raise


def reset(recording: Recording, call: Callable[[], T], read: Callable[[Any], Answer]) -> T:
    """Reset an environment; its result."""
    handed = recording.begin()
    with recording.running("reset"):
        result = call()
    answer = recording.read(read, result)
    if answer is not None:
        recording.first(answer)
    settled(recording, handed)
    return result


def step(
    recording: Recording, action: Any, call: Callable[[], T], read: Callable[[Any], Answer]
) -> T:
    """Step an environment; its result."""
    with recording.running("step"):
        result = call()
    answer = recording.read(read, result)
    if answer is None:
        return result
    if answer.kind == "first":  # it began another episode by itself
        handed = recording.begin()
        recording.first(answer)
    else:
        handed = recording.stepped(action, answer)
        if answer.status is not None:
            handed += finished(recording, answer.status)
    settled(recording, handed)
    return result


def finished(recording: Recording, status: EndStatus) -> list[Handed]:
    """The environment says that the episode is over."""
    judging, episode = recording.options.judging, recording.episode
    if judging is None or episode is None or not episode.is_ours:
        return recording.end(status)
    return recording.judged(status, judging.judge_now(episode.case(status)))


def close(recording: Recording, call: Callable[[], None]) -> None:
    """Close an environment, whatever becomes of its record."""
    handed = recording.leaving(None)
    call()  # what it raises is what the caller sees; the end is on its way
    settled(recording, handed)


def leave(recording: Recording, error: BaseException | None) -> None:
    """The block is left, maybe because of an error; closing comes after it."""
    if error is not None and recording.recorder.records:
        recording.leaving(error)
