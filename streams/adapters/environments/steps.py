"""What an environment answered, read the same way whatever protocol it speaks.

    gymnasium   (observation, info), then (observation, reward, terminated, truncated, info)
    dm_env      a time step: FIRST, MID, LAST with observation, reward, discount
    async       either of the two

The first observation has no action, reward or discount, whatever the environment put there. A
step is the last if the environment says so: `completed` if the episode came to its own end,
`truncated` if it was cut: truncated and not terminated, or a discount above 0 on LAST.

Invariant: reading changes nothing of what the environment gave.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from schemas.events import EndStatus
from schemas.finite import builtin_of
from streams.core.plain_values import plain_score

Kind = Literal["first", "mid", "last"]
Reward = float | tuple[float, ...]
_KINDS: tuple[Kind, ...] = ("first", "mid", "last")
_STEP, _RESET = 5, 2
_INFO_KEYS_MAX = 32
_INFO_CHARS_MAX = 200


class Answer(NamedTuple):
    """One answer of an environment."""

    kind: Kind
    observation: Any
    reward: Reward | None = None
    discount: Reward | None = None
    status: EndStatus | None = None
    """How the episode ended, on the last."""
    info: Mapping[str, Any] | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of an episode as it was recorded."""

    kind: Kind
    observation: str
    """JSON: the messages it became."""
    action: str | None = None
    """JSON, likewise; none on the first."""
    reward: float | tuple[float, ...] | None = None
    discount: float | tuple[float, ...] | None = None
    turn_id: str | None = None
    """The turn that the action was drawn in."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An episode as it was recorded; frozen, and equal to itself written and read."""

    session_id: str
    steps: tuple[Step, ...] = ()
    end_status: EndStatus | None = None
    """None while it goes on."""
    episode_return: float | tuple[float, ...] | None = None
    """The sum of all rewards; none before the first."""
    final_reward: float | tuple[float, ...] | None = None
    """The reward of the newest step."""


def dump(record: Record) -> bytes:
    """A record as one line of JSON."""
    return msgspec.json.encode(record)


def load(line: bytes) -> Record:
    """What `dump` wrote."""
    return msgspec.json.decode(line, type=Record)


class Unreadable(TypeError):
    """An answer that is of none of the protocols."""


def of_reset(result: Any) -> Answer:
    """What a reset gave: an observation with its info, or a time step."""
    if _is_time_step(result):
        return of_time_step(result, first=True)
    if isinstance(result, tuple) and len(result) == _RESET and isinstance(result[1], Mapping):
        return Answer("first", result[0])
    return Answer("first", result)


def of_step(result: Any) -> Answer:
    """What a step gave.

    Raises:
        Unreadable: it is no step of gymnasium's or dm_env's.
    """
    if _is_time_step(result):
        return of_time_step(result)
    if isinstance(result, tuple) and len(result) == _STEP:
        return of_gymnasium(result)
    detail = f"a step gave a {type(result).__name__}: neither a time step nor five values"
    raise Unreadable(detail)


def of_gymnasium(result: Sequence[Any]) -> Answer:
    """Five values; one that is terminal exactly at its limit came to its own end.

    Raises:
        Unreadable: they are more or fewer, as those of the older gym.
    """
    if len(result) != _STEP:
        raise Unreadable(f"a step gave {len(result)} values, where gymnasium's gives {_STEP}")
    observation, reward, terminated, truncated, info = result
    status: EndStatus | None = "completed" if terminated else "truncated" if truncated else None
    kind: Kind = "mid" if status is None else "last"
    return Answer(kind, observation, numbers(reward), None, status, info)


def of_time_step(step: Any, *, first: bool = False) -> Answer:
    """A time step of dm_env, or one that looks like it."""
    kind = "first" if first else _kind_of(step)
    if kind == "first":
        return Answer("first", step.observation)
    discount = numbers(getattr(step, "discount", None))
    status: EndStatus | None = None
    if kind == "last":
        goes_on = discount is not None and bool(np.any(np.asarray(discount) > 0))
        status = "truncated" if goes_on else "completed"
    return Answer(kind, step.observation, numbers(step.reward), discount, status)


def numbers(value: Any) -> Reward | None:
    """A number, or several, as plain floats; none if there is none."""
    if value is None:
        return None
    if isinstance(value, float):
        return float(value)
    one = plain_score(value)
    if isinstance(one, float) and np.ndim(value) == 0:
        return one
    array = np.ma.filled(np.ma.asarray(value, np.float64), np.nan)
    return float(array) if array.ndim == 0 else tuple(array.ravel().tolist())


def added(total: Reward | None, reward: Reward | None) -> Reward | None:
    """The sum of what was given; several numbers are added one by one."""
    if total is None or reward is None:
        return reward if total is None else total
    return numbers(np.add(total, reward))


def scalar(reward: Reward | None) -> float | None:
    """One number: several are added up."""
    return float(sum(reward)) if isinstance(reward, tuple) else reward


def metrics_of(info: Mapping[str, Any] | None) -> dict[str, Any]:
    """The numbers and short texts an environment told with its last step."""
    told: dict[str, Any] = {}
    for key, value in (info or {}).items():
        if len(told) >= _INFO_KEYS_MAX or not isinstance(key, str):
            continue
        held = builtin_of(value) if isinstance(value, np.generic) else value
        if _short(held):
            told[key] = held
    return told


def _short(value: Any) -> bool:
    """Whether it is a number or a text that a person reads."""
    if isinstance(value, str):
        return len(value) <= _INFO_CHARS_MAX
    return isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def _kind_of(step: Any) -> Kind:
    """By its name, else by its number."""
    name = str(getattr(step.step_type, "name", step.step_type)).lower()
    for number, kind in enumerate(_KINDS):
        if name in (kind, str(number)):
            return kind
    detail = f"a time step of type {step.step_type!r:.80}: neither FIRST, MID nor LAST"
    raise Unreadable(detail)


def _is_time_step(result: Any) -> bool:
    return hasattr(result, "step_type") and hasattr(result, "observation")
