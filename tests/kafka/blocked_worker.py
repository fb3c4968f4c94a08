"""A worker whose consumer stands still for as long as a file is there.

python -m tests.kafka.blocked_worker FILE        settings from TURNSTREAM_*
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import require_topics
from streams.processor.faust_run import run
from streams.processor.faust_worker import Processor
from streams.settings import load_settings

FILE = Path(sys.argv.pop())


class Blocked(Processor):
    """Takes no event while the file is there."""

    async def _arrive(self, message: Any) -> None:
        await self.stand_still()
        await super()._arrive(message)

    async def stand_still(self) -> None:
        while FILE.exists():  # noqa: ASYNC110, ASYNC240 - another process takes it away
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    run(load_settings(), KafkaLog, require_topics, Blocked)
