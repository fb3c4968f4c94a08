"""What a close takes is the tree and a few samples, however many samples it has."""

from pathlib import Path

from streams.settings import KAFKA
from tests.attack.closes import repeated_prefix
from tests.kafka.broker import Broker


def test_a_close_with_many_long_samples_takes_little_memory(broker: Broker, tmp_path: Path) -> None:
    bounds = list(repeated_prefix(tmp_path, KAFKA, 400, broker))
    assert not [str(bound) for bound in bounds if not bound.holds]
