"""A harness that is ended by SIGTERM ends every process that it started."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.cli.up_process import until
from tests.kafka.jars import ROOT

SECONDS_MAX = 120.0
WORDS: dict[str, tuple[list[str], str]] = {
    "tests.failover": (["2", "1", "1"], "gateway"),
    "tests.under_fire": (["2", "1", "1"], "kafka.Kafka"),
    "tests.chaos": (["2", "1"], "kafka.Kafka"),
    "tests.chaos.variants": ([], "kafka.Kafka"),
    "tests.chaos.embedded": (["2", "1"], "processor"),
    "tests.soak": (["2"], "kafka.Kafka"),
    "tests.soak.markers": (["10"], "kafka.Kafka"),
}
"""The harness, what it is given, and a word of a process that it must have started before."""


def processes(mark: str) -> dict[int, str]:
    """Number and command of all that inherited the mark, whoever their parent is by now."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(process.name)] = command
        except OSError:
            continue  # it has ended meanwhile
    return found


@pytest.mark.parametrize("module", WORDS)
def test_sigterm_ends_all_that_was_started(module: str, tmp_path: Path) -> None:
    mark = f"STARTED_BY={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    words, started = WORDS[module]
    with (tmp_path / "said").open("wb") as said:
        harness = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path), name: value},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        until(
            lambda: any(started in command for command in processes(mark).values()),
            (tmp_path / "said").read_text,
            SECONDS_MAX,
        )
        harness.send_signal(signal.SIGTERM)
        assert harness.wait(SECONDS_MAX) == 128 + signal.SIGTERM
        until(lambda: not processes(mark), lambda: f"still there: {processes(mark)}", SECONDS_MAX)
    finally:
        for left in processes(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        harness.wait(SECONDS_MAX)
    assert "Traceback" not in (tmp_path / "said").read_text()
