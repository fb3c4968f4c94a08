"""What the tests of environments share: a real log in a file, its processor, and how to lose it."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from schemas import codec
from schemas.events import Reward, SessionEnded, SessionOpened, Turn
from schemas.record import Record
from schemas.samples import Sample, SessionClosed
from streams.adapters.environments import Recorder
from streams.log.sqlite import SqliteLog
from streams.processor.embedded import EmbeddedProcessor
from streams.settings import Settings

T = TypeVar("T")
SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Told:
    """The events of one session, in the order of the log."""

    events: list[Record]

    @property
    def opened(self) -> SessionOpened:
        (event,) = [event for event in self.events if isinstance(event, SessionOpened)]
        return event

    @property
    def turns(self) -> list[Turn]:
        return [event for event in self.events if isinstance(event, Turn)]

    @property
    def rewards(self) -> list[Reward]:
        return [event for event in self.events if isinstance(event, Reward)]

    @property
    def ended(self) -> SessionEnded:
        """The one end."""
        (event,) = [event for event in self.events if isinstance(event, SessionEnded)]
        return event

    @property
    def is_over(self) -> bool:
        return any(isinstance(event, SessionEnded) for event in self.events)

    @property
    def kinds(self) -> list[str]:
        return [str(event.__struct_config__.tag) for event in self.events]


class World:
    """A log in a file, and what stands in it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "log.db"
        self.settings = Settings(
            log=str(self.path),
            processor_sweep_interval_s=0.1,
            request_timeout_s=settings.pop("request_timeout_s", 10.0),
            publish_timeout_s=settings.pop("publish_timeout_s", 20.0),
            **settings,
        )

    def recorder(self, **options: Any) -> Recorder:
        return Recorder(self.settings, **options)

    def told(self) -> dict[str, Told]:
        """What the turns topic has, by session, in order of appearance."""
        sessions: dict[str, Told] = {}
        for event in self.read(self.settings.turns_topic):
            session_id = getattr(event, "session_id", "")
            sessions.setdefault(session_id, Told([])).events.append(event)
        return sessions

    def order(self) -> list[str]:
        """Whose event stands at each offset of the turns."""
        events = self.read(self.settings.turns_topic)
        return [getattr(event, "session_id", "") for event in events]

    def only(self) -> Told:
        """The one session that there is."""
        (told,) = self.told().values()
        return told

    def read(self, topic: str) -> list[Record]:
        return asyncio.run(self._read(topic))

    async def _read(self, topic: str) -> list[Record]:
        found: list[Record] = []
        async with SqliteLog(self.path, self.settings) as log:
            ends = await log.end_positions(topic)
            reader = await log.read(topic, await log.start_positions(topic))
            while len(found) < ends[0]:
                found += [codec.from_msgpack(e.value or b"") for e in await reader.next_batch(1.0)]
            await reader.close()
        return found

    def ended(self, count: int = 1) -> dict[str, Told]:
        """What is told once so many sessions have an end, which may come from the background."""
        return until(
            self.told,
            lambda told: sum(one.is_over for one in told.values()) >= count,
        )

    def processed(
        self, count: int, **settings: Any
    ) -> tuple[dict[str, SessionClosed], list[Sample]]:
        """Outcomes and samples, once a processor has closed so many sessions."""

        async def work() -> None:
            given = replace(self.settings, **settings)
            async with SqliteLog(self.path, given) as log:
                processor, stop = EmbeddedProcessor(given, log), asyncio.Event()
                running = asyncio.create_task(processor.run(stop))
                deadline_s = time.monotonic() + SECONDS_MAX
                while processor.counts["sessions_closed"] < count and not running.done():
                    assert time.monotonic() < deadline_s, processor.counts
                    await asyncio.sleep(0.02)
                stop.set()
                await running

        asyncio.run(work())
        records = self.read(self.settings.samples_topic)
        outcomes = {r.session_id: r for r in records if isinstance(r, SessionClosed)}
        return outcomes, [record for record in records if isinstance(record, Sample)]

    def letters(self) -> list[str]:
        """The codes of what was refused."""
        return [getattr(one, "code", "?") for one in self.read(self.settings.dead_letters_topic)]

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The log takes nothing: somebody holds the file."""
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            yield
            holder.execute("ROLLBACK")


def until(look: Callable[[], T], holds: Callable[[T], bool]) -> T:
    deadline_s = time.monotonic() + SECONDS_MAX
    while not holds(seen := look()):
        assert time.monotonic() < deadline_s, f"it does not happen: {seen}"
        time.sleep(0.05)
    return seen


async def happens(holds: Callable[[], Any]) -> None:
    """Wait for it without holding up the loop, bounded."""
    deadline_s = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline_s, "it does not happen"
        await asyncio.sleep(0.01)
