"""Record batches as aiokafka reads them: whole within the limits, replaced beyond them."""

import os
from typing import Any

import cramjam
import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from streams.log import bounded_batches
from streams.log.bounded_batches import BATCH_BYTES_MAX, bounded_decode, value_limit
from streams.log.withheld import Withheld

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
VALUE_BYTES_MAX = 10_000_000
SMALL = [os.urandom(100) for _ in range(5)]
LARGE = [bytes(9_000_000)] * 8
"""More than a batch may hold, in values that are not too large themselves."""


def batch(
    codec: str, values: list[bytes], base: int, headers: list[tuple[str, bytes]] | None = None
) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=CODECS[codec],
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for number, value in enumerate(values):
        builder.append(number, 1000 + number, b"key", value, headers or [])
    data = bytearray(builder.build())
    data[:8] = base.to_bytes(8)
    return bytes(data)


def read(data: bytes, start: int, limit: Any = None) -> tuple[list[Any], int]:
    """The records of an answer, and where the next one begins."""
    place = TopicPartition("t", 0)
    records = fetcher.PartitionRecords(
        place, MemoryRecords(data), [], start, None, limit, True, fetcher.READ_UNCOMMITTED
    )
    return list(records), records.next_fetch_offset


@pytest.mark.parametrize("codec", CODECS)
def test_batches_within_the_limits_are_read_as_ever(codec: str) -> None:
    answer = batch(codec, SMALL, 7) + batch(codec, [bytes(1_000_000)], 12)
    bounded, after = read(answer, 7, value_limit(VALUE_BYTES_MAX))
    assert [(r.offset, r.key, r.value) for r in bounded] == [
        (r.offset, r.key, r.value) for r in read(answer, 7)[0]
    ]
    assert after == 13


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_a_batch_that_grows_too_large_is_one_entry_that_names_its_offsets(codec: str) -> None:
    answer = batch(codec, SMALL, 0) + batch(codec, LARGE, 5) + batch(codec, SMALL, 13)
    found, after = read(answer, 0, value_limit(VALUE_BYTES_MAX))
    assert [record.offset for record in found] == [*range(5), 12, *range(13, 18)]
    value = found[5].value
    assert isinstance(value, Withheld)
    assert (value, value.first, found[5].key) == (b"", 5, None)
    assert value.detail.startswith("offsets 5 to 12: a record batch of ")
    assert after == 18


def test_a_reader_inside_a_batch_that_is_too_large_goes_past_it() -> None:
    found, after = read(batch("zstd", LARGE, 5), 9, value_limit(VALUE_BYTES_MAX))
    assert [record.offset for record in found] == [12]
    assert after == 13


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_a_batch_with_more_headers_than_records_may_have_is_one_entry(codec: str) -> None:
    """Of two bytes each in the log: 30 million would be gigabytes as objects."""
    many = [("", b"")] * 600_000
    answer = batch(codec, SMALL, 0) + batch(codec, SMALL[:2], 5, many) + batch(codec, SMALL, 7)
    found, after = read(answer, 0, value_limit(VALUE_BYTES_MAX))
    assert [record.offset for record in found] == [*range(5), 6, *range(7, 12)]
    assert found[5].value.detail.startswith(
        "offsets 5 to 6: a record batch with 1200000 headers of records; "
    )
    assert after == 12


def test_headers_and_values_of_a_large_batch_are_told_apart() -> None:
    values = [None, b"", os.urandom(2_000_000), *SMALL]
    answer = batch("gzip", values, 0, [("trace", b"1")] * 3)  # type: ignore[arg-type]
    found, _ = read(answer, 0, value_limit(VALUE_BYTES_MAX))
    assert [record.value for record in found] == values
    assert [len(record.headers) for record in found] == [3] * 8


def test_a_value_over_the_limit_leaves_its_key_and_no_bytes() -> None:
    (record,), _ = read(batch("zstd", [bytes(VALUE_BYTES_MAX + 1)], 3), 3, value_limit(10_000_000))
    assert (record.offset, record.key, record.value) == (3, b"key", b"")
    assert record.value.detail == "10000001 bytes, the limit is 10000000"
    assert record.value.first is None


def test_many_empty_records_are_too_many() -> None:
    data = batch("zstd", [b""] * 100_001, 0)
    found, after = read(data, 0, value_limit(VALUE_BYTES_MAX))
    assert [record.offset for record in found] == [100_000]
    assert "a record batch of 100001 records" in found[0].value.detail
    assert after == 100_001


def test_an_answer_ends_where_it_has_grown_too_large_and_is_asked_for_again() -> None:
    batches = [batch("zstd", LARGE[:5], 5 * number) for number in range(9)]
    sizes: list[int] = []
    limit, start = value_limit(VALUE_BYTES_MAX), 0
    while start < 45:
        assert len(sizes) < 9
        found, start = read(b"".join(batches[start // 5 :]), start, limit)
        sizes.append(len(found))
    assert sum(sizes) == 45
    assert max(sizes) * 9_000_000 <= 2 * BATCH_BYTES_MAX


def test_other_consumers_of_the_process_are_left_as_they_are() -> None:
    value_limit(VALUE_BYTES_MAX)
    found, _ = read(batch("zstd", LARGE, 0), 0)
    assert [len(record.value) for record in found] == [9_000_000] * 8


def test_a_size_that_a_header_claims_is_not_believed() -> None:
    honest = bytes(cramjam.zstd.compress(bytes(BATCH_BYTES_MAX + 1)))
    assert honest[4] & 0b11100000 == 0b10000000, "a window, then four bytes of content size"
    lying = honest[:6] + (1).to_bytes(4, "little") + honest[10:]
    for data in (honest, lying):
        with pytest.raises((bounded_batches.BatchTooLarge, cramjam.DecompressionError)):
            bounded_decode("zstd", data)


def test_a_batch_of_exactly_the_limit_is_whole() -> None:
    data = bytes(cramjam.zstd.compress(bytes(BATCH_BYTES_MAX)))
    assert len(bounded_decode("zstd", data)) == BATCH_BYTES_MAX


def test_gzip_of_several_members_is_counted_together() -> None:
    part = bytes(cramjam.gzip.compress(bytes(BATCH_BYTES_MAX // 2)))
    assert len(bounded_decode("gzip", part * 2)) == BATCH_BYTES_MAX
    with pytest.raises(bounded_batches.BatchTooLarge):
        bounded_decode("gzip", part * 3)
