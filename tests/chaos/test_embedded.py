"""A short run of the embedded chaos; `make chaos-embedded` is the long one."""

import asyncio
from pathlib import Path

from tests.chaos.embedded import chaos


def test_nothing_acknowledged_is_lost_and_nothing_is_wrong_or_twice(tmp_path: Path) -> None:
    assert asyncio.run(chaos(tmp_path, kills=12, seed=2, sessions=80)) == []
