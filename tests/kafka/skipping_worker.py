"""A worker in which one event is skipped once, as Faust does at a rebalance.

python -m tests.kafka.skipping_worker OFFSET        settings from TURNSTREAM_*
"""

import asyncio
import sys
from typing import Any

from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import require_topics
from streams.processor.faust_run import run
from streams.processor.faust_worker import Processor
from streams.settings import load_settings

OFFSET = int(sys.argv.pop())
PACE_S = 0.002


class Skipping(Processor):
    """Slow enough that events are always waiting."""

    skipped = False

    async def _arrive(self, message: Any) -> None:
        if message.offset == OFFSET and not self.skipped:
            self.skipped = True
            sys.stderr.write(f"skipped {OFFSET}\n")
            return
        await asyncio.sleep(PACE_S)
        await super()._arrive(message)


if __name__ == "__main__":
    run(load_settings(), KafkaLog, require_topics, Skipping)
