"""What the pure core makes of the log that a worker was given, and what the worker wrote.

Invariant: both are sets of what was written, so an entry that a worker repeats counts once.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.dead_letters import DeadLetter
from streams.core.partition import Partition
from streams.log.homes import refuse_elsewhere
from streams.log.interface import Entry
from streams.log.kafka import KafkaLog
from streams.processor.arrivals import read_event
from streams.processor.lookup import bounds, each_entry
from streams.processor.rules import rules_from
from streams.settings import Settings

Letter = tuple[int, int, str, str]
"""Partition and offset of the refused event, the code, and the turn."""


class Written(NamedTuple):
    """Samples and outcomes by their digests, dead letters by what they refuse."""

    records: set[bytes]
    letters: set[Letter]


async def expected(log: KafkaLog, settings: Settings) -> tuple[Written, Counter[str]]:
    """What has to come out, and how often each code."""
    rules = rules_from(settings)
    partitions = {p: Partition(rules=rules) for p in range(settings.partitions)}
    written, codes = Written(set(), set()), Counter[str]()

    def take(entry: Entry) -> None:
        at = entry.position
        event = read_event(entry.key, entry.value, settings.message_bytes_max)
        event = refuse_elsewhere(event, at.partition, settings)
        if isinstance(event, BadRecord):
            effects = partitions[at.partition].refuse(event, at.offset)
        else:
            effects = partitions[at.partition].feed(event, at.offset, entry.timestamp_ms)
        written.records.update(_digest(codec.to_msgpack(record)) for record in effects.records())
        for refusal in effects.refusals:
            turn_id = (refusal.turn_id or "")[:200]
            written.letters.add((at.partition, at.offset, refusal.code, turn_id))
            codes[refusal.code] += 1

    await _each(log, settings, settings.turns_topic, take)
    return written, codes


async def actual(log: KafkaLog, settings: Settings) -> Written:
    """What the worker wrote."""
    written = Written(set(), set())

    def take_record(entry: Entry) -> None:
        written.records.add(_digest(entry.value or b""))

    def take_letter(entry: Entry) -> None:
        letter = codec.from_msgpack(entry.value or b"")
        assert isinstance(letter, DeadLetter)
        assert letter.partition is not None
        assert letter.offset is not None
        turn_id = letter.turn_id or ""
        written.letters.add((letter.partition, letter.offset, letter.code, turn_id))

    await _each(log, settings, settings.samples_topic, take_record)
    await _each(log, settings, settings.dead_letters_topic, take_letter)
    return written


async def _each(
    log: KafkaLog, settings: Settings, topic: str, take: Callable[[Entry], None]
) -> None:
    for partition, extent in (await bounds(log, topic)).items():
        await each_entry(log, settings, topic, {partition: extent}, take)
        await asyncio.sleep(0)


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()
