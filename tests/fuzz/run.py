"""Fuzzed events and purges into one real worker, for minutes: it must neither die nor fall behind.

    publisher ──► turns ──► worker ──► samples, dead letters
        every half second: is it alive, how far behind is it, how much memory has it

At the end the worker catches up, and what it wrote is compared with what the pure core makes of
the same log: every bad event is a dead letter, and every good one has had its effect.

Invariant: every process that a run starts is ended by it.
"""

import asyncio
import contextlib
import math
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from streams.log.interface import Outgoing, Sending
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.fuzz.events import Events
from tests.fuzz.oracle import Letter, Written, actual, expected
from tests.kafka.broker import Broker
from tests.kafka.test_processor import worker
from tests.soak.memory import own_bytes

RATE = 300
"""Events a second: below what a worker does on a busy machine of two cores."""
STALL_S_MAX = 60.0
"""Behind without a commit."""
CATCH_UP_S_MAX = 300.0
LAG_S_MAX = 30.0
"""Of events, that the worker may be behind in the last quarter."""
SLACK_BYTES = 25_000_000
_LOOK_S = 0.5


@dataclass(slots=True)
class Report:
    """What was seen of a run."""

    sent: int = 0
    seconds: float = 0.0
    memory: list[int] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    stalled_s: float = 0.0
    exit_code: int | None = None
    codes: Counter[str] = field(default_factory=Counter)
    records: int = 0
    missing: list[Letter] = field(default_factory=list)
    unexpected: list[Letter] = field(default_factory=list)
    records_missing: int = 0
    records_unexpected: int = 0

    @property
    def problems(self) -> list[str]:
        """Each claim that does not hold, with its figures."""
        early, late = _quarter(self.memory, 1), _quarter(self.memory, 3)
        lag_max, lag = RATE * LAG_S_MAX, _quarter(self.lags, 3)
        claims = {
            f"the worker ended with exit code {self.exit_code}": self.exit_code is not None,
            f"no commit for {self.stalled_s:.0f} s": self.stalled_s > STALL_S_MAX,
            f"{lag} events behind at the end, at most {lag_max:.0f}": lag > lag_max,
            f"memory grew from {early:,} to {late:,} bytes": late > early + SLACK_BYTES,
            f"letters are missing: {self.missing[:5]}": bool(self.missing),
            f"letters nobody expected: {self.unexpected[:5]}": bool(self.unexpected),
            f"{self.records_missing} samples and outcomes are missing": self.records_missing > 0,
            f"{self.records_unexpected} nobody expected": self.records_unexpected > 0,
        }
        return [claim for claim, broken in claims.items() if broken]

    def compare(self, wanted: Written, written: Written) -> None:
        """Note what differs."""
        self.records = len(written.records)
        self.missing = sorted(wanted.letters - written.letters)
        self.unexpected = sorted(written.letters - wanted.letters)
        self.records_missing = len(wanted.records - written.records)
        self.records_unexpected = len(written.records - wanted.records)

    def lines(self) -> list[str]:
        """For people."""
        codes = ", ".join(f"{code} {count}" for code, count in self.codes.most_common())
        memory = ", ".join(f"{_quarter(self.memory, n) / 1e6:.0f}" for n in range(4))
        lags = ", ".join(str(_quarter(self.lags, n)) for n in range(4))
        return [
            f"{self.sent:,} events in {self.seconds:.0f} s; {self.records:,} samples and outcomes",
            f"refused: {codes}",
            f"worker's memory, the most of each quarter: {memory} MB",
            f"events behind, the most of each quarter: {lags}",
            *(f"PROBLEM: {problem}" for problem in self.problems),
        ]


def _quarter(values: list[int], number: int) -> int:
    """The most in one quarter of the run, from 0; the fourth is the last."""
    size = max(1, math.ceil(len(values) / 4))
    return max(values[number * size : (number + 1) * size], default=0)


@contextlib.contextmanager
def fuzzed_settings(folder: Path) -> Iterator[Settings]:
    """A broker with topics; sessions that nothing ends expire soon, and are soon forgotten."""
    with Broker(folder / "broker") as broker:
        settings = Settings(
            bootstrap_servers=broker.bootstrap_servers,
            topic_prefix=f"fuzz-{uuid.uuid4().hex[:8]}",
            partitions=4,
            metrics_port=0,
            trace_share=0.0,
            idle_limit_s=10.0,
            reward_grace_s=5.0,
            hard_limit_s=120.0,
            marker_retention_s=10.0,
            processor_sweep_interval_s=1.0,
            processor_session_timeout_s=30.0,
        )
        assert asyncio.run(create_topics(settings)).problems == []
        yield settings


def fuzz(folder: Path, seconds: float, seed: int, rate: float = RATE) -> Report:
    """One run."""
    with (
        fuzzed_settings(folder) as settings,
        worker(settings, folder / "worker.log") as process,
    ):
        return asyncio.run(_Run(settings, process, Report()).run(seconds, seed, rate))


@dataclass(slots=True)
class _Run:
    settings: Settings
    process: "subprocess.Popen[bytes]"
    report: Report
    committed: int = -1
    moved_s: float = 0.0

    async def run(self, seconds: float, seed: int, rate: float) -> Report:
        report, began_s = self.report, time.monotonic()
        self.moved_s = began_s
        async with KafkaLog(self.settings) as log:
            publishing = asyncio.create_task(self._publish(log, seconds, seed, rate))
            while not publishing.done() and report.exit_code is None:
                await asyncio.sleep(_LOOK_S)
                report.lags.append(await self._look(log))
                report.memory.append(own_bytes(self.process.pid) if self._alive() else 0)
            report.seconds = time.monotonic() - began_s
            if report.exit_code is not None:
                publishing.cancel()
                return report
            await publishing
            until_s = time.monotonic() + CATCH_UP_S_MAX
            while self._alive() and time.monotonic() < until_s:
                if not await self._look(log):
                    break
                await asyncio.sleep(_LOOK_S)
            if self._alive():
                self.process.terminate()
                await asyncio.to_thread(self.process.wait, 60)
            wanted, report.codes = await expected(log, self.settings)
            report.compare(wanted, await actual(log, self.settings))
        return report

    def _alive(self) -> bool:
        self.report.exit_code = self.process.poll()
        return self.report.exit_code is None

    async def _look(self, log: KafkaLog) -> int:
        """How many events the worker is behind."""
        settings = self.settings
        lag = sum((await log.lag(settings.processor_id, settings.turns_topic)).values())
        done = sum((await log.committed(settings.processor_id, settings.turns_topic)).values())
        now_s = time.monotonic()
        if done != self.committed or not lag:
            self.committed, self.moved_s = done, now_s
        self.report.stalled_s = max(self.report.stalled_s, now_s - self.moved_s)
        return lag

    async def _publish(self, log: KafkaLog, seconds: float, seed: int, rate: float) -> None:
        began_s, newest = time.monotonic(), dict[int, Sending]()
        for number, fuzzed in enumerate(Events(seed, self.settings.partitions)):
            behind_s = number / rate - (time.monotonic() - began_s)
            if behind_s > 0:
                await asyncio.sleep(behind_s)
            if number >= rate * seconds or time.monotonic() - began_s > 2 * seconds:
                break
            key, value, partition = fuzzed
            topic = self.settings.turns_topic
            outgoing = Outgoing(topic=topic, key=key, value=value, partition=partition)
            newest[partition] = await log.send(outgoing)
            self.report.sent += 1
        for sending in newest.values():
            await sending


def main(minutes: float, seed: int) -> int:
    """Exit code 1 if a claim does not hold; then the worker's log is kept."""
    folder = Path(tempfile.mkdtemp(prefix="turnstream-fuzz-"))
    report = fuzz(folder, minutes * 60, seed)
    sys.stdout.write("\n".join(report.lines()) + "\n")
    if report.problems:
        sys.stdout.write(f"the worker's log: {folder / 'worker.log'}\n")
    return 1 if report.problems else 0
