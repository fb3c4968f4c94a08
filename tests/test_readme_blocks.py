"""The README's own blocks, run from the wheel in a new environment and an empty folder.

Blocks are found by their section and run in the order in which a reader meets them, each as a
process. What a reader has to fill in (the address and key that `up` prints, a model of his own) is
filled in here; nothing else is changed.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.installed import ROOT, build_wheel, install_wheel, needed, share
from tests.kafka.broker import free_port

PATIENCE_S = 120.0
AT_ONCE_S = 30.0
"""For what takes five seconds at most on a quiet machine."""
MODEL = """
from types import SimpleNamespace

def model(observation):
    message = {"role": "user", "content": str(observation)}
    answer = {"role": "assistant", "content": "down"}
    return SimpleNamespace(
        messages=[message], prompt_ids=[1, 2], output_ids=[3, 4], logprobs=[-0.5, -0.25],
        message=answer, action=1,
    )

"""
"""The environment's own model, which the README leaves to its reader."""


def block(section: str, language: str = "", number: int = 0) -> str:
    """A block of the README, by its section."""
    text = (ROOT / "README.md").read_text("utf-8")
    _, _, rest = text.partition(f"\n## {section}\n")
    body = rest.partition("\n## ")[0]
    found = re.findall(rf"^```{language}\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)
    return str(found[number])


@dataclass
class Stranger:
    """Somebody who has installed the wheel and stands in an empty folder."""

    folder: Path
    env: Path
    variables: dict[str, str]
    said: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TURNSTREAM_", "PYTHON"))}
        path = f"{self.env / 'bin'}:{os.environ['PATH']}"
        return {**kept, "PATH": path, **self.variables}

    def python(self, code: str) -> tuple[str, ...]:
        file = self.folder / f"block-{time.monotonic_ns()}.py"
        file.write_text(code, "utf-8")
        return (str(self.env / "bin/python"), str(file))

    def run(self, *command: str, seconds: float = PATIENCE_S) -> "subprocess.CompletedProcess[str]":
        """To its end."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    @contextlib.contextmanager
    def running(self, *command: str) -> Iterator[Callable[[str], str]]:
        """Started, with a way to wait for a text in its output; its process group ends with it."""
        printed = self.folder / f"said-{time.monotonic_ns()}"
        with printed.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

        def wait_for(pattern: str) -> str:
            until_s = time.monotonic() + PATIENCE_S
            while True:
                ended = process.poll() is not None  # before the look: it may print as it ends
                text = printed.read_text("utf-8")
                if (found := re.search(pattern, text, re.MULTILINE)) is not None:
                    return str(found[found.lastindex or 0])
                assert not ended, text
                assert time.monotonic() < until_s, text
                time.sleep(0.05)

        try:
            yield wait_for
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with what it asks for; gymnasium, since a block is about its environments."""
    folder = tmp_path_factory.mktemp("env")
    site_packages = install_wheel(build_wheel(folder / "wheel"), folder / "venv")
    packages = needed("turnstream", {"turnstream"}) - {"turnstream"}
    for package in packages | needed("gymnasium", {"gymnasium"}):
        share(package, site_packages)
    return folder / "venv"


@pytest.fixture
def stranger(env: Path, tmp_path: Path) -> Stranger:
    ports = {
        "TURNSTREAM_GATEWAY_PORT": str(free_port()),
        "TURNSTREAM_METRICS_PORT": str(free_port()),
    }
    folder = tmp_path / "empty"
    folder.mkdir()
    return Stranger(folder, env, ports)


def test_sessions_weights_environments_and_a_trainer_beside_up(stranger: Stranger) -> None:
    train = stranger.python(block("Train", "python"))
    with stranger.running("turnstream", "up") as up:
        control_key = up(r"^  control key (tc-\S+)$")
        url = up(r"^turnstream is up on (http://\S+)$")
        up(r"^Ctrl-C stops it")

        sessions = block("Point an agent at it", "python")
        sessions = sessions.replace("http://127.0.0.1:8080", url).replace("tc-...", control_key)
        assert (url in sessions, control_key in sessions) == (True, True)
        weights = sessions.partition("for index")[0] + block("Weight updates", "python")
        assert_done(stranger.run(*stranger.python(weights)))

        with stranger.running(*train) as trainer:
            waits = trainer(r"^(waited .*)$")
            assert "no session of any run has closed" in waits
            assert waits.endswith("asked for: run r1, split train")
            assert_done(stranger.run(*stranger.python(sessions)))
            assert trainer(r"^1 \w{32} (\S+) 1\.0$").startswith("-0.")
            assert trainer(r"^1 \w{32} (0\.\S+) 1\.0$")

        lake = stranger.run(*stranger.python(MODEL + block("Environments", "python")))
        assert_done(lake)
        until(lambda: "lake-7" in stranger.run("turnstream", "export", "sessions").stdout)

        doctor = stranger.run("turnstream", "doctor")
        assert doctor.returncode == 0, doctor.stdout
        assert re.search(r"^ok +log +turnstream-data/turnstream.db is a log", doctor.stdout, re.M)
        assert_done(stranger.run("turnstream", "sink", "jsonl", "--to", "traces", "--once"))
        lines = [p.read_text("utf-8") for p in sorted(stranger.folder.glob("traces/*.jsonl"))]
        assert "".join(lines).count('"session_id"') >= 3


def test_a_session_of_the_events_section_and_a_log_in_a_file(stranger: Stranger) -> None:
    events = stranger.folder / "session.jsonl"
    events.write_text(block("Events", "json"), "utf-8")
    ran = stranger.run("turnstream", "linearize", "session.jsonl")
    assert_done(ran)
    assert [json.loads(line)["type"] for line in ran.stdout.splitlines()] == [
        "sample",
        "session_closed",
    ]
    shutil.copytree(ROOT / "examples", stranger.folder / "examples")
    with stranger.running("bash", "-c", block("Use it")) as follow:
        follow(r"closed|session_closed")


def test_without_a_log_everything_says_so_at_once(stranger: Stranger) -> None:
    doctor = stranger.run("turnstream", "doctor", seconds=2 * AT_ONCE_S)
    assert (doctor.returncode, "note  log" in doctor.stdout) == (0, True), doctor.stdout
    blocks = {
        "train": block("Train", "python"),
        "environment": MODEL + block("Environments", "python"),
    }
    for name, code in blocks.items():
        ran = stranger.run(*stranger.python(code), seconds=AT_ONCE_S)
        *_, last = ran.stderr.splitlines()
        assert last.startswith("streams.errors.BadSetting: no log is named"), (name, ran.stderr)
        assert "TURNSTREAM_LOG" in last
        assert "Kafka" in last
    tail = stranger.run("turnstream", "tail", seconds=AT_ONCE_S)
    assert tail.stderr.startswith("turnstream: no log is named")
    assert list(stranger.folder.glob("*.db")) == []


def assert_done(ran: "subprocess.CompletedProcess[str]") -> None:
    assert ran.returncode == 0, ran.stdout + ran.stderr


def until(holds: Callable[[], object]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, "it does not happen"
        time.sleep(0.2)
