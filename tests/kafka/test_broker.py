"""The broker of the tests: what it promises to the tests that break it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kafka.broker import free_port
from tests.kafka.jars import ROOT, SUMS, NoBroker, broker_jars, java, sums_of

ORPHAN = """
import pathlib, sys, time
from tests.kafka.broker import Broker
broker = Broker(pathlib.Path(sys.argv[1]))
broker.spawn()
print(broker.pid, flush=True)
time.sleep(60)
"""

ALL_FREE = """
import contextlib, sys
from tests.kafka.broker import NoBroker, free_port
few = range(int(sys.argv[1]), int(sys.argv[2]))
with contextlib.suppress(NoBroker):
    while True:
        print(free_port(few))
"""


def alive(pid: int) -> bool:
    """Running, and not just a name in the process table."""
    status = Path(f"/proc/{pid}/stat")
    try:
        if Path("/proc").is_dir():
            return status.read_text().rpartition(")")[2].split()[0] != "Z"
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True


def test_no_broker_outlives_the_process_that_made_it(tmp_path: Path) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert maker.stdout is not None
    with maker, maker.stdout:
        pid = int(maker.stdout.readline())
        assert alive(pid)
        maker.send_signal(signal.SIGKILL)
        maker.wait(10)
        deadline_s = time.monotonic() + 10
        while alive(pid) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert not alive(pid)


def test_ports_lie_below_those_for_outgoing_connections() -> None:
    limits = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(limits.read_text().split()[0]) if limits.exists() else 49_152
    assert all(free_port() < min(lowest, 30_000) for _ in range(20))


def test_a_port_is_given_once_also_to_several_processes() -> None:
    few = range(29_000, 29_020)
    mine = [free_port(few) for _ in range(3)]
    other = subprocess.run(
        [sys.executable, "-c", ALL_FREE, str(few.start), str(few.stop)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    theirs = [int(word) for word in other.stdout.split()]
    # The range runs dry there, so each port that nobody held was given.
    assert theirs
    assert len({*mine, *theirs}) == len(mine) + len(theirs)


def test_the_jars_are_those_of_the_project() -> None:
    assert sums_of(broker_jars()) == SUMS.read_text(encoding="utf-8")
    assert re.search(r"  kafka_2.13-4.3.1.jar$", SUMS.read_text(encoding="utf-8"), re.MULTILINE)


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoBroker, match="no `java` here: install Java 17 or newer"):
        java()


def test_in_the_foreground_it_says_at_once_what_it_does_and_a_signal_stops_it(
    tmp_path: Path,
) -> None:
    port = free_port()
    words = ["--folder", str(tmp_path / "broker"), "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kafka.foreground", *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    with process, process.stdout:
        try:
            assert process.stdout.readline().startswith("Starting Kafka")
            while (line := process.stdout.readline()).startswith("still starting after"):
                pass
            assert line.startswith(f"Kafka on 127.0.0.1:{port} after")
        finally:
            process.terminate()
    assert process.returncode == 0
