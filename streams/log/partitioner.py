"""Which partition a key belongs to: murmur2, as the Java client has it.

Every producer of a topic must agree on this, or a session's events are spread over partitions
and its tree is torn. librdkafka's default (CRC32) does not agree: set `partitioner=murmur2`
there.

Invariant: a key's partition depends on the key and the partition count alone.
"""

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_WORD = 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """The partition, from 0, that holds everything under this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned."""
    size = len(data)
    whole = size - size % 4
    mixed = (_SEED ^ size) & _WORD
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MIX & _WORD
        word = (word ^ word >> 24) * _MIX & _WORD
        mixed = (mixed * _MIX & _WORD) ^ word
    if whole < size:
        mixed = (mixed ^ int.from_bytes(data[whole:], "little")) * _MIX & _WORD
    mixed = (mixed ^ mixed >> 13) * _MIX & _WORD
    return mixed ^ mixed >> 15


class KeyPartitioner:
    """The same rule in the form that aiokafka and Faust call."""

    def __call__(self, key: bytes | None, all_partitions: list[int], available: list[int]) -> int:
        """The key's partition; an entry without a key has to name its own."""
        if key is None:
            raise ValueError("an entry without a key needs an explicit partition")
        return sorted(all_partitions)[partition_of(key, len(all_partitions))]
