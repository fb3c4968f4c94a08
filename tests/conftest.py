"""The order of the files: the longest begin first, so that no worker ends long after the others.

A run that a shell began in its background ignores Ctrl-C, and so would every program that a test
starts and interrupts: here it counts again.

What needs PyTorch or a container engine is left out unless its folder is named, as `make
test-train` and `make test-compose` do: without PyTorch not even the folder's own conftest can be
loaded.
"""

import signal
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
LEFT_OUT = {HERE / "train", HERE / "compose/engine"}

LONGEST = (
    "tests/chaos/test_variants.py",
    "tests/core/test_against_the_oracle.py",
    "tests/chaos/test_chaos_short.py",
    "tests/under_fire/",
    "tests/failover/",
    "tests/kafka/",
    "tests/compose/test_one_life.py",
    "tests/compose/test_two_gateways.py",
    "tests/cli/",
    "tests/sinks/",
    "tests/benchmarks/test_gateway_bench.py",
    "tests/processor/test_crashes.py",
)


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: [not item.nodeid.startswith(start) for start in LONGEST])


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Never asked of a folder that was named."""
    return True if collection_path in LEFT_OUT else None
