"""Sessions that are made to cost more than they send, as an agent with a key could."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from schemas.events import Event, Reward, SessionEnded, SessionOpened, Turn

USER = msgspec.Raw(b'{"role":"user","content":"go on"}')


def answer(number: int) -> msgspec.Raw:
    return msgspec.Raw(json.dumps({"role": "assistant", "content": f"a{number}"}).encode())


def turn(session_id: str, number: int, turn_id: str, prompt: int, **fields: Any) -> Turn:
    """Ten sampled tokens behind a prompt of its own."""
    question = msgspec.Raw(json.dumps({"role": "user", "content": f"q{number}"}).encode())
    whole: dict[str, Any] = {
        "session_id": session_id,
        "turn_id": turn_id,
        "prompt_messages": (question,),
        "prompt_ids": np.full(prompt, 7, np.int32),
        "output_ids": np.full(10, 9, np.int32),
        "logprobs": np.full(10, -0.5, np.float32),
        "response_message": answer(number),
        "source": "attack",
        "seq": number + 1,
    }
    return Turn(**whole | fields)


def ended(session_id: str, **fields: Any) -> SessionEnded:
    whole: dict[str, Any] = {"end_status": "completed", "reward": 1.0}
    return SessionEnded(session_id=session_id, **whole | fields)


def innocent(session_id: str) -> Iterator[Event]:
    yield SessionOpened(session_id=session_id)
    yield turn(session_id, 0, "t0", 100)
    yield ended(session_id)


def many_joins(session_id: str, joins: int) -> Iterator[Event]:
    """Three turns, each with this many places where the engine was asked again."""
    places: list[Any] = [(0, None)] * joins
    for number in range(3):
        yield turn(session_id, number, f"t{number}", 10, continued_at=places)
    yield ended(session_id)


def many_rewards(session_id: str, rewards: int) -> Iterator[Event]:
    """One turn, and rewards by long ids."""
    yield turn(session_id, 0, "t0", 10)
    for number in range(rewards):
        name = f"{number:0>200}"
        yield Reward(session_id=session_id, reward_id=name, reward=0.5, final=False)
    yield ended(session_id)


def many_turns(session_id: str, turns: int, letter: str) -> Iterator[Event]:
    """Turns by ids of 200 characters that take more than a byte each."""
    for number in range(turns):
        yield turn(session_id, number, letter * 193 + f"{number:07}", 3)
    yield ended(session_id)


def ordinary(session_id: str, turns: int) -> Iterator[Event]:
    """One conversation of this many turns, told in deltas, that began anew a few times."""
    yield SessionOpened(session_id=session_id)
    for number in range(turns):
        turn_id, at = f"turn-{number:032x}", number % (turns // 4)
        if at == 0:
            yield turn(session_id, number, turn_id, 10)
            continue
        yield turn(
            session_id,
            number,
            turn_id,
            10,
            base_turn_id=f"turn-{number - 1:032x}",
            kept_messages=2 * at,
            kept_ids=20 * at,
        )
    yield ended(session_id, turns={"attack": turns})


def forks(session_id: str, tokens: int, branches: int, *, end: bool = True) -> Iterator[Event]:
    """One long turn, and branches that each go on from it: each sample repeats it."""
    yield turn(session_id, 0, "base", tokens)
    for number in range(1, branches + 1):
        yield turn(
            session_id,
            number,
            f"t{number}",
            1,
            base_turn_id="base",
            kept_messages=2,
            kept_ids=tokens + 10,
        )
    if end:
        yield ended(session_id)
