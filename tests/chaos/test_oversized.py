"""A long session closes under kills, and a record that the broker refuses costs its session."""

import asyncio
from pathlib import Path

from tests.chaos.oversized import outlived
from tests.kafka.broker import Broker


def test_workers_outlive_a_long_session_and_a_record_that_cannot_be_sent(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        verdict, problems = asyncio.run(outlived(broker, tmp_path / "workers", 2_000))
    assert problems == []
    assert verdict.differences == {}
