"""Random logs in which everything happens to a few sessions at once."""

import json
import random
from collections.abc import Callable
from typing import Any

from schemas import codec
from tests.processor.crashing import Entry

STATUSES = ("completed", "completed", "truncated", "error", "rejected")


def busy_log(seed: int, events: int = 60, sessions: int = 4) -> list[Entry]:
    """Events of a few sessions, interleaved; poison and contradictions among them."""
    choices = random.Random(seed)
    turns: dict[str, int] = {}
    log: list[Entry] = []
    for offset in range(events):
        session_id = f"s{choices.randrange(sessions)}-{choices.randrange(1 + offset // 25)}"
        if choices.random() < 0.05:
            log.append((session_id.encode(), b"\xc1poison"))
            continue
        event = _event(choices, session_id, turns, offset)
        record = codec.from_json(json.dumps(event).encode())
        key = b"" if event["type"] == "purge" else session_id.encode()
        log.append((key, codec.to_msgpack(record)))
    return log


def _event(
    choices: random.Random, session_id: str, turns: dict[str, int], offset: int
) -> dict[str, Any]:
    known = turns.get(session_id, 0)
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "turn": lambda: _turn(session_id, known),
        "again": lambda: _turn(session_id, choices.randrange(known) if known else 0),
        "bad": lambda: _turn(session_id, 1000 + offset) | {"base_turn_id": "nobody"},
        "reward": lambda: _reward(choices, known),
        "session_ended": lambda: _ending(choices),
        "session_expired": lambda: {"last_offset": offset - choices.randrange(1, 6)},
        "session_opened": lambda: {"group_id": "g"},
        "turn_undelivered": lambda: {"turn_id": f"t{choices.randrange(known + 1)}"},
        "purge": lambda: {"floor": choices.randrange(offset + 4)},
    }
    kind = choices.choices(list(makers), (40, 6, 4, 18, 12, 8, 4, 4, 2))[0]
    if kind == "turn":
        turns[session_id] = known + 1
    return {"type": kind, "session_id": session_id} | makers[kind]()


def _ending(choices: random.Random) -> dict[str, Any]:
    reward = choices.choice([None, 1.0, 0.5])
    return {"end_status": choices.choice(STATUSES), "reward": reward}


def _reward(choices: random.Random, known: int) -> dict[str, Any]:
    event: dict[str, Any] = {"reward": choices.random(), "final": choices.random() < 0.5}
    if choices.random() < 0.8:
        event |= {"reward_id": f"r{choices.randrange(4)}"}
    if known and choices.random() < 0.3:
        event |= {"turn_id": f"t{choices.randrange(known)}"}
    return event


def _turn(session_id: str, number: int) -> dict[str, Any]:
    """Each turn continues the one before; every third starts a branch of its own."""
    history = [{"role": "user", "content": "u"}]
    ids = [1]
    for k in range(number % 3):
        history += [{"role": "assistant", "content": f"a{number - number % 3 + k}"}]
        history += [{"role": "tool", "content": "x"}]
        ids += [100 + k, 2]
    return {
        "type": "turn",
        "session_id": session_id,
        "turn_id": f"t{number}",
        "prompt_messages": history,
        "prompt_ids": ids,
        "output_ids": [100 + number % 3],
        "response_message": {"role": "assistant", "content": f"a{number}"},
    }
