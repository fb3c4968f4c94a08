"""`turnstream tail` while the broker is away: it says so once, waits, and goes on."""

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.cli.command import ended, turn
from tests.cli.places import Place, interrupted, name_in_environment, running
from tests.cli.tail_claims import first_line
from tests.harness import linearized
from tests.kafka.broker import Broker

AWAY_AFTER_S = 2.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker") as running_broker:
        yield running_broker


@pytest.fixture
def place(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, partitions=2)
    name_in_environment(settings, monkeypatch)
    monkeypatch.setenv("TURNSTREAM_AWAY_AFTER_S", str(AWAY_AFTER_S))
    assert asyncio.run(create_topics(settings)).problems == []
    return Place(settings, tmp_path)


class Said:
    """What a process says on stderr, as it comes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self.text = b""
        # A copy: the process's own end is read and closed when it is over.
        self._file = os.dup(process.stderr.fileno())
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, text: bytes, seconds: float = 60) -> None:
        until_s = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < until_s, self.text
            time.sleep(0.05)

    def _read(self) -> None:
        while part := os.read(self._file, 4096):
            self.text += part
        os.close(self._file)


def test_a_broker_that_goes_away_is_told_once_and_waited_for(broker: Broker, place: Place) -> None:
    servers = place.settings.bootstrap_servers
    with running("tail") as tail:
        said = Said(tail)
        first_line(tail, place)
        broker.kill()
        said.wait_for(b"no answer; still trying")
        time.sleep(2 * AWAY_AFTER_S)
        assert tail.poll() is None
        broker.start()
        said.wait_for(b"answers again")
        back = linearized([turn("back"), ended("back")])
        place.records(*back.samples, *back.closed)
        assert tail.stdout is not None
        lines = iter(tail.stdout.readline, b"")
        assert any(b" back " in line for line in lines)
        ran = interrupted(tail)
    assert ran.code == 0
    assert said.text.decode().splitlines() == [
        f"turnstream: {servers}: no answer; still trying",
        f"turnstream: {servers}: answers again",
    ]


def test_control_c_ends_it_while_the_broker_is_away(
    broker: Broker, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTREAM_REQUEST_TIMEOUT_S", "2")
    with running("tail") as tail:
        said = Said(tail)
        first_line(tail, place)
        broker.kill()
        said.wait_for(b"no answer; still trying")
        ran = interrupted(tail)
    assert ran.code == 0
    assert b"Traceback" not in said.text
