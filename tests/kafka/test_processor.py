"""The processor on a real broker, as its own processes: what a user starts and what comes out."""

import asyncio
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas import codec
from schemas.record import Record
from schemas.samples import Sample, SessionClosed
from streams.log.interface import Outgoing
from streams.log.kafka import KafkaLog
from streams.log.keys import event_key
from streams.settings import Settings
from tests.chaos.arena import environ_of
from tests.harness import linearized
from tests.kafka.jars import ROOT

EXAMPLE = Path(__file__).parents[2] / "examples" / "session.jsonl"
COMMAND = Path(sys.executable).parent / "turnstream"
SECONDS_MAX = 60.0


@contextmanager
def worker(
    settings: Settings, said: Path, *command: str | Path
) -> Iterator[subprocess.Popen[bytes]]:
    """One worker process, of the command if one is given; ended by its id, whatever happens."""
    with said.open("ab") as log:
        running = subprocess.Popen(
            command or [COMMAND, "processor"],
            cwd=ROOT,
            env={**os.environ, **environ_of(settings)},
            stdout=log,
            stderr=log,
        )
    try:
        yield running
    finally:
        running.kill()
        running.wait(10)


def events() -> list[dict[str, object]]:
    return [json.loads(line) for line in EXAMPLE.read_text().splitlines()]


async def publish(settings: Settings, told: list[dict[str, object]]) -> None:
    async with KafkaLog(settings) as log:
        for event in told:
            value = codec.to_msgpack(codec.from_json(json.dumps(event).encode()))
            key = event_key(str(event["session_id"]))
            await log.publish(Outgoing(topic=settings.turns_topic, key=key, value=value))


async def records(settings: Settings, topic: str, count: int) -> list[Record]:
    """So many records of a topic, waiting for them; more would be given too."""
    until = time.monotonic() + SECONDS_MAX
    async with KafkaLog(settings) as log:
        while time.monotonic() < until:
            if sum((await log.end_positions(topic)).values()) >= count:
                break
            await asyncio.sleep(0.1)
        reader = await log.read(topic, await log.start_positions(topic))
        found: list[Record] = []
        while batch := await reader.next_batch(1.0):
            found += [codec.from_msgpack(entry.value or b"") for entry in batch]
        await reader.close()
    return found


def as_json(found: list[Record]) -> list[dict[str, object]]:
    return [json.loads(codec.to_json(record)) for record in found]


@pytest.fixture
def quick(settings: Settings) -> Settings:
    """Limits short enough to see them pass."""
    return dataclasses.replace(
        settings,
        metrics_port=0,
        processor_session_timeout_s=6.0,
        idle_limit_s=2.0,
        processor_sweep_interval_s=0.5,
        trace_share=1.0,
    )


def test_a_session_gives_on_kafka_what_it_gives_offline(quick: Settings, tmp_path: Path) -> None:
    said = tmp_path / "worker.log"
    with worker(quick, said) as running:
        asyncio.run(publish(quick, events()))
        found = asyncio.run(records(quick, quick.samples_topic, 2))
        health = wait_for(said, r"health and metrics on (http://\S+)")
        with urllib.request.urlopen(f"{health}/healthz", timeout=10) as answer:
            progress = json.load(answer)
        with urllib.request.urlopen(f"{health}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        running.send_signal(signal.SIGTERM)
        assert running.wait(SECONDS_MAX) == 0
    offline = linearized(events())
    assert as_json(found) == offline.samples + offline.closed
    assert progress["trouble"] is None
    assert progress["partitions"] == quick.partitions
    assert 'turnstream_untrained_total{reason="realigned"} 18.0' in metrics


def test_a_session_that_moves_to_another_worker_gives_the_same(
    quick: Settings, tmp_path: Path
) -> None:
    patient = dataclasses.replace(quick, idle_limit_s=600.0)
    *turns, ended = events()
    with worker(patient, tmp_path / "first.log") as first:
        asyncio.run(publish(patient, turns))
        asyncio.run(rows_written(patient, len(turns)))
        first.kill()
        first.wait(10)
    with worker(patient, tmp_path / "second.log"):
        asyncio.run(publish(patient, [ended]))
        found = asyncio.run(records(patient, patient.samples_topic, 2))
    offline = linearized(events())
    assert as_json(found) == offline.samples + offline.closed


def test_a_silent_session_expires(quick: Settings, tmp_path: Path) -> None:
    with worker(quick, tmp_path / "worker.log"):
        asyncio.run(publish(quick, events()[:-1]))
        (outcome,) = asyncio.run(records(quick, quick.samples_topic, 1))
    assert isinstance(outcome, SessionClosed)
    assert not isinstance(outcome, Sample)
    assert (outcome.end_status, outcome.withheld, outcome.turns) == ("expired", "status", 5)


def test_a_worker_without_its_topics_says_so_and_ends(
    bare_settings: Settings, tmp_path: Path
) -> None:
    said = tmp_path / "worker.log"
    with worker(bare_settings, said) as running:
        assert running.wait(SECONDS_MAX) == 76
    (line,) = said.read_text().splitlines()
    assert line.startswith(f"turnstream processor: {bare_settings.turns_topic}: missing")


async def rows_written(settings: Settings, count: int) -> None:
    until = time.monotonic() + SECONDS_MAX
    async with KafkaLog(settings) as log:
        while time.monotonic() < until:
            if sum((await log.end_positions(settings.changelog_topic)).values()) >= count:
                return
            await asyncio.sleep(0.1)
    raise TimeoutError("the rows were not written")


def wait_for(said: Path, pattern: str) -> str:
    until = time.monotonic() + SECONDS_MAX
    while time.monotonic() < until:
        if found := re.search(pattern, said.read_text()):
            return found[1]
        time.sleep(0.1)
    raise TimeoutError(f"{pattern} not in {said.read_text()}")
