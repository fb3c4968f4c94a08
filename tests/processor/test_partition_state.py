"""What a partition's table holds after writes that came too late."""

from streams.core.state import Rules
from streams.processor.partition_state import PartitionState
from streams.processor.rows import FloorKey, Row, RowKey, write_key, write_row


def loaded(*rows: RowKey) -> PartitionState:
    state = PartitionState(Rules())
    for key in rows:
        state.load(write_key(key), write_row(Row(0, None, "duplicate")))
    return state


def test_a_row_that_a_sleeper_wrote_below_the_floor_goes() -> None:
    state = loaded(RowKey(3, "asleep"), RowKey(30, "open"))
    state.load(write_key(FloorKey(20)), (10).to_bytes(8))
    assert state.take_purged() == [RowKey(3, "asleep")]


def test_without_a_purge_nothing_goes() -> None:
    assert loaded(RowKey(3, "open")).take_purged() == []
