"""`make chaos SESSIONS=1000 SEED=7`: faults until the run counts, then the comparison.

    faults under backlog ──► a calm with a zombie in it ──► the hard end ──► verdict

A run counts if every kind of fault happened three times with more than 500 events waiting and
sessions open, if events had to be fetched again, and if workers met changelog entries that were
not theirs. Faults go on until then.

Exit codes: 0 all is as the pure core gives it; 1 something is not; 3 the run does not count.
"""

import argparse
import asyncio
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from streams.log.client_logs import silence_client_logs
from tests.chaos.arena import Arena, Stuck, short_settings
from tests.chaos.comparison import Verdict
from tests.chaos.faults import KINDS, Faults, Injected
from tests.chaos.leash import ended_by_sigterm
from tests.chaos.load import CHUNK
from tests.chaos.sessions import script
from tests.kafka.broker import Broker, start_all

EXIT_DIFFERENT = 1
EXIT_DOES_NOT_COUNT = 3
WORKERS = 3
EACH_FAULT = 3
SECONDS_MAX = 1200.0
PLANNED_SECONDS = 420.0
"""What three faults of each kind take."""
BACKLOG = 1500
RATE = 400.0
CALM_RATE = 30.0


class Chaos:
    """One run."""

    def __init__(self, arena: Arena, sessions: int, seed: int) -> None:
        self.arena = arena
        self.sessions = sessions
        self.dice = Random(f"chaos {seed}")
        self.faults = Faults(arena, self.dice, WORKERS)
        self.began_s = time.monotonic()
        self.exits: list[int | str] = []
        events = statistics.mean(len(script(seed, n).steps) for n in range(20))
        pace_s = WORKERS * PLANNED_SECONDS / (sessions * events)
        self.pace_s = min(0.06, max(0.002, pace_s))

    async def run(self) -> Verdict:
        arena = self.arena
        await arena.load.publish(BACKLOG)
        arena.crew.pace(self.pace_s)
        arena.crew.supervise(WORKERS)
        arena.start_load(RATE, BACKLOG)
        await self._inject()
        await self._calm()
        while arena.load.begun < self.sessions:
            await arena.load.publish(CHUNK)
        self.exits = await arena.end_the_hard_way(WORKERS)
        say(f"ended with exit codes {self.exits}")
        return await arena.judged()

    def missing(self) -> list[str]:
        """Why the run does not count yet."""
        counted = Counter(fault.kind for fault in self.faults.done if fault.counts)
        counts = self.arena.crew.counts()
        missing = [
            f"{kind}: {counted[kind]} of {EACH_FAULT}"
            for kind in KINDS
            if counted[kind] < EACH_FAULT
        ]
        missing += [] if counts["arrived_gap"] else ["no event had to be fetched again"]
        missing += [] if counts["foreign_writes"] else ["no foreign write to the changelog"]
        return missing

    async def _inject(self) -> None:
        plan: list[str] = []
        while self.missing() and time.monotonic() - self.began_s < SECONDS_MAX:
            if not plan:
                counted = Counter(fault.kind for fault in self.faults.done if fault.counts)
                plan = [k for k in KINDS for _ in range(EACH_FAULT - counted[k])] or [*KINDS]
                self.dice.shuffle(plan)
            await self.faults.wait_for_backlog(60)
            kind = plan.pop()
            fault = await self.faults.inject(kind)
            told(kind, fault)

    async def _calm(self) -> None:
        """Without backlog sessions expire, and a zombie wakes that would expire living ones."""
        arena = self.arena
        await arena.hold_load()
        arena.crew.pace(0.0)
        await arena.drained(WORKERS)
        say("calm: nothing waits")
        arena.start_load(CALM_RATE, BACKLOG)
        await asyncio.sleep(4)
        zombie = self.dice.choice(arena.crew.able)
        zombie.stop()
        try:
            await asyncio.sleep(arena.settings.idle_limit_s + 4)
        finally:
            zombie.go_on()
        await asyncio.sleep(3)
        await arena.hold_load()

    def report(self, verdict: Verdict) -> list[str]:
        arena, done = self.arena, self.faults.done
        kinds = Counter(fault.kind for fault in done)
        counted = Counter(fault.kind for fault in done if fault.counts)
        loads_ms = arena.crew.recoveries_ms()
        still_s = [fault.standstill_s for fault in done]
        counts, expected = arena.crew.counts(), arena.oracle.expected
        met = ", ".join(f"{name} {n}" for name, n in sorted(expected.counts.items()))
        return [
            "faults: " + ", ".join(f"{k} {kinds[k]} ({counted[k]} count)" for k in KINDS),
            f"sessions {len(expected.outcomes)}, samples {len(expected.samples)}, "
            f"revisions {len(expected.revisions)}, traces {len(expected.traces)}, "
            f"events {expected.counts['events']}",
            f"met: {met}",
            *verdict.lines(),
            f"recovery of tables: {_spread(loads_ms, 'ms')}",
            f"from a fault until every partition moved: {_spread(still_s, 's')}",
            f"re-seeks {counts['seeks']}, events behind a gap {counts['arrived_gap']}, "
            f"foreign changelog writes {counts['foreign_writes']}, "
            f"changelog entries written again {arena.found.rewritten}",
            f"workers started {len(arena.crew.started)}, of {WORKERS} at a time; "
            f"seconds per event {self.pace_s:.3f}; took {time.monotonic() - self.began_s:.0f} s",
            *(f"ended by itself: {line}" for line in arena.crew.unexpected),
            *(f"WRONG EXIT: {line}" for line in self.faults.wrong_exits),
        ]


def _spread(values: "list[int] | list[float]", unit: str) -> str:
    if not values:
        return "none"
    middle, most = statistics.median(values), max(values)
    return f"median {middle:.3g} {unit}, max {most:.4g} {unit}, of {len(values)}"


def told(kind: str, fault: Injected | None) -> None:
    if fault is None:
        say(f"{kind}: could not be done")
    else:
        say(
            f"{kind}: lag {fault.lag}, open {fault.open_sessions}, "
            f"moved after {fault.standstill_s:.1f} s"
        )


def say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


async def chaos(sessions: int, seed: int, brokers: int, folder: Path) -> int:
    """The exit code of one run."""
    with contextlib.ExitStack() as stack:
        cluster = Broker.several(folder, brokers)
        for broker in cluster:
            stack.callback(broker.close)
        start_all(cluster)
        settings = short_settings(cluster, marker_retention_s=60.0, processor_buffer_events=4096)
        async with Arena(folder / "workers", cluster, settings, seed) as arena:
            run = Chaos(arena, sessions, seed)
            try:
                verdict = await run.run()
            except Stuck as stuck:
                say(f"STUCK: {stuck}")
                return EXIT_DIFFERENT
            for line in run.report(verdict):
                say(line)
            missing = run.missing()
            for line in missing:
                say(f"does not count: {line}")
            if verdict.differences or run.faults.wrong_exits or any(run.exits):
                return EXIT_DIFFERENT
            return EXIT_DOES_NOT_COUNT if missing else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("sessions", type=int, help="at least; faults may take longer than these")
    parser.add_argument("seed", type=int, help="of the sessions, their order and the faults")
    parser.add_argument("--brokers", type=int, default=1, help="3: replication 3, one is hurt")
    options = parser.parse_args()
    silence_client_logs()
    folder = Path(tempfile.mkdtemp(prefix="turnstream-chaos-"))
    with ended_by_sigterm():
        code = asyncio.run(chaos(options.sessions, options.seed, options.brokers, folder))
    if code:
        say(f"exit {code}; broker data and what the workers said: {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(code)
