"""A worker that crashes anywhere, and what it must have written in the end.

One partition, no Faust: events are handed over one by one, acknowledgements come in any order,
and at any moment the worker may be gone, or may lose the partition and get it back while its
old writes are still under way. Who comes next reads the changelog back and goes on from the
last commit.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.dead_letters import DeadLetter
from streams.core.partition import Partition
from streams.core.state import Rules
from streams.log.interface import Log
from streams.processor.arrivals import Incoming, read_event
from streams.processor.offsets import Offsets
from streams.processor.outlet import Outlet
from streams.processor.worker import Worker
from streams.settings import Settings
from tests.processor.memory_log import MemoryLog, settle

SETTINGS = Settings(partitions=1)
IDLE_MAX = 2000
"""Steps without a write under way before a run counts as stuck."""
Entry = tuple[bytes, bytes]


@dataclass(frozen=True)
class Written:
    """Everything that was sent, each thing once however often it was repeated."""

    records: set[bytes]
    letters: dict[Any, str]


def die(why: str) -> NoReturn:
    raise AssertionError(why)


def expected(entries: list[Entry], rules: Rules) -> Written:
    """What the pure core makes of the same log."""
    partition = Partition(rules=rules)
    records: set[bytes] = set()
    letters: dict[Any, str] = {}
    for offset, (key, value) in enumerate(entries):
        event = read_event(key, value)
        if isinstance(event, BadRecord):
            effects = partition.refuse(event, offset)
        else:
            effects = partition.feed(event, offset, offset)
        records |= {codec.to_msgpack(record) for record in effects.records()}
        for refusal in effects.refusals:
            letters[offset, refusal.code] = refusal.detail
    return Written(records, letters)


class Crashing:
    """A log, and one worker after the other."""

    def __init__(
        self,
        entries: list[Entry],
        rules: Rules,
        seed: int,
        bytes_max: Mapping[str, int] | None = None,
    ) -> None:
        self.entries = entries
        self.rules = rules
        self.choices = random.Random(seed)
        self.log = MemoryLog(self.choices, bytes_max)
        self.committed = 0
        self.counts: Counter[str] = Counter()

    async def run(self, crashes: int) -> Written:
        worker = self._fresh()
        for _ in range(crashes):
            await self._live(worker, self.choices.randrange(3 * len(self.entries)))
            if self.choices.random() < 0.5:
                self.log.crash()
                worker = self._fresh()
        await self._live(worker, None)
        return self._written()

    async def _live(self, worker: Worker, steps: int | None) -> None:
        """A worker's time with the partition: so many steps, or until everything is done."""
        offsets = Offsets(1, self.committed)
        state = worker.state(0)
        for key, value in self.log.topics[SETTINGS.changelog_topic]:
            assert key is not None
            state.load(key, value)
        await worker.clear_spent(0)
        idle = 0
        while steps is None or steps > 0:
            steps = None if steps is None else steps - 1
            idle = idle + 1 if steps is None and self.log.quiet else 0
            assert idle < IDLE_MAX, f"nothing moves at {offsets.position} of {len(self.entries)}"
            if self.choices.random() < 0.5 and offsets.next < len(self.entries):
                key, value = self.entries[offsets.next]
                offset = offsets.next
                offsets.arrive(offset)
                incoming = Incoming(0, offset, offset, key, value)
                handling = asyncio.create_task(worker.handle(incoming, offsets.begin(offset)))
                await settle()
                assert handling.done(), "handling an event waits for nothing but room"
                handling.result()  # an error of the worker's is the test's
            else:
                await self.log.deliver(self.choices.randrange(4) if steps is not None else None)
            if self.choices.random() < 0.2:
                self.committed = offsets.position
            if steps is None and offsets.position == len(self.entries) and self.log.quiet:
                self.committed = offsets.position
                break
        worker.drop(0)
        await settle()

    def _fresh(self) -> Worker:
        outlet = Outlet(SETTINGS, cast(Log, self.log), self.counts, die)
        return Worker(SETTINGS, self.rules, outlet, self.counts, die)

    def _written(self) -> Written:
        records = {value for _, value in self.log.topics[SETTINGS.samples_topic] if value}
        letters: dict[Any, str] = {}
        for _, value in self.log.topics[SETTINGS.dead_letters_topic]:
            letter = codec.from_msgpack(value or b"")
            assert isinstance(letter, DeadLetter)
            letters[letter.offset, letter.code] = letter.detail
        return Written(records, letters)
