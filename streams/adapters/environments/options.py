"""How the episodes of one environment are told: whose they are, what they are worth, their time.

Invariant: a field that no session has is refused when the environment is wrapped, not later.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from schemas.events import SessionOpened
from streams.adapters.environments.steps import Record, scalar
from streams.adapters.judgers.judging import Judging
from streams.core.content import Message

Fields = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]
Score = Literal["return", "final"] | Callable[[Record], float | Mapping[str, Any]] | None
Speak = Callable[[Any], list[Message]]
_KNOWN = frozenset(SessionOpened.__struct_fields__) - {"v"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may be said of an environment when it is wrapped."""

    fields: Fields = field(default_factory=dict)
    """Of `session_opened`: group_id, split, metadata, ...; or what gives them for the episode of
    this number, from 0: rollout_index, attempt, task_id."""
    score: Score = "return"
    """What the session is worth: the sum of its rewards, the last of them, or what this gives.
    None: nothing yet, somebody else judges it later."""
    judging: Judging | None = None
    """Asked at the end of an episode, before the environment is reset or closed; beats `score`."""
    episode_timeout_s: float | None = None
    """An episode that takes longer ends as `timeout`, with the turns it has."""
    step_timeout_s: float | None = None
    """Likewise one whose environment does not answer; counts where answers are awaited."""
    observation: Speak | None = None
    """An observation as messages that come behind those so far. Unset: one that is made of messages
    is the whole prompt; any other is its text or JSON, as a message of a user."""
    action: Speak | None = None
    """An action, likewise; its last message is the answer."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if isinstance(self.fields, Mapping):
            _check(self.fields)
        for name in ("episode_timeout_s", "step_timeout_s"):
            seconds = getattr(self, name)
            if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"{name}={seconds!r}: give seconds above 0, or leave it out")

    def fields_of(self, episode: int) -> dict[str, Any]:
        """What to open the session of an episode with; what is None is left out."""
        given = self.fields if isinstance(self.fields, Mapping) else self.fields(episode)
        _check(given)
        return {name: value for name, value in given.items() if value is not None}

    def worth(self, record: Record, metrics: Mapping[str, Any]) -> dict[str, Any] | None:
        """The reward of an episode: its score, beside the return and the final reward."""
        if self.score is None or (record.final_reward is None and not callable(self.score)):
            return None
        told: dict[str, Any] = {
            "return": _listed(record.episode_return),
            "final_reward": _listed(record.final_reward),
            "steps": sum(step.kind != "first" for step in record.steps),
        }
        if metrics:
            told["metrics"] = dict(metrics)
        if callable(self.score):
            given = self.score(record)
            return told | (dict(given) if isinstance(given, Mapping) else {"score": given})
        whole = record.episode_return if self.score == "return" else record.final_reward
        return {"score": scalar(whole), **told}


def _check(fields: Mapping[str, Any]) -> None:
    unknown = fields.keys() - _KNOWN
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))}: not a field of session_opened")


def _listed(reward: float | tuple[float, ...] | None) -> float | list[float] | None:
    return list(reward) if isinstance(reward, tuple) else reward
