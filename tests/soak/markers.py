"""`make soak-markers`: what three workers hold before, after and when all is forgotten.

    warm-up, purge ──► start ──► sessions ──► all closed ──► purge ──► the same once more
                         │                        │             │
                         └──────── memory ────────┴─────────────┘

Exit codes: 0 every bound holds; 1 one does not, or something came out wrong; 3 the run does
not count: it took too long, or partitions moved between workers.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import aiohttp

from streams.errors import LogError
from streams.log.client_logs import silence_client_logs
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.chaos.arena import environ_of
from tests.chaos.leash import ended_by_sigterm
from tests.kafka.broker import Broker
from tests.soak.arena import PURGES, Arena, differences, soak_settings
from tests.soak.load import fate_of
from tests.soak.memory import Course, Memory, Wave, broken_bounds, table
from tests.soak.workers import Crew, Ended

EXIT_BROKEN = 1
EXIT_DOES_NOT_COUNT = 3
WORKERS = 3
WARM_UP = 5000
"""Sessions until buffers are as large as they get."""
WARM_UP_SEED = 0
WAVE_SEEDS = (1, 2)
CLOSED = "sessions_closed"
SECONDS_MAX = 1500.0


class Moment(NamedTuple):
    """All workers at one moment: what they hold, and what they have counted."""

    memories: list[Memory]
    told: list[dict[str, float]]

    def sum(self, name: str) -> float:
        return sum(told.get(name, 0.0) for told in self.told)


class Soak:
    """One run, and what it found."""

    def __init__(self, arena: Arena, sessions: int) -> None:
        self.arena = arena
        self.sessions = sessions
        self.courses: list[Course] = []
        self.wrong: list[str] = []
        self.moved: list[str] = []
        self.rates: list[float] = []

    async def run(self) -> None:
        arena, crew = self.arena, self.arena.crew
        await arena.assigned()
        await arena.run_through(WARM_UP_SEED, WARM_UP)
        await arena.purge()
        start = purged = await self._moment()
        say(f"warm: {WARM_UP:,} sessions came and were forgotten")
        waves: list[list[Wave]] = []
        for seed in WAVE_SEEDS:
            before = purged
            self.rates.append(await arena.run_through(seed, self.sessions))
            closed = await self._moment()
            say(f"wave {seed}: {self.sessions:,} sessions closed, {self.rates[-1]:,.0f} events/s")
            await arena.purge()
            purged = await self._moment()
            self._check_counts(before, closed, purged)
            waves.append(_waves(before, closed, purged))
        self.wrong += await self._differences()
        self.courses = [
            Course(worker.name, memory, tuple(of_worker), worker.peak_own)
            for worker, memory, of_worker in zip(
                crew.workers, start.memories, zip(*waves, strict=True), strict=True
            )
        ]

    async def _moment(self) -> Moment:
        crew = self.arena.crew
        return Moment(await crew.memories(), await crew.metrics())

    async def _differences(self) -> list[str]:
        """What came out otherwise than it had to."""
        runs = [(WARM_UP_SEED, WARM_UP), *((seed, self.sessions) for seed in WAVE_SEEDS)]
        letters = await self.arena.refused()
        refused = [f"dead letters: {letters:,} and not 0"] if letters else []
        return differences(await self.arena.came(), runs) + refused

    def _check_counts(self, before: Moment, closed: Moment, purged: Moment) -> None:
        """A worker that got or lost partitions meanwhile holds other sessions' memory."""
        for n, worker in enumerate(self.arena.crew.workers):
            moments = (before.told[n], closed.told[n], purged.told[n])
            seen = {(told["partitions"], told["recoveries"]) for told in moments}
            if len(seen) > 1:
                self.moved.append(f"{worker.name}: partitions moved: {sorted(seen)}")
        late = sum(fate_of(n) == "revised" for n in range(self.sessions))
        # A purge also removes the floor of the one before it.
        entries = self.sessions + late + PURGES * self.arena.settings.partitions
        figures = {
            "closed sessions": (closed.sum(CLOSED) - before.sum(CLOSED), self.sessions),
            "purged entries": (purged.sum("purged") - closed.sum("purged"), entries),
        }
        for what, (is_, must) in figures.items():
            if is_ != must:
                self.wrong.append(f"{what}: the workers count {is_:,.0f} and not {must:,}")


def _waves(before: Moment, closed: Moment, purged: Moment) -> list[Wave]:
    """Of each worker; whatever it closed, it remembers."""
    return [
        Wave(closed.memories[n], int(closed.told[n][CLOSED] - told[CLOSED]), purged.memories[n])
        for n, told in enumerate(before.told)
    ]


def say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


async def soak(settings: Settings, sessions: int, folder: Path) -> int:
    """The exit code of one run."""
    await create_topics(settings)
    with Crew(folder, environ_of(settings), WORKERS) as crew:
        async with KafkaLog(settings) as log:
            run = Soak(Arena(log, settings, crew), sessions)
            watching = asyncio.create_task(crew.watch())
            try:
                async with asyncio.timeout(SECONDS_MAX):
                    await run.run()
            except TimeoutError as error:
                say(f"not finished: {str(error) or f'{SECONDS_MAX:g} s are over'}")
                return EXIT_DOES_NOT_COUNT
            except (LogError, aiohttp.ClientError) as error:
                say(f"not finished: {error!r}")
                return EXIT_DOES_NOT_COUNT
            except Ended as error:
                say(str(error))
                return EXIT_BROKEN
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
    for line in table(run.courses):
        say(line)
    say("events/s: " + ", ".join(f"{rate:,.0f}" for rate in run.rates))
    broken = [line for course in run.courses for line in broken_bounds(course)]
    for line in run.moved:
        say(f"does not count: {line}")
    for line in run.wrong + broken:
        say(f"WRONG: {line}")
    if run.moved:
        return EXIT_DOES_NOT_COUNT
    return EXIT_BROKEN if run.wrong or broken else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.soak.markers", description=__doc__)
    parser.add_argument("sessions", type=int, nargs="?", default=50_000)
    options = parser.parse_args()
    silence_client_logs()
    folder = Path(tempfile.mkdtemp(prefix="turnstream-soak-markers-"))
    with ended_by_sigterm(), Broker(folder / "broker", heap_mb=512) as broker:
        code = asyncio.run(soak(soak_settings(broker), options.sessions, folder / "workers"))
    if code:
        say(f"exit {code}; broker data and what the workers said: {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(code)


if __name__ == "__main__":
    main()
