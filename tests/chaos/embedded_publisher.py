"""A process that publishes the load of a seed into an embedded log and says what is acknowledged.

python -m tests.chaos.embedded_publisher SEED SESSIONS SKIP      settings from TURNSTREAM_*

The order of the load follows from the seed alone, so one that was killed goes on at what its
predecessor had acknowledged; what was stored without an answer then stands there twice, as a
producer's retry does.

Invariant: a number is printed only when the log has acknowledged as many entries.
"""

import asyncio
import sys
from collections.abc import Iterator

from streams.log.interface import Outgoing
from streams.log.opening import open_log
from streams.settings import load_settings
from tests.chaos.load import Load
from tests.chaos.sessions import Step

CHUNK = 10
PAUSE_S = 0.02
SIDE_BY_SIDE = 30


def steps(seed: int, sessions: int) -> Iterator[Step]:
    """The whole load, in its one order."""
    load = Load(None, load_settings(), seed, SIDE_BY_SIDE)  # type: ignore[arg-type]  # not sent
    while (step := load.next_step(sessions)) is not None:
        yield step


async def publish(seed: int, sessions: int, skip: int) -> None:
    settings = load_settings()
    left = list(steps(seed, sessions))
    async with open_log(settings, create=True) as log:
        for start in range(skip, len(left), CHUNK):
            chunk = left[start : start + CHUNK]
            sent = [
                await log.send(Outgoing(topic=settings.turns_topic, key=step.key, value=step.value))
                for step in chunk
            ]
            for one in sent:
                await one
            sys.stdout.write(f"{start + len(chunk)}\n")
            sys.stdout.flush()
            await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    asyncio.run(publish(*map(int, sys.argv[1:4])))
