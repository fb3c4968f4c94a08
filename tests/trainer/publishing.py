"""A samples topic filled as a processor fills it, and what stands in the others."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from schemas import codec
from schemas.record import Record
from schemas.samples import Sample, SampleRevised, SessionClosed
from schemas.trained import Trained
from streams.log.interface import Entry, Log, Outgoing
from streams.log.keys import sample_key
from streams.log.opening import open_log
from streams.settings import Settings

Published = Sample | SessionClosed | SampleRevised
SECONDS_MAX = 20.0
_BATCH_S = 0.5


def in_file(folder: Path) -> Settings:
    """An embedded log of the test's own."""
    return Settings(log=str(folder / "log.db"))


def publish(
    settings: Settings, records: Iterable[Published], *, groups: dict[str, str] | None = None
) -> None:
    """All of them, in order; `groups` names the group of a session whose reward comes later."""

    async def work() -> None:
        async with open_log(settings, create=True) as log:
            sent = [await log.send(outgoing(settings, one, groups)) for one in records]
            for one in sent:
                await one

    asyncio.run(work())


def outgoing(
    settings: Settings, record: Published, groups: dict[str, str] | None = None
) -> Outgoing:
    """As the processor keys it."""
    if isinstance(record, SampleRevised):
        group = (groups or {}).get(record.session_id)
    else:
        group = record.group_id
    return Outgoing(
        topic=settings.samples_topic,
        key=sample_key(record.session_id, group),
        value=codec.to_msgpack(record),
    )


def send(settings: Settings, topic: str, key: bytes, records: Sequence[Record]) -> None:
    """Any records to any topic."""

    async def work() -> None:
        async with open_log(settings, create=True) as log:
            for record in records:
                await log.publish(Outgoing(topic=topic, key=key, value=codec.to_msgpack(record)))

    asyncio.run(work())


def trained_records(settings: Settings) -> list[Trained]:
    """What trainers have said so far."""
    found = [codec.from_msgpack(e.value or b"") for e in entries(settings, settings.trained_topic)]
    return [record for record in found if isinstance(record, Trained)]


def entries(settings: Settings, topic: str) -> list[Entry]:
    """All that a topic holds, partition by partition."""

    async def work() -> list[Entry]:
        async with open_log(settings, create=True) as log:
            return sorted(await _all(log, topic), key=lambda entry: entry.position)

    return asyncio.run(work())


async def _all(log: Log, topic: str) -> list[Entry]:
    ends = await log.end_positions(topic)
    reader = await log.read(topic, await log.start_positions(topic))
    found: list[Entry] = []
    try:
        for _ in range(int(SECONDS_MAX / _BATCH_S)):
            if all(at >= ends[p] for p, at in reader.positions.items()):
                return found
            found += await reader.next_batch(_BATCH_S)
    finally:
        await reader.close()
    raise AssertionError(f"{topic}: only {len(found)} entries")


def committed(settings: Settings, group: str) -> dict[int, int]:
    """Where a group stands on the samples."""

    async def work() -> dict[int, int]:
        async with open_log(settings, create=True) as log:
            return await log.committed(group, settings.samples_topic)

    return asyncio.run(work())


def ids(batch_samples: Iterable[Sample]) -> list[str]:
    """For comparisons."""
    return [sample.sample_id for sample in batch_samples]
