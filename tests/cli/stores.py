"""A log with its processor, as the operator's commands meet it: embedded here, on Kafka elsewhere.

Claims take a store and name their own sessions, so one store serves them all.
"""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from schemas import codec
from streams.log.interface import Log, Outgoing
from streams.log.keys import event_key
from streams.log.opening import open_log
from streams.log.sqlite import SqliteLog
from streams.processor.embedded import EmbeddedProcessor
from streams.settings import Settings
from tests.cli.command import Ran, turnstream

SECONDS_MAX = 60.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "session.jsonl"

Json = dict[str, Any]
Given = Json | tuple[str, bytes]
"""An event, or a session's key with whatever bytes."""


def example(session_id: str) -> list[Json]:
    """The shipped session under another name: five turns, one realigned, and its end."""
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) | {"session_id": session_id} for line in lines]


class Store(ABC):
    """A log, a processor, and the command as a user runs it on them."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder

    def feed(self, *events: Given) -> None:
        """Publish the events and wait until the processor is done with them."""
        asyncio.run(self.feeding(events, process=True))

    def publish(self, *events: Given) -> None:
        """Publish the events only."""
        asyncio.run(self.feeding(events, process=False))

    def ends(self, topic: str) -> int:
        """How many entries a topic has had."""

        async def ask() -> int:
            async with open_log(self.settings, create=True) as log:
                return sum((await log.end_positions(topic)).values())

        return asyncio.run(ask())

    def drawn_from_file(self, *events: Json) -> str:
        """What `inspect` draws of the same events in a file, without its title."""
        file = self.folder / "events.jsonl"
        file.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
        return turnstream("inspect", file).out.partition("\n")[2].rstrip()

    @abstractmethod
    def run(self, *arguments: str | Path) -> Ran:
        """The command, on this log."""

    @abstractmethod
    async def processed(self, log: Log) -> None:
        """Wait until the processor has read everything."""

    async def feeding(self, events: tuple[Given, ...], *, process: bool) -> None:
        async with open_log(self.settings, create=True) as log:
            for event in events:
                await log.publish(self.outgoing(event))
            if process:
                await self.processed(log)

    def outgoing(self, event: Given) -> Outgoing:
        if isinstance(event, tuple):
            session_id, value = event
        else:
            session_id = event["session_id"]
            value = codec.to_msgpack(codec.from_json(json.dumps(event).encode()))
        return Outgoing(topic=self.settings.turns_topic, key=event_key(session_id), value=value)


class Embedded(Store):
    """A file, and a processor that runs in this process while events are fed."""

    def run(self, *arguments: str | Path) -> Ran:
        return turnstream(*arguments, "--log", self.settings.log)

    async def processed(self, log: Log) -> None:
        assert isinstance(log, SqliteLog)
        stop = asyncio.Event()
        running = asyncio.create_task(EmbeddedProcessor(self.settings, log).run(stop))
        try:
            await caught_up(log, self.settings)
        finally:
            stop.set()
            await running


async def caught_up(log: Log, settings: Settings) -> None:
    """Wait until the processor has committed everything there is."""
    until_s = time.monotonic() + SECONDS_MAX
    while sum((await log.lag(settings.processor_id, settings.turns_topic)).values()):
        assert time.monotonic() < until_s, "the processor does not catch up"
        await asyncio.sleep(0.02)
