"""Gateways and processors that die under agents of three SDKs, on every run of the tests."""

import asyncio
from pathlib import Path

from tests.failover.run import Plan, played
from tests.kafka.broker import Broker

KILLS = 2


def test_no_agent_fails_and_what_it_saw_trains(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        run = asyncio.run(played(tmp_path, broker, Plan(12, KILLS, rest_s=0.5)))
    told = "\n".join(run.report())
    print(told)
    assert run.good, told
    assert len(run.killed) == KILLS
    assert len(run.walkers) == 12
    assert run.fate.attached.keys() == {"root", "extend"}
    waits = run.waits()
    assert waits.cut_s + waits.later_s, "nobody was with a gateway that was killed"
