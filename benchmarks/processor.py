"""`make bench-processor`: one worker beside a plain loop on the same broker, in one run.

Each side finds the whole load waiting, starts as a process of its own, and is measured from its
first commit to its last, so that starting and joining a group do not count.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from benchmarks.processor_load import turn_values
from streams.log.interface import Outgoing
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.processor.rows import Row, RowKey, write_key, write_row
from streams.settings import PREFIX, Settings
from tests.kafka.broker import Broker

LOADS = {1: 80_000, 4: 30_000, 20: 8_000, 200: 1_000}
"""Kilobytes an event, and how many of them."""
AIMS = {1: None, 4: None, 20: 0.5, 200: 0.8}
SECONDS_MAX = 240.0
_RECOVERED = re.compile(r"recovered (\d+) rows .* in (\d+) ms")
SIDES = {
    "processor": ["-c", "from streams.cli.main import main; main()", "processor"],
    "plain": ["-m", "benchmarks.plain_loop"],
}


def main() -> None:
    """Print the table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kb", type=int, choices=LOADS, action="append", help="only this size")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the recovery")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder), heap_mb=1024) as broker:
        results = [
            asyncio.run(measure(broker, kb, LOADS[kb])) for kb in arguments.kb or list(LOADS)
        ]
        recovery = asyncio.run(measure_recovery(broker, arguments.rows))
    print("events      processor ev/s   plain ev/s   ratio   aim")
    for row in results:
        aim = AIMS[int(row["kb"])]
        print(
            f"{row['kb']:>4.0f} KB {row['processor']:>14,.0f} {row['plain']:>14,.0f}"
            f" {row['processor'] / row['plain']:>8.2f}   {aim or '-'}"
        )
    print(f"recovery of {arguments.rows:,} rows of 1 KB: {recovery:,.0f} rows/s   aim 50,000")
    print(json.dumps({"events": results, "recovery_rows_per_s": recovery}))


async def measure(broker: Broker, kb: int, events: int) -> dict[str, float]:
    """Events a second, durable and committed, for both sides, each on topics of its own."""
    row: dict[str, float] = {"kb": kb, "events": events}
    load = turn_values(events, kb * 1000)
    for side, group in (("plain", "-plain"), ("processor", "")):
        settings = fresh_settings(broker)
        await create_topics(settings)
        async with KafkaLog(settings) as log:
            sending = [
                await log.send(Outgoing(topic=settings.turns_topic, key=key, value=value))
                for key, value in load
            ]
            for sent in sending:
                await sent
            with process(SIDES[side], settings):
                row[side] = await rate(log, settings, settings.processor_id + group, events)
    return row


async def rate(log: KafkaLog, settings: Settings, group: str, ends: int) -> float:
    """Events a second between a group's first commit seen and its last."""
    first: tuple[float, int] | None = None
    until = time.monotonic() + SECONDS_MAX
    while time.monotonic() < until:
        done = sum((await log.committed(group, settings.turns_topic)).values())
        now = time.monotonic()
        if done and first is None:
            first = (now, done)
        if done >= ends and first is not None:
            began, already = first
            return (ends - already) / (now - began) if ends > already else float("nan")
        await asyncio.sleep(0.02)
    raise TimeoutError(f"{group} did not finish in {SECONDS_MAX} s")


async def measure_recovery(broker: Broker, rows: int) -> float:
    """Rows a second read back by a worker that starts on a full changelog."""
    settings = fresh_settings(broker)
    await create_topics(settings)
    async with KafkaLog(settings) as log:
        pad = b"x" * 950
        for number in range(rows):
            session_id = f"s{number // 20}"
            key = write_key(RowKey(number, session_id))
            outgoing = Outgoing(
                topic=settings.changelog_topic,
                key=key,
                value=write_row(Row(number, None, "duplicate" + pad.decode())),
                partition=number // 20 % settings.partitions,
            )
            sent = await log.send(outgoing)
        await sent
    with process(SIDES["processor"], settings) as said:
        until = time.monotonic() + SECONDS_MAX
        while time.monotonic() < until:
            if found := _RECOVERED.search(said.read_text()):
                return int(found[1]) / (int(found[2]) / 1000)
            await asyncio.sleep(0.1)
    raise TimeoutError(f"no recovery in {SECONDS_MAX} s")


def fresh_settings(broker: Broker) -> Settings:
    """A log of its own on the broker."""
    return Settings(
        bootstrap_servers=broker.bootstrap_servers,
        topic_prefix=f"bench-{uuid.uuid4().hex[:8]}",
        partitions=4,
        metrics_port=0,
        processor_commit_interval_s=0.1,
    )


@contextlib.contextmanager
def process(command: list[str], settings: Settings) -> Iterator[Path]:
    """A side as a process, ended by its id; gives the file with what it says."""
    given = {
        f"{PREFIX}{field.name.upper()}": str(getattr(settings, field.name))
        for field in dataclasses.fields(settings)
        if getattr(settings, field.name) != field.default
    }
    with tempfile.NamedTemporaryFile() as said:
        running = subprocess.Popen(
            [sys.executable, *command], env={**os.environ, **given}, stdout=said, stderr=said
        )
        try:
            yield Path(said.name)
        finally:
            running.kill()
            running.wait(10)


if __name__ == "__main__":
    main()
