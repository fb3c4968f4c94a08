"""The engine that the compose file is run on: the one that is named, else one of our own.

Invariant: when the session is over no container, network or volume of these tests is left, and an
engine of our own has ended; what it has built stays for the next time.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.engine.daemon import Docker, NoEngine, running
from tests.compose.engine.debian import NotDebian
from tests.compose.engine.deployment import Deployment, deployed
from tests.compose.engine.stand_ins import programs, stand_ins
from tests.kafka.jars import ROOT

KEPT = ROOT / ".venv/compose"
FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def docker(pytestconfig: pytest.Config) -> Iterator[Docker]:
    """An engine, and the client that goes with it."""
    named = os.environ.get("DOCKER_HOST")
    if named:
        program = shutil.which("docker")
        assert program is not None, "DOCKER_HOST is set, but there is no `docker` here"
        # Nothing but `.env` says what a deployment is.
        kept = ("PATH", "HOME", "SSH_AUTH_SOCK")
        client = {k: v for k, v in os.environ.items() if k in kept or k.startswith("DOCKER_")}
        yield Docker(Path(program), client)
        return
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    began_s = time.monotonic()

    def say(what: str) -> None:
        """To whoever waits for it: the first time takes minutes."""
        with capture.global_and_fixture_disabled():
            sys.stderr.write(f"{time.monotonic() - began_s:4.0f} s  {what}\n")

    try:
        with running(programs(KEPT, say), KEPT / "engine") as docker:
            stand_ins(docker, KEPT, say)
            say("the engine is there")
            yield docker
    except (NoEngine, NotDebian) as error:
        pytest.exit(f"no container engine: {error}", returncode=1)


@pytest.fixture(scope="session")
def own_engine(docker: Docker) -> Docker:
    """One whose processes and disks are this machine's."""
    if docker.restart is None:
        pytest.skip("needs an engine of our own: unset DOCKER_HOST")
    return docker


@pytest.fixture
def deployment(docker: Docker, tmp_path: Path) -> Iterator[Deployment]:
    """The files in a folder; nothing is started yet."""
    with deployed(docker, tmp_path) as fresh:
        yield fresh


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Iterator[dict[str, object]]:
    """What a test measured, printed when all are done."""
    told: dict[str, object] = {}
    yield told
    line = ", ".join(f"{what} {value}" for what, value in told.items())
    request.config.stash.setdefault(FIGURES, []).append(f"{request.node.name}: {line}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    terminalreporter.write_line("")
    for line in config.stash.get(FIGURES, []):
        terminalreporter.write_line(line)
