"""Whether the log holds what the load did: every turn, with the engine's own ids.

Invariant: nothing is taken from the gateway's word; the log is read by itself, the prompts are
compared with what the engine received, the answers with what it gave.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.gateway_script import Script
from schemas import codec
from schemas.events import Turn
from streams.log.sqlite import SqliteLog
from streams.settings import Settings

READ_WAIT_S = 5.0


class Disagreed(Exception):
    """The log and the engine tell different stories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the log holds of the load."""

    turns: int
    built: dict[str, int]
    """Prompts by how they were built."""
    prompt_tokens: float
    """In the mean."""


async def turns_in(path: Path, settings: Settings) -> dict[str, list[Turn]]:
    """The turns of every session, in the order of the log."""
    found: dict[str, list[Turn]] = defaultdict(list)
    topic = settings.turns_topic
    async with SqliteLog(path, settings, create=False) as log:
        end = (await log.end_positions(topic))[0]
        reader = await log.read(topic, {0: 0})
        while reader.positions[0] < end:
            for entry in await reader.next_batch(READ_WAIT_S):
                event = codec.from_msgpack(entry.value or b"")
                if isinstance(event, Turn):
                    found[event.session_id].append(event)
        await reader.close()
    return found


def check(
    turns: Mapping[str, Sequence[Turn]], prompts: Mapping[str, Sequence[str]], script: Script
) -> Recorded:
    """What was recorded of sessions that all follow the script, as far as they went.

    Args:
        turns: what the log holds, by session.
        prompts: digests of what the engine was asked, by session.
        script: what it answered.

    Raises:
        Disagreed: a turn is missing, or its ids are others than the engine's.
    """
    if turns.keys() != prompts.keys():
        raise Disagreed(f"{len(prompts)} sessions reached the engine, {len(turns)} the log")
    built: Counter[str] = Counter()
    tokens = 0
    for session_id, recorded in turns.items():
        asked = prompts[session_id]
        answers = script.answers[: len(asked)]
        if not len(recorded) == len(asked) == len(answers):
            told = f"{len(recorded)} turns in the log, {len(asked)} at the engine"
            raise Disagreed(f"session {session_id}: {told}")
        for turn, digest, answer in zip(recorded, asked, answers, strict=True):
            logprobs = np.asarray(answer.logprobs, np.float32)
            same = (
                turn.prompt_digest is not None
                and bytes(turn.prompt_digest).hex() == digest
                and turn.output_ids.tolist() == answer.ids
                and turn.logprobs is not None
                and np.array_equal(turn.logprobs, logprobs)
            )
            if not same:
                raise Disagreed(f"session {session_id}, turn {turn.turn_id}: other ids")
            built[turn.prompt_built or "?"] += 1
            tokens += (turn.kept_ids or 0) + turn.prompt_ids.size
    count = built.total()
    return Recorded(turns=count, built=dict(built), prompt_tokens=tokens / count)
