"""One rule for every producer: the Java client's murmur2."""

import random

import pytest
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.partitioner import murmur2 as aiokafka_murmur2

from streams.log.partitioner import KeyPartitioner, murmur2, partition_of

# From the Java client's own tests, there as signed numbers.
PUBLISHED = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "published"), PUBLISHED.items(), ids=lambda key: str(key)[:20])
def test_the_hash_is_kafkas(key: bytes, published: int) -> None:
    assert murmur2(key) == published % 2**32


def test_keys_of_every_length_go_where_aiokafka_sends_them() -> None:
    rng = random.Random(7)
    for length in range(200):
        key = rng.randbytes(length)
        assert murmur2(key) == aiokafka_murmur2(key)
        for count in (1, 3, 16):
            partitions = list(range(count))
            theirs = DefaultPartitioner()(key, partitions, partitions)
            assert partition_of(key, count) == theirs
            assert KeyPartitioner()(key, partitions[::-1], []) == theirs


def test_an_entry_without_a_key_has_no_partition() -> None:
    with pytest.raises(ValueError, match="explicit partition"):
        KeyPartitioner()(None, [0, 1], [0, 1])
