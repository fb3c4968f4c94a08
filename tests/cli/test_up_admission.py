"""`turnstream up` with a trainer that is behind: its own session is there, others wait."""

import asyncio
from pathlib import Path

import pytest

from streams.adapters.client import GatewayAway, Turnstream
from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from tests.cli.command import turnstream
from tests.cli.up_process import Up, up

GROUP = "my-trainer"
LIMIT = {"TURNSTREAM_ADMISSION_LAG_MAX": "1", "TURNSTREAM_TRAINER_GROUP": GROUP}


def read_up_to(running: Up, position: int) -> None:
    settings = Settings(log=str(running.log))

    async def commit() -> None:
        async with SqliteLog(running.log, settings, create=False) as log:
            await log.commit(GROUP, settings.samples_topic, {0: position})

    asyncio.run(commit())


def ended(control: Turnstream) -> str:
    with control.session() as session:
        session.reward(1)
    return session.session_id


def test_sessions_wait_for_the_trainer_and_the_one_for_trying_does_not(tmp_path: Path) -> None:
    with up(tmp_path, **LIMIT) as first:
        control = Turnstream(first.url, first.control_key)
        for _ in range(2):  # nobody has read anything yet: there is no such group
            first.closed(ended(control))
        read_up_to(first, 0)
        first.running.stop()
    with up(tmp_path, **LIMIT) as second:
        assert second.session_id
        control = Turnstream(second.url, second.control_key, patience_s=1.0)
        with pytest.raises(GatewayAway, match=f"{GROUP} is . records behind"):
            ended(control)
        read_up_to(second, 2)
        second.closed(ended(Turnstream(second.url, second.control_key)))
        second.running.stop()


def test_a_health_check_says_how_far_the_trainer_is_behind(tmp_path: Path) -> None:
    with up(tmp_path, **LIMIT) as running:
        ended(Turnstream(running.url, running.control_key))
        port = running.running.found(r"^turnstream up: health and metrics on http://\S+:(\d+)$")
        told = turnstream("health", "--gateway", TURNSTREAM_METRICS_PORT=port)
    assert told.code == 0, told.err
    assert (
        told.out == f"healthy: log and engine answer; {GROUP}: no such group: it never committed\n"
    )
