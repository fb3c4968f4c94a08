"""One processor process on a file or on a broker, what it is fed, and what it gives.

Invariant: the process is gone when the block is left, and every wait is bounded.
"""

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas import codec
from schemas.dead_letters import DeadLetter
from schemas.events import Event, SessionEnded
from schemas.samples import SessionClosed
from streams.log.interface import Log, Outgoing
from streams.log.kafka_topics import create_topics
from streams.log.keys import event_key
from streams.log.opening import open_log
from streams.settings import KAFKA, Settings
from tests.chaos.oracle import read_to_end
from tests.kafka.broker import Broker
from tests.kafka.test_processor import worker

FILE = "file"
MEGABYTE = 1_000_000
SECONDS_MAX = 1_200.0
_UNACKNOWLEDGED = 500


@dataclass
class Given:
    """What a processor gave."""

    outcomes: dict[str, list[SessionClosed]] = field(default_factory=lambda: defaultdict(list))
    letters: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Codes by session."""
    waits_s: dict[str, float] = field(default_factory=dict)
    """From the log's taking of a session's end to that of its outcome."""


@dataclass
class OneProcessor:
    """A log with a processor process at work on it."""

    settings: Settings
    pid: int
    alive: Any
    """Asks whether the process runs."""

    async def publish(self, events: Iterable[Event]) -> None:
        """Store events in order; a session's stay in one partition."""
        async with open_log(self.settings) as log:
            sent = []
            for event in events:
                session_id = getattr(event, "session_id", "")
                outgoing = Outgoing(
                    topic=self.settings.turns_topic,
                    key=event_key(session_id),
                    value=codec.to_msgpack(event),
                    session_id=session_id,
                )
                sent.append(await log.send(outgoing))
                if len(sent) >= _UNACKNOWLEDGED:
                    await sent[-_UNACKNOWLEDGED]
            for one in sent[-_UNACKNOWLEDGED:]:
                await one

    async def done(self) -> bool:
        """Wait until everything is worked on; False if the process ended before."""
        group, topic = self.settings.processor_id, self.settings.turns_topic
        until_s = time.monotonic() + SECONDS_MAX
        async with open_log(self.settings) as log:
            while sum((await log.lag(group, topic)).values()):
                if not self.alive():
                    return False
                if time.monotonic() > until_s:
                    raise TimeoutError(f"left: {await log.lag(group, topic)}")
                await asyncio.sleep(0.2)
        return True

    async def given(self) -> Given:
        """Everything that came out."""
        given, ended_ms = Given(), {}
        async with open_log(self.settings) as log:
            async for entry in _entries(log, self.settings.turns_topic):
                record = codec.from_msgpack(entry.value or b"")
                if isinstance(record, SessionEnded):
                    ended_ms[record.session_id] = entry.timestamp_ms
            async for entry in _entries(log, self.settings.samples_topic):
                if b"session_closed" not in (entry.value or b"")[:200]:
                    continue
                record = codec.from_msgpack(entry.value or b"")
                if isinstance(record, SessionClosed):
                    given.outcomes[record.session_id].append(record)
                    took_ms = entry.timestamp_ms - ended_ms[record.session_id]
                    given.waits_s[record.session_id] = took_ms / 1000
            async for entry in _entries(log, self.settings.dead_letters_topic):
                record = codec.from_msgpack(entry.value or b"")
                if isinstance(record, DeadLetter):
                    given.letters[record.session_id or ""].append(record.code)
        return given

    def memory_mb(self, what: str = "VmRSS") -> float:
        """Of the process; `VmHWM` is the most there ever was."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(what):
                return int(line.split()[1]) / 1000
        return float("nan")


async def _entries(log: Log, topic: str) -> Any:
    reader = await log.read(topic, await log.start_positions(topic))
    try:
        async for entry in read_to_end(log, topic, reader):
            yield entry
    finally:
        await reader.close()


@contextmanager
def one_processor(
    folder: Path, store: str, broker: Broker | None = None, **changes: Any
) -> Iterator[OneProcessor]:
    """A processor on a file, or on a broker, which is its own if none is given."""
    prefix = f"attack-{uuid.uuid4().hex[:8]}"
    fixed: dict[str, Any] = {"topic_prefix": prefix, "partitions": 4, "metrics_port": 0}
    with ExitStack() as stack:
        if store == KAFKA:
            broker = broker or stack.enter_context(Broker(folder / "broker"))
            fixed["bootstrap_servers"] = broker.bootstrap_servers
            settings = Settings(**fixed | changes)
            asyncio.run(create_topics(settings))
        else:
            settings = Settings(log=str(folder / "log.db"), **fixed | changes)
            asyncio.run(_make(settings))
        process = stack.enter_context(worker(settings, folder / "processor.log"))
        yield OneProcessor(settings, process.pid, lambda: process.poll() is None)


async def _make(settings: Settings) -> None:
    async with open_log(settings, create=True) as log:
        await log.commit("attack", settings.turns_topic, {0: 0})
