"""`make chaos-embedded KILLS=100 SEED=1`: an embedded log whose processes are killed, and killed.

    publisher ──► file ──► processor           kill -9 of either, at random moments
                   │
                   └──► everything acknowledged is there; samples, outcomes, revisions, traces,
                        dead letters and the table are what the pure core gives, each once

Once in between the processor may not write (a limit on the size of its files, as on a full
disk): it has to say so, and to go on by itself when it may again.

Exit codes: 0 all is as it has to be; 1 something is not.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from streams.log.sqlite import SqliteLog
from streams.processor.rows import RowKey, read_key, read_row, write_row
from streams.settings import Settings
from tests.chaos.arena import environ_of
from tests.chaos.comparison import Verdict, compare, found
from tests.chaos.embedded_publisher import steps
from tests.chaos.leash import ended_by_sigterm
from tests.chaos.oracle import Expected, Oracle, read_to_end
from tests.kafka.jars import ROOT

RUN = "from streams.cli.main import main; main()"
SECONDS_MAX = 900.0
KILL_AFTER_S = (0.05, 1.6)
"""A process that starts takes about half a second: some die before they have done anything."""
FULL_BYTES = 4096
TIME_BYTES = 8


def embedded_settings(folder: Path) -> Settings:
    """Settings under which everything happens within seconds."""
    return Settings(
        log=str(folder / "log.db"),
        trace_share=0.3,
        idle_limit_s=8.0,
        reward_grace_s=8.0,
        processor_sweep_interval_s=0.3,
        marker_retention_s=30.0,
        metrics_port=0,
    )


@dataclass
class Run:
    """One log, its two processes, and what became of them."""

    settings: Settings
    folder: Path
    seed: int
    sessions: int
    acknowledged: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    """What the processor said while it could not write."""
    publisher: subprocess.Popen[bytes] | None = None
    processor: subprocess.Popen[bytes] | None = None

    def supervise(self) -> None:
        """Start whatever does not run; a publisher that is done stays so."""
        if self.processor is None or self.processor.poll() is not None:
            self.processor = self._start("processor", ["-c", RUN, "processor"])
        if self.publisher is not None and self.publisher.poll() is None:
            return
        if self.publisher is not None:
            self.acknowledged = max(self.acknowledged, self._told())
        if self.acknowledged < self.total:
            words = [self.seed, self.sessions, self.acknowledged]
            module = ["-m", "tests.chaos.embedded_publisher"]
            self.publisher = self._start("publisher", [*module, *map(str, words)])

    @property
    def total(self) -> int:
        return len(self._all_steps)

    def __post_init__(self) -> None:
        self._all_steps = list(steps(self.seed, self.sessions))

    def _start(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        # One file for all of a name: what a killed one said last stays readable.
        with (self.folder / f"{name}.log").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env={**os.environ, **environ_of(self.settings)},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def _told(self) -> int:
        lines = (self.folder / "publisher.log").read_text().splitlines()
        return max((int(line) for line in lines if line.isdigit()), default=0)

    def kill(self, name: str) -> None:
        """`kill -9`, whatever it does just now."""
        process: subprocess.Popen[bytes] | None = getattr(self, name)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait(20)
            self.kills[name] += 1

    def end(self) -> None:
        for process in (self.publisher, self.processor):
            if process is not None:
                process.kill()
                process.wait(20)

    async def no_room(self) -> None:
        """The processor's files may not grow for a while."""
        self.supervise()
        assert self.processor is not None
        log, before = self.folder / "processor.log", len(self.said())
        deadline_s = time.monotonic() + 60
        none = resource.RLIM_INFINITY
        resource.prlimit(self.processor.pid, resource.RLIMIT_FSIZE, (FULL_BYTES, none))
        try:
            while len(self.said()) == before or "trying again" not in log.read_text():
                assert time.monotonic() < deadline_s, f"nothing was said: {self.said()[-3:]}"
                assert self.processor.poll() is None, self.said()[-3:]
                self.supervise()
                await asyncio.sleep(0.1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(self.processor.pid, resource.RLIMIT_FSIZE, (none, none))
        self.refused = [line for line in self.said()[before:] if "trying again" in line]

    def said(self) -> list[str]:
        path = self.folder / "processor.log"
        return path.read_text().splitlines() if path.exists() else []


async def hurt(run: Run, kills: int, dice: Random) -> None:
    """Kill until it is enough; half-way, no room."""
    while run.kills.total() < kills:
        run.supervise()
        await asyncio.sleep(dice.uniform(*KILL_AFTER_S))
        run.kill("publisher" if dice.random() < 0.3 else "processor")
        if run.kills.total() == kills // 2 and not run.refused:
            await run.no_room()


async def settled(run: Run, oracle: Oracle) -> None:
    """Until everything is published, worked on and closed."""
    deadline_s = time.monotonic() + SECONDS_MAX
    settings = run.settings
    async with SqliteLog(Path(settings.log), settings) as log:
        while time.monotonic() < deadline_s:
            run.supervise()
            await oracle.read_on(log)
            lag = sum((await log.lag(settings.processor_id, settings.turns_topic)).values())
            done = run.acknowledged >= run.total and not lag and not oracle.open_sessions
            if done and not sum(
                (await log.lag(settings.processor_id, settings.turns_topic)).values()
            ):
                await oracle.close()
                return
            await asyncio.sleep(0.3)
    raise TimeoutError(f"{run.acknowledged} of {run.total}, lag {lag}: {run.said()[-5:]}")


async def judged(run: Run, oracle: Oracle) -> tuple[Verdict, list[str]]:
    """What differs from the core, and what was acknowledged and is not there."""
    settings = run.settings
    async with SqliteLog(Path(settings.log), settings, create=False) as log:
        await oracle.read_on(log)
        await oracle.close()
        out = await found(log, settings)
        out.tables = {0: await table(log, oracle.expected)}
        reader = await log.read(settings.turns_topic, {0: 0})
        stored = Counter(
            [(e.key, e.value) async for e in read_to_end(log, settings.turns_topic, reader)]
        )
        await reader.close()
    sent = Counter((step.key, step.value) for step in run._all_steps)
    missing = [f"{key!r}" for (key, value), n in sent.items() if stored[key, value] < n]
    return compare(oracle.expected, out), missing


async def table(log: SqliteLog, expected: Expected) -> dict[bytes, bytes]:
    """The table as a changelog would hold it: without times, events in full."""
    entries: dict[bytes, bytes] = {}
    async for key, value in log.table_entries():
        entries[key] = value[TIME_BYTES:]
        wanted = expected.tables.get(0, {}).get(key)
        if isinstance(read_key(key), RowKey) and wanted is not None:
            row = read_row(entries[key])
            if row.code is None:
                entries[key] = write_row(row._replace(value=read_row(wanted).value))
    return entries


async def chaos(folder: Path, kills: int, seed: int, sessions: int) -> list[str]:
    """What is not as it has to be; prints the figures."""
    run = Run(embedded_settings(folder), folder, seed, sessions)
    oracle = Oracle(run.settings)
    began_s = time.monotonic()
    try:
        await hurt(run, kills, Random(f"embedded {seed}"))
        await settled(run, oracle)
    finally:
        run.end()
    verdict, missing = await judged(run, oracle)
    wrong = [f"{name}: {found[:5]}" for name, found in verdict.differences.items()]
    wrong += [f"acknowledged and lost: {missing[:5]}"] if missing else []
    twice = {kind: n for kind, n in verdict.duplicates.items() if n}
    wrong += [f"stored twice: {twice}"] if twice else []
    expected = oracle.expected
    say(f"kills {dict(run.kills)}, processor said once without room: {run.refused[:1]}")
    say(
        f"sessions {len(expected.outcomes)}, events {expected.counts['events']}, samples "
        f"{len(expected.samples)}, revisions {len(expected.revisions)}, took "
        f"{time.monotonic() - began_s:.0f} s"
    )
    for line in (*verdict.lines(), *wrong):
        say(line)
    return wrong


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.chaos.embedded", description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--sessions", type=int, default=400)
    options = parser.parse_args()
    with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="turnstream-chaos-") as folder:
        arguments = (Path(folder), options.kills, options.seed, options.sessions)
        sys.exit(1 if asyncio.run(chaos(*arguments)) else 0)


if __name__ == "__main__":
    main()
