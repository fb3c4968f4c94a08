"""Environments whose episodes are sessions of the log: same protocol in, same protocol out.

    env = recorded(gymnasium.make("FrozenLake-v1"), Recorder())

    steps          what an environment answered; frozen records of an episode
    conversation   turn events: what is new since the turn they go on from
    episode        one session, from its opening to its one end
    recording      which episode is under way, and how each of them ends
    blocking, gym, dm      the wrappers of environments that block
    awaited        the wrapper of environments that are awaited
    options, recorder, publisher   how episodes are told, where, and by which thread

Without a recorder nothing is recorded and nothing is paid for it.

Invariant: what an environment gives or raises is what the caller gets.
"""

import importlib
import inspect
from typing import Any

from streams.adapters.environments.awaited import RecordedAsync
from streams.adapters.environments.awaited import settled as _settled_async
from streams.adapters.environments.blocking import settled as _settled
from streams.adapters.environments.options import Options
from streams.adapters.environments.problems import MustReset, NotRecorded, TookTooLong
from streams.adapters.environments.recorder import NULL, Null, Recorder
from streams.adapters.environments.recording import current
from streams.adapters.environments.steps import Record, Step, dump, load

__all__ = [
    "NULL",
    "MustReset",
    "NotRecorded",
    "Null",
    "Options",
    "Record",
    "RecordedAsync",
    "Recorder",
    "Step",
    "TookTooLong",
    "current",
    "dump",
    "load",
    "recorded",
    "tell_turn",
    "tell_turn_async",
]


def recorded(env: Any, recorder: Recorder | Null = NULL, **options: Any) -> Any:
    """The environment, recorded; which protocol it speaks is seen from it.

    Args:
        env: A gymnasium or dm_env environment, or one whose `reset` and `step` are awaited.
        recorder: Where its episodes go; unset: nowhere.
        options: Those of `Options`: fields, score, judging, time limits, messages.

    Raises:
        TypeError: it speaks none of the three, or there is no such option.
    """
    if inspect.iscoroutinefunction(getattr(env, "step", None)):
        return RecordedAsync(env, recorder, **options)
    # By name: neither package is needed by whoever has no environment of it.
    if hasattr(env, "action_spec"):
        return importlib.import_module(f"{__name__}.dm").RecordedDm(env, recorder, **options)
    if hasattr(env, "action_space"):
        return importlib.import_module(f"{__name__}.gym").RecordedGym(env, recorder, **options)
    detail = f"{type(env).__name__}: neither gymnasium's, dm_env's nor with an awaited `step`"
    raise TypeError(detail)


def tell_turn(**call: Any) -> str | None:
    """From inside an environment's own code: tell a model call of the episode that runs.

    The words are those of `Blocking.turn`; where nothing is recorded it does nothing.
    """
    recording = current()
    if recording is None:
        return None
    turn_id, handed = recording.call(call)
    _settled(recording, handed)
    return turn_id


async def tell_turn_async(**call: Any) -> str | None:
    """`tell_turn`, for code that awaits."""
    recording = current()
    if recording is None:
        return None
    turn_id, handed = recording.call(call)
    await _settled_async(recording, handed)
    return turn_id
