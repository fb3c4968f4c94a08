"""A log of a test's own, named by the environment, so that commands find it as a user's do.

What a processor would have written is put there by the core itself, event by event.
"""

import asyncio
import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.record import Record
from streams.core.partition import Partition
from streams.core.policy import PROFILES
from streams.core.state import Rules
from streams.log.interface import Entry, Log, Outgoing
from streams.log.keys import sample_key
from streams.log.opening import open_log
from streams.processor.arrivals import read_event
from streams.settings import Settings
from tests.cli.command import COMMAND, Ran, lines, turnstream

SECONDS_MAX = 60
_BATCH_S = 0.5

Json = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A log and a folder for files."""

    settings: Settings
    folder: Path

    def file(self, *events: Json | bytes) -> Path:
        """A file of events."""
        path = self.folder / "events.jsonl"
        path.write_bytes(lines(*events))
        return path

    def other(self) -> Settings:
        """A second, separate log at the same place, with its topics."""
        return replace(self.settings, topic_prefix=f"{self.settings.topic_prefix}-other")

    def publish(self, *outgoing: Outgoing) -> None:
        """These entries, one after the other."""

        async def work(log: Log) -> None:
            for one in outgoing:
                await log.publish(one)

        self._on_the_log(work)

    def feed(self, *events: Json | tuple[str, bytes], settings: Settings | None = None) -> None:
        """Events, or a session's key with whatever bytes, into the turns."""
        topic = (settings or self.settings).turns_topic
        self.publish(*(_turn(topic, event) for event in events))

    def process(self, *events: Json | tuple[str, bytes]) -> None:
        """Feed the events, and write what a processor makes of all turns there are."""
        self.feed(*events)
        rules = Rules(default_policy=PROFILES[self.settings.profile])
        partitions: dict[int, Partition] = {}
        keys: dict[str, bytes] = {}
        outgoing: list[Outgoing] = []
        for entry in self.entries(self.settings.turns_topic):
            at = entry.position
            partition = partitions.setdefault(at.partition, Partition(rules=rules))
            event = read_event(entry.key, entry.value)
            if isinstance(event, BadRecord):
                partition.refuse(event, at.offset)
                continue
            effects = partition.feed(event, at.offset)
            session_id = getattr(event, "session_id", "")
            if effects.marker is not None:
                keys[session_id] = effects.marker.key.encode()
            outgoing += [
                _sample(self.settings.samples_topic, record, keys[session_id])
                for record in effects.records()
            ]
        self.publish(*outgoing)

    def records(self, *records: Record | Json | bytes, key: bytes | None = None) -> None:
        """Records, or whatever bytes, into the samples."""
        self.publish(*(_sample(self.settings.samples_topic, record, key) for record in records))

    def entries(self, topic: str) -> list[Entry]:
        """All that a topic holds, partition by partition."""
        found: list[Entry] = []

        async def work(log: Log) -> None:
            ends = await log.end_positions(topic)
            reader = await log.read(topic, await log.start_positions(topic))
            until_s = time.monotonic() + SECONDS_MAX
            try:
                while any(reader.positions[p] < end for p, end in ends.items()):
                    assert time.monotonic() < until_s, f"{topic}: stuck at {reader.positions}"
                    found.extend(await reader.next_batch(_BATCH_S))
            finally:
                await reader.close()

        self._on_the_log(work)
        return sorted(found, key=lambda entry: entry.position)

    def decoded(self, topic: str) -> list[Json]:
        """The same in JSON form."""
        entries = self.entries(topic)
        return [json.loads(codec.to_json(codec.from_msgpack(e.value or b""))) for e in entries]

    def ends(self, topic: str) -> dict[int, int]:
        """Where a topic ends."""
        found: dict[int, int] = {}

        async def work(log: Log) -> None:
            found.update(await log.end_positions(topic))

        self._on_the_log(work)
        return found

    def _on_the_log(self, work: Any) -> None:
        async def run() -> None:
            async with open_log(self.settings, create=True) as log:
                await work(log)

        asyncio.run(run())


def name_in_environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables a user would set."""
    monkeypatch.setenv("TURNSTREAM_LOG", settings.log)
    monkeypatch.setenv("TURNSTREAM_BOOTSTRAP_SERVERS", settings.bootstrap_servers)
    monkeypatch.setenv("TURNSTREAM_TOPIC_PREFIX", settings.topic_prefix)
    monkeypatch.setenv("TURNSTREAM_PARTITIONS", str(settings.partitions))


@contextmanager
def running(
    *arguments: str | Path, stdin: int | None = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """The command under way; it is gone at the end, whatever happens."""
    process = subprocess.Popen(
        [COMMAND, *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=SECONDS_MAX)


def interrupted(process: subprocess.Popen[bytes], number: int = signal.SIGINT) -> Ran:
    """What is left after Ctrl-C."""
    process.send_signal(number)
    process.wait(SECONDS_MAX)  # before its input is closed, which would end it too
    out, err = process.communicate(timeout=SECONDS_MAX)
    return Ran(process.returncode, out.decode(), err.decode())


def on_a_terminal(
    *arguments: str | Path, until: str | None = None, then: int = signal.SIGINT
) -> tuple[int, bytes, str]:
    """Run with stderr on a terminal: exit code, stdout, what the terminal was sent.

    With `until` the command gets Ctrl-C, or another signal, once the terminal shows that text.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "200"},
    )
    os.close(theirs)
    shown = bytearray()
    try:
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # what Linux says when the other side is closed
                break
            if not part:
                break
            shown += part
            if until is not None and until in shown.decode(errors="replace"):
                process.send_signal(then)
                until = None
        out, _ = process.communicate(timeout=SECONDS_MAX)
        return process.returncode, out, shown.decode()
    finally:
        process.kill()
        process.wait(SECONDS_MAX)
        os.close(ours)


def linearized_file(path: Path, *options: str) -> list[Json]:
    """What `linearize` gives for a file."""
    return turnstream("linearize", path, *options).records


def by_session(events: Sequence[Json]) -> dict[str, list[Json]]:
    """Events by session, in order."""
    found: dict[str, list[Json]] = {}
    for event in events:
        found.setdefault(event["session_id"], []).append(event)
    return found


def _turn(topic: str, event: Json | tuple[str, bytes]) -> Outgoing:
    if isinstance(event, tuple):
        key, value = event
    else:
        key = event.get("session_id", "")
        value = codec.to_msgpack(codec.from_json(json.dumps(event).encode()))
    if not key:  # a purge
        return Outgoing(topic=topic, key=None, value=value, partition=0)
    return Outgoing(topic=topic, key=key.encode(), value=value)


def _sample(topic: str, record: Record | Json | bytes, key: bytes | None) -> Outgoing:
    if isinstance(record, bytes):
        return Outgoing(topic=topic, key=key or b"s", value=record)
    if isinstance(record, dict):
        record = codec.from_json(json.dumps(record).encode())
    session_id = getattr(record, "session_id", "")
    own = sample_key(session_id, getattr(record, "group_id", None))
    return Outgoing(topic=topic, key=key or own, value=codec.to_msgpack(record))
