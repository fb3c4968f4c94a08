"""The limit: a plain aiokafka loop that only consumes, writes the changelog and commits.

python -m benchmarks.plain_loop       settings from TURNSTREAM_* variables
"""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from streams.settings import Settings, load_settings


async def loop(settings: Settings) -> None:
    """Copy every event to the changelog; commit what is acknowledged, once a second."""
    limit = settings.record_bytes_max + (1 << 16)
    consumer = AIOKafkaConsumer(
        settings.turns_topic,
        bootstrap_servers=settings.bootstrap_servers,
        group_id=f"{settings.processor_id}-plain",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=settings.fetch_wait_ms,
        max_partition_fetch_bytes=limit,
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap_servers,
        enable_idempotence=True,
        acks="all",
        compression_type=settings.compression,
        max_request_size=limit,
        max_batch_size=settings.producer_batch_bytes,
        linger_ms=settings.producer_linger_ms,
    )
    await asyncio.gather(consumer.start(), producer.start())
    while True:
        sent = []
        ends: dict[TopicPartition, int] = {}
        for place, records in (await consumer.getmany(timeout_ms=1000)).items():
            for record in records:
                key = b"r|" + record.offset.to_bytes(8) + b"|" + (record.key or b"")
                sent.append(
                    await producer.send(
                        settings.changelog_topic, record.value, key, place.partition
                    )
                )
            ends[place] = records[-1].offset + 1
        await asyncio.gather(*sent)
        if ends:
            await consumer.commit(ends)


if __name__ == "__main__":
    asyncio.run(loop(load_settings()))
