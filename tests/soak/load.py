"""Small sessions, as many as wanted, each the same at every run.

    of a hundred    what becomes of it
    60              opened, two or three turns, ended with its reward
    20              ended without one; the reward follows
    10              closed, and then a second reward revises it
     9              closed, and then its last turn is delivered once more
     1              never ended: it has to expire

Ids are as long as real ones, since a closed session is remembered mostly by ids.

Invariant: what a session sends follows from its number and the seed alone.
"""

from collections import deque
from collections.abc import Iterator
from random import Random
from typing import Literal, NamedTuple

import numpy as np

from schemas import codec
from schemas.events import Event, Reward, SessionEnded, SessionOpened, Turn
from schemas.record import json_text
from streams.log.keys import event_key

SIDE_BY_SIDE = 300
GROUP_SIZE = 8
IDS_PER_TURN = 24

Fate = Literal["plain", "pending", "revised", "repeated", "expires"]


class Small(NamedTuple):
    """One session: its id, what becomes of it, and its events in order."""

    session_id: str
    fate: Fate
    values: list[bytes]
    """The last one of a session that is revised or repeated comes after its close."""


def fate_of(number: int) -> Fate:
    """What becomes of the session with this number."""
    match number % 100:
        case 99:
            return "expires"
        case place if place >= 90:
            return "repeated"
        case place if place >= 80:
            return "revised"
        case place if place >= 60:
            return "pending"
        case _:
            return "plain"


def small_session(seed: int, number: int) -> Small:
    """The session with this number."""
    dice = Random(f"{seed} {number}")
    session_id, fate = _name(dice), fate_of(number)
    group_id = f"group-{seed}-{number // GROUP_SIZE}"
    turns = list(_turns(dice, session_id))
    events: list[Event] = [
        SessionOpened(
            session_id=session_id,
            run_id="soak",
            task_id=f"task-{number // GROUP_SIZE}",
            group_id=group_id,
            group_size=GROUP_SIZE,
            rollout_index=number % GROUP_SIZE,
            metadata=json_text({"number": number}),
        ),
        *turns,
    ]
    if fate != "expires":
        reward = None if fate == "pending" else dice.random()
        events.append(SessionEnded(session_id=session_id, end_status="completed", reward=reward))
    if fate in ("pending", "revised"):
        given = dice.random()
        events.append(Reward(session_id=session_id, reward_id=_name(dice), reward=given))
    if fate == "repeated":
        events.append(turns[-1])
    return Small(session_id, fate, [codec.to_msgpack(event) for event in events])


def _turns(dice: Random, session_id: str) -> Iterator[Turn]:
    base: str | None = None
    end = 0
    for number in range(dice.choice((2, 3))):
        ids = np.array([dice.randrange(150_000) for _ in range(IDS_PER_TURN)], np.int32)
        given, sampled = ids[: IDS_PER_TURN // 2], ids[IDS_PER_TURN // 2 :]
        turn_id = _name(dice)
        asked = {"role": "tool" if base else "user", "content": f"{session_id} asks {number}"}
        yield Turn(
            session_id=session_id,
            turn_id=turn_id,
            prompt_messages=(json_text(asked),),
            prompt_ids=given,
            output_ids=sampled,
            logprobs=np.full(sampled.size, -dice.random(), np.float32),
            response_message=json_text({"role": "assistant", "content": f"answer {number}"}),
            base_turn_id=base,
            kept_messages=2 * number if base else None,
            kept_ids=end if base else None,
        )
        base, end = turn_id, end + IDS_PER_TURN


def _name(dice: Random) -> str:
    return f"{dice.getrandbits(128):032x}"


def entries(seed: int, numbers: range) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of these sessions, some hundred of them side by side."""
    dice = Random(f"order {seed}")
    waiting = iter(numbers)
    running: list[tuple[bytes, deque[bytes]]] = []
    while True:
        while len(running) < SIDE_BY_SIDE and (number := next(waiting, None)) is not None:
            session = small_session(seed, number)
            running.append((event_key(session.session_id), deque(session.values)))
        if not running:
            return
        at = dice.randrange(len(running))
        key, values = running[at]
        yield key, values.popleft()
        if not values:
            running[at] = running[-1]
            running.pop()
