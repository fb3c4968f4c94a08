"""The sink of files, as a user runs it: once, or as a process that a test ends by itself."""

import subprocess
import time
from pathlib import Path
from typing import Any

from streams.settings import Settings
from tests.cli.command import COMMAND, Ran, turnstream
from tests.cli.stores import SECONDS_MAX
from tests.sinks.scenes import dumped


def sink(settings: Settings, folder: Path, **variables: str) -> Ran:
    command = ("sink", "jsonl", "--log", settings.log, "--to", folder, "--once")
    return turnstream(*command, given=b"", **variables)


def names(folder: Path) -> list[str]:
    return [line["session_id"] for line in dumped(folder)]


def started(settings: Settings, folder: Path, **variables: str) -> "subprocess.Popen[bytes]":
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TURNSTREAM_METRICS_PORT": "0",
    } | variables
    return subprocess.Popen(
        [COMMAND, "sink", "jsonl", "--log", settings.log, "--to", folder],
        env=environment,
        stderr=subprocess.PIPE,
    )


def until(true: Any, what: str) -> None:
    end_s = time.monotonic() + SECONDS_MAX
    while not true():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


def until_said(process: "subprocess.Popen[bytes]", text: bytes) -> None:
    assert process.stderr is not None
    while text not in (said := process.stderr.readline()):
        assert said, "it has ended"
