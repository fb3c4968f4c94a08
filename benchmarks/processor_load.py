"""Turn events of a given size for the processor's benchmark.

Sessions of twenty turns in delta form, with random ids and text, so that nothing compresses
better than real traffic does.
"""

import random
import string

import numpy as np

from schemas import codec
from schemas.events import Turn
from schemas.record import json_text

TURNS_PER_SESSION = 20
_ID_SHARE = 0.8
"""Of an event's bytes; the rest is message text."""


def turn_values(events: int, size_bytes: int, seed: int = 0) -> list[tuple[bytes, bytes]]:
    """Keys and values, in the order they are published."""
    choices = random.Random(seed)
    numbers = np.random.default_rng(seed)
    # Ids and logprobs: a sampled token costs eight bytes, a given one four.
    tokens = max(8, int(size_bytes * _ID_SHARE / 6))
    letters = string.ascii_letters + "     \n"
    values: list[tuple[bytes, bytes]] = []
    ends: dict[str, tuple[int, int]] = {}
    for number in range(events):
        session_id = f"bench-{number // TURNS_PER_SESSION // 8}-{number % 8}"
        turn, end = ends.get(session_id, (0, 0))
        text = "".join(choices.choices(letters, k=int(size_bytes * (1 - _ID_SHARE))))
        ids = numbers.integers(0, 150_000, tokens, dtype=np.int32)
        given, sampled = ids[: tokens // 2], ids[tokens // 2 :]
        base = f"t{turn - 1}" if turn else None
        values.append(
            (
                session_id.encode(),
                codec.to_msgpack(
                    Turn(
                        session_id=session_id,
                        turn_id=f"t{turn}",
                        prompt_messages=(json_text({"role": "tool", "content": text}),),
                        prompt_ids=given,
                        output_ids=sampled,
                        logprobs=-numbers.random(sampled.size, dtype=np.float32),
                        response_message=json_text({"role": "assistant", "content": f"{turn}"}),
                        base_turn_id=base,
                        kept_messages=2 * turn if base else None,
                        kept_ids=end if base else None,
                    )
                ),
            )
        )
        ends[session_id] = (turn + 1, end + tokens)
    return values
