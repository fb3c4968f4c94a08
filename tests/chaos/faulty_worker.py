"""A worker of the processor that can be slowed, told when to die, and built wrong on purpose.

    python -m tests.chaos.faulty_worker        settings from TURNSTREAM_*, the rest from CHAOS_*

    CHAOS_FOLDER    of this one process; `counts.json` is written there again and again, and a
                    file `die` there ends the process at its next marker
    CHAOS_PACE      a file with the seconds to spend on every event, read again when it changes
    CHAOS_VARIANT   which of the broken variants to be; none: the processor as it is
    CHAOS_PROMPT    set: the broker's word comes as it comes, so that times can be measured

Dying at a marker is `kill -9` between the acknowledgement of the samples and the marker.

Two more things are always so, since neither may matter: it sweeps twice a second, as a zombie
does that has not learnt yet what it is, and the broker's word on committed offsets comes late.

Invariant: without a variant every event is judged and written by the processor's own code.
"""

import asyncio
import json
import os
import signal
from pathlib import Path
from random import Random
from typing import Any

from streams.log.interface import Log
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import require_topics
from streams.processor import faust_hooks
from streams.processor.arrivals import Incoming
from streams.processor.faust_run import run
from streams.processor.faust_worker import Processor, die
from streams.processor.offsets import Entry
from streams.processor.worker import Worker
from streams.settings import Settings, load_settings
from tests.chaos import broken
from tests.chaos.leash import die_with_parent

COUNTS_EVERY_S = 0.25
SWEEP_EVERY_S = 0.5
LATE_ANSWER_S = 1.5
FOLDER = Path(os.environ.get("CHAOS_FOLDER", "."))
PACE = Path(os.environ.get("CHAOS_PACE", "none"))
VARIANT = os.environ.get("CHAOS_VARIANT", "")


class SlowWorker(Worker):
    """Takes its time over every event, and may die before a marker."""

    pace_s = 0.0

    async def handle(self, incoming: Incoming, entry: Entry) -> None:
        if self.pace_s:
            await asyncio.sleep(self.pace_s)
        await super().handle(incoming, entry)

    async def write_marker(self, partition: int, session_id: str, value: bytes) -> None:
        doomed = (FOLDER / "die").exists()
        if doomed and VARIANT != broken.MARKER_FIRST:
            os.kill(os.getpid(), signal.SIGKILL)
        await super().write_marker(partition, session_id, value)
        if doomed:
            os.kill(os.getpid(), signal.SIGKILL)


class FaultyProcessor(Processor):
    """The processor with a worker of ours, its counts in a file."""

    def __init__(self, settings: Settings, log: Log) -> None:
        super().__init__(settings, log)
        rules = self.worker._rules
        if VARIANT == broken.MARKER_FIRST:
            self.outlet = broken.HastyOutlet(settings, log, self.counts, die)
        kind = type("Faulty", (SlowWorker, *broken.workers(VARIANT)), {})
        self.worker = kind(settings, rules, self.outlet, self.counts, die)
        self.app.task(self._tell)
        self.app.task(self._sweep_often)

    async def _sweep_often(self) -> None:
        """A zombie that wakes sweeps before it learns that it is one."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            await self.sweeper.sweep(self.loaded, self.worker.state, self._next)

    async def _tell(self) -> None:
        while True:
            self._exchange()
            await asyncio.sleep(COUNTS_EVERY_S)

    def _exchange(self) -> None:
        SlowWorker.pace_s = float(PACE.read_text()) if PACE.exists() else 0.0
        new = FOLDER / "counts.new"
        new.write_text(json.dumps(self.counts))
        new.replace(FOLDER / "counts.json")


def answer_late() -> None:
    """Let the broker's word on a committed offset take its time, as a busy one does."""
    ask, dice = faust_hooks.committed_offset, Random(str(FOLDER))

    async def ask_and_wait(app: Any, topic: str, partition: int) -> int:
        offset = await ask(app, topic, partition)
        if dice.random() < 0.5:
            await asyncio.sleep(dice.uniform(0, LATE_ANSWER_S))
        return offset

    setattr(faust_hooks, "committed_offset", ask_and_wait)  # noqa: B010  # patched, not ours


def main() -> None:
    die_with_parent()
    if not os.environ.get("CHAOS_PROMPT"):
        answer_late()
    make = broken.processor(VARIANT, FaultyProcessor)
    run(load_settings(), KafkaLog, require_topics, make)


if __name__ == "__main__":
    main()
