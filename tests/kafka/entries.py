"""Entries for tests, all that a topic holds, and a topic that lost all it held."""

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from streams.log.interface import Entry, Outgoing
from streams.log.kafka import KafkaLog
from streams.settings import Settings

SECONDS_MAX = 30
BATCH_S = 0.5


def event(settings: Settings, key: str, value: bytes | str) -> Outgoing:
    """For the turns topic, about the session `key` and a turn."""
    data = value.encode() if isinstance(value, str) else value
    return Outgoing(
        topic=settings.turns_topic, key=key.encode(), value=data, session_id=key, turn_id="t1"
    )


async def everything(log: KafkaLog, topic: str) -> list[Entry]:
    """What stands between start and end, partition by partition."""
    reader = await log.read(topic, await log.start_positions(topic))
    ends = await log.end_positions(topic)
    found: list[Entry] = []
    try:
        for _ in range(int(SECONDS_MAX / BATCH_S)):
            if all(reader.positions[partition] >= end for partition, end in ends.items()):
                break
            found += await reader.next_batch(BATCH_S)
        else:
            raise AssertionError(f"{topic}: {len(found)} entries, at {reader.positions} of {ends}")
    finally:
        await reader.close()
    return sorted(found, key=lambda entry: entry.position)


async def delete_all(settings: Settings, topic: str) -> None:
    """As retention does it, at once."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    await admin.start()
    try:
        places = [TopicPartition(topic, partition) for partition in range(settings.partitions)]
        await admin.delete_records(dict.fromkeys(places, RecordsToDelete(-1)))
    finally:
        await admin.close()
