"""One episode of one environment as one session of the log, from its opening to its one end.

    open ──► model calls and steps, each a turn ──► end, once
                       ├── mark: a place to come back to
                       └── go_back(mark): what follows is another branch of the same tree

A step whose action came from model calls adds its reward to the last of them; any other step is
a turn of its own without tokens, which shows in trees and traces and trains nothing.

Invariant: exactly one `session_ended`, whoever asks for it first; nothing is told after it.
"""

import dataclasses
import threading
import time
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from schemas.events import EndReason, EndStatus, Reward, SessionEnded, SessionOpened, Turn
from schemas.record import IDENTITY_FIELDS, NOT_GIVEN, json_text
from streams.adapters.environments.conversation import Conversation, Drawn, Place, drawn_from
from streams.adapters.environments.options import Options, Speak
from streams.adapters.environments.problems import MustReset
from streams.adapters.environments.publisher import Handed
from streams.adapters.environments.recorder import Recorder
from streams.adapters.environments.steps import Answer, Record, Step, added, metrics_of
from streams.adapters.judgers.judging import Case
from streams.core.content import (
    Message,
    conversation_in,
    final_message_from,
    message_from,
    messages_from,
)
from streams.core.limits import DEFAULT_LIMITS
from streams.core.plain_values import plain, plain_reward, plain_score
from streams.errors import BadEvent

REASON_CHARS_MAX = 1000
PAYLOAD_BYTES_MAX = DEFAULT_LIMITS.metadata_bytes
_OF_THE_END = ("finish_reason", "accepted", "will_retry", "reward_origin", "judged_ms")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in an episode, to come back to when the environment's own state is restored."""

    session_id: str
    turn_id: str | None
    """The newest turn before it."""
    place: Place
    record: Record


class Episode:
    """A session under way; used from any thread."""

    def __init__(
        self, recorder: Recorder, options: Options, number: int, origin: Mark | None = None
    ) -> None:
        """Nothing is told yet.

        Args:
            recorder: Where it is recorded.
            options: How it is told.
            number: Of the environment's episodes, from 0.
            origin: Of another session, whose state it goes on from.
        """
        fields = options.fields_of(number)
        self.session_id: str = fields.pop("session_id", None) or f"env-{uuid.uuid4().hex}"
        self.over: EndStatus | None = None
        """How it ended."""
        self.turns = 0
        self._recorder = recorder
        self._source = recorder.source
        self._options = options
        self._fields = fields
        self._identity = {name: fields[name] for name in IDENTITY_FIELDS if name in fields}
        self._lock = threading.RLock()
        self._said = Conversation()
        self._record = Record(session_id=self.session_id)
        self._steps: list[Step] = []
        self._last_call: str | None = None
        """The newest model call since the last step."""
        self._calls = 0
        self._since_ms: int | None = None
        """Since when it is the agent's turn: a model call begins there unless it says when."""
        self._tools: Any = None
        self._metrics: dict[str, Any] = {}
        self._branches: list[dict[str, Any]] = []
        limit_s = options.episode_timeout_s
        self.until_s = time.monotonic() + (float("inf") if limit_s is None else limit_s)
        """When its time is over, on the monotonic clock."""
        self.metadata: dict[str, Any] = plain(dict(fields.pop("metadata", None) or {}))
        if origin is not None:
            self.metadata["branched_from"] = {
                "session_id": origin.session_id,
                "turn_id": origin.turn_id,
            }
            # Its turns are another session's: nothing here can be based on them.
            place = dataclasses.replace(origin.place, told=None)
            self._restore(dataclasses.replace(origin, place=place))

    @property
    def record(self) -> Record:
        """What was recorded so far, frozen."""
        with self._lock:
            return msgspec.structs.replace(
                self._record, steps=tuple(self._steps), end_status=self.over
            )

    @property
    def is_ours(self) -> bool:
        """Whether it may go on here: not over, and not a fork's copy of its parent's."""
        return self.over is None and self._source == self._recorder.source

    def open(self) -> list[Handed]:
        """Tell that it begins, and watch its time.

        Raises:
            BadRecord: what it is opened with cannot be, or is too large.
        """
        metadata = json_text(self.metadata) if self.metadata else NOT_GIVEN
        if len(bytes(metadata)) > PAYLOAD_BYTES_MAX:
            detail = f"`metadata` has {len(bytes(metadata))} bytes of {PAYLOAD_BYTES_MAX}"
            raise BadEvent("oversize", detail, session_id=self.session_id)
        event = SessionOpened(
            session_id=self.session_id,
            metadata=metadata,
            **{"policy": self._recorder.settings.profile, **self._fields},
        )
        handed = self._recorder.hand(event)
        self._recorder.began(self.session_id, self)
        limit_s = self._options.episode_timeout_s
        if limit_s is not None:
            self._recorder.call_later(limit_s, _Watch(weakref.ref(self), limit_s))
        return [handed]

    def first(self, answer: Answer) -> None:
        """The first observation: no action, no reward."""
        with self._lock:
            observation = self._see(answer.observation)
            self._steps.append(Step(kind="first", observation=observation))

    def call(self, **call: Any) -> tuple[str, list[Handed]]:
        """A model call: its turn's id, and the turn on its way.

        Raises:
            MustReset: the episode is over.
            BadRecord: a reader would refuse it; it is not told.
            NoMessage: a message that is none; likewise.
        """
        given = {name: call.pop(name) for name in ("prompt_messages", "prompt_ids", "output_ids")}
        if "reward" in call:
            call["reward"] = plain_reward(call["reward"])
        drawn = drawn_from(
            **given,
            logprobs=call.pop("logprobs", None),
            response_message=call.pop("response_message", None),
        )
        with self._lock:
            if not self.is_ours:
                raise MustReset(f"session {self.session_id} is over ({self.over}): reset first")
            self._tools = call.get("tools", self._tools)
            now_ms = _now_ms()
            times = {"started_ms": self._since_ms, "finished_ms": now_ms}
            turn_id, handed = self._turn(drawn, {**times, **call})
            self._since_ms = now_ms
            self._last_call = turn_id
            self._calls += 1
            return turn_id, [handed]

    def stepped(self, action: Any, answer: Answer, started_ms: int) -> list[Handed]:
        """A step is done: its reward, its action if no call told it, and what is seen now."""
        with self._lock:
            if not self.is_ours:
                return []
            turn_id, handed = self._last_call, []
            (*_, said) = self._messages(action, "assistant")
            reward = answer.reward
            told = None if reward is None else _worth(reward)
            if turn_id is None:
                fields: dict[str, Any] = {"started_ms": started_ms, "finished_ms": _now_ms()}
                turn_id, sent = self._turn(self._said.step(said), fields | {"reward": told})
                handed.append(sent)
            elif told is not None:
                handed.append(self._recorder.hand(self._reward(turn_id, told)))
            self._last_call = None
            self._metrics = metrics_of(answer.info)
            observation = self._see(answer.observation)
            self._steps.append(
                Step(
                    kind=answer.kind,
                    observation=observation,
                    action=msgspec.json.encode(said).decode(),
                    reward=reward,
                    discount=answer.discount,
                    turn_id=turn_id,
                )
            )
            self._record = msgspec.structs.replace(
                self._record,
                episode_return=added(self._record.episode_return, reward),
                final_reward=reward,
            )
            return handed

    def end(
        self, status: EndStatus, *, reward: Any = None, final_message: Any = None, **words: Any
    ) -> list[Handed]:
        """End it, unless that was done.

        Args:
            status: How it ended.
            reward: A number or a payload with `score`; unset: what the options say.
            final_message: Whatever can be taken for one; unset: the last there is.
            words: `finish_reason`, `accepted`, `will_retry`; all others are the reason's.
        """
        told = {name: words.pop(name) for name in _OF_THE_END if name in words}
        with self._lock:
            if self.over is not None or self._source != self._recorder.source:
                return []
            try:
                unjudged = self._options.judging is None and told.get("accepted", True)
                if reward is None and unjudged:
                    reward = self._options.worth(self.record, self._metrics)
                if isinstance(reward, Mapping) and self._branches:
                    reward = {**reward, "branches": self._branches}
                more = {"reward": _sent(reward), "final_message": self._final(final_message)}
                if unjudged and self._options.score is None and status == "timeout":
                    more["reward_pending"] = reward is None  # it is judged later
                handed = self._hand_end(status, told | more, words)
            except Exception as error:  # a score of somebody's own, which may raise anything
                status = "error"
                handed = self._hand_end(status, told, _unjudged(error))
            self.over = status
        self._recorder.over(self.session_id)
        return [handed]

    def _hand_end(self, status: EndStatus, told: dict[str, Any], reason: dict[str, Any]) -> Handed:
        message = reason.get("message")
        if message is not None:
            reason = {**reason, "message": plain(str(message))[:REASON_CHARS_MAX]}
        event = SessionEnded(
            session_id=self.session_id,
            **self._identity,
            end_status=status,
            reason=EndReason(**reason) if reason else None,
            turns={self._source: self.turns} if self.turns else None,
            **told,
        )
        return self._recorder.hand(event, ending=True)

    def failed(
        self, error: BaseException, status: EndStatus, stage: str, **more: Any
    ) -> list[Handed]:
        """End it by what was raised."""
        kind, message = type(error).__name__, str(error) or repr(error)
        return self.end(status, stage=stage, type=kind, message=message, **more)

    def case(self, status: EndStatus) -> Case:
        """What a judger is given of it."""
        with self._lock:
            messages = self._said.messages if not self._calls else self._said.spoken
            return Case(
                session_id=self.session_id,
                messages=messages,
                tools=plain(self._tools) or [],
                final_message=messages[-1] if messages else None,
                turns=self.turns,
                metadata=plain(self.metadata),
                end_status=status,
            )

    def mark(self) -> Mark:
        """The present place."""
        with self._lock:
            place = self._said.place()
            turn_id = None if place.told is None else place.told.turn_id
            return Mark(self.session_id, turn_id, place, self.record)

    def go_back(self, mark: Mark) -> None:
        """What follows goes on from there; what came after it stays as a branch."""
        with self._lock:
            if len(self._steps) > len(mark.record.steps) or self._last_call is not None:
                worth = self._options.worth(self.record, {}) or {}
                newest = self._said.told[-1].turn_id if self._said.told else None
                self._branches.append({**worth, "turn_id": newest})
            self._restore(mark)

    def _restore(self, mark: Mark) -> None:
        self._said.go_back(mark.place)
        self._steps = list(mark.record.steps)
        self._record = msgspec.structs.replace(mark.record, session_id=self.session_id)
        self._last_call = None

    def _turn(self, drawn: Drawn, fields: dict[str, Any]) -> tuple[str, Handed]:
        turn_id = f"t{self.turns + 1}"
        place = {"source": self._source, "seq": self.turns + 1}
        event: Turn = self._said.event(self.session_id, turn_id, drawn, {**fields, **place})
        handed = self._recorder.hand(event)
        self.turns += 1
        self._said.handed(event, drawn, handed)
        return turn_id, handed

    def _reward(self, turn_id: str, told: Any) -> Reward:
        # The id is the turn's: told again, it is the same reward.
        return Reward(
            session_id=self.session_id, turn_id=turn_id, reward_id=f"step:{turn_id}", reward=told
        )

    def _see(self, observation: Any) -> str:
        self._since_ms = _now_ms()
        own = self._options.observation
        whole = own is None and conversation_in(observation) is not None
        return self._said.saw(self._messages(observation, "user"), whole=whole)

    def _messages(self, value: Any, role: str) -> list[Message]:
        speak: Speak | None = getattr(self._options, "observation" if role == "user" else "action")
        strange = self._recorder.strange
        if speak is not None:
            return [message_from(plain(one, strange), role) for one in speak(value)]
        return messages_from(value, role, strange)

    def _final(self, given: Any) -> msgspec.Raw:
        if given is not None:
            return json_text(final_message_from(given, self._recorder.strange))
        said = self._said.path if self._calls else self._said.seen or self._said.path
        return said[-1] if said else NOT_GIVEN


@dataclass(frozen=True, slots=True)
class _Watch:
    """Ends an episode whose time is over, if it is still there."""

    episode: "weakref.ref[Episode]"
    limit_s: float

    def __call__(self) -> None:
        episode = self.episode()
        if episode is not None and episode.over is None:
            episode.end(
                "timeout",
                stage="environment",
                category="timeout",
                message=f"the episode was not over in {self.limit_s:g} s",
            )


def _unjudged(error: Exception) -> dict[str, Any]:
    """Why an end could not be told as it was meant."""
    return {"stage": "judger", "type": type(error).__name__, "message": str(error)}


def _worth(reward: float | tuple[float, ...]) -> float | dict[str, Any]:
    """A reward as it is sent: several numbers stay several, beside their sum."""
    if isinstance(reward, tuple):
        return {"score": float(sum(reward)), "terms": list(reward)}
    return reward


def _sent(reward: Any) -> float | dict[str, Any] | None:
    """A score that is no number is left as it is, so that it is seen."""
    if isinstance(reward, Mapping):
        payload = plain_reward({"score": None, **reward})
        size = len(bytes(json_text(payload)))
        return payload if size <= PAYLOAD_BYTES_MAX else {"score": payload["score"], "bytes": size}
    return None if reward is None else float(plain_score(reward))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
