"""What a first user gets wrong is said at once, with what to do about it."""

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.compose.engine.daemon import Docker
from tests.compose.engine.deployment import Deployment, deployed

SAID_WITHIN_S = 15.0
"""By the first container; five seconds where the machine has nothing else to do."""


@pytest.fixture(scope="module", autouse=True)
def built(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The image is there: what is measured is not its making."""
    with deployed(docker, tmp_path_factory.mktemp("built")) as deployment:
        deployment.compose("build")


def refused(deployment: Deployment, *words: str) -> str:
    """What `up` says, which has to fail; no gateway and no trainer may have begun."""
    done = deployment.tried(*words, "up", "--detach")
    assert done.returncode != 0, done.stdout + done.stderr
    for service in ("gateway-1", "gateway-2", "trainer"):
        assert deployment.scale(service) == 0, service
    return done.stderr


def refused_by(deployment: Deployment, figures: dict[str, object], check: str, *words: str) -> str:
    """What the check says, which ends `up`."""
    began = datetime.now(UTC)
    said = refused(deployment, *words)
    assert f'service "{check}" didn\'t complete successfully: exit 1' in said
    ended = deployment.container(check).inspected["State"]["FinishedAt"]
    took_s = (datetime.fromisoformat(ended[:26] + "+00:00") - began).total_seconds()
    figures["said after"] = f"{took_s:.1f} s"
    assert took_s < SAID_WITHIN_S
    # As the documentation has it printed.
    return deployment.compose("--profile", "gateway", "logs", "--no-color", check)


GATEWAY = {
    "no secret": ({"TURNSTREAM_GATEWAY_SECRET": ""}, "TURNSTREAM_GATEWAY_SECRET: not set"),
    "no such engine": ({"GATEWAY_ENGINE": "sglan:http://127.0.0.1:30000"}, "no such engine: give"),
    "a folder without a tokenizer": ({"GATEWAY_TOKENIZER": "./schemas"}, "/tokenizer"),
}


@pytest.mark.parametrize(("changed", "told"), GATEWAY.values(), ids=GATEWAY)
def test_a_gateway_that_cannot_run_is_refused_at_once(
    deployment: Deployment, figures: dict[str, object], changed: dict[str, str], told: str
) -> None:
    deployment.set(**deployment.gateway_variables | changed)
    assert told in refused_by(deployment, figures, "gateway-check", "--profile", "gateway")


@pytest.fixture
def trainer_image(docker: Docker) -> Iterator[None]:
    """Some image in the place of the trainer's, which takes gigabytes to make."""
    if docker.tried("image", "inspect", "turnstream-trainer").returncode == 0:
        yield
        return
    docker("tag", "turnstream", "turnstream-trainer")
    yield
    docker("image", "rm", "turnstream-trainer")


FOLDERS = {
    "tokenizer": ("gateway", "GATEWAY_TOKENIZER", "tokenizer"),
    "model": ("trainer", "TRAINER_MODEL", "model"),
}


@pytest.mark.usefixtures("trainer_image")
@pytest.mark.parametrize(("profile", "variable", "folder"), FOLDERS.values(), ids=FOLDERS)
def test_a_folder_that_is_not_there_is_named_and_not_made(
    deployment: Deployment,
    figures: dict[str, object],
    profile: str,
    variable: str,
    folder: str,
) -> None:
    elsewhere = {variable: str(deployment.checkout / "elsewhere")}
    for given in ({}, elsewhere):
        deployment.set(TURNSTREAM_GATEWAY_SECRET="a-secret", **given)
        began_s = time.monotonic()
        said = refused(deployment, "--profile", profile)
        figures["said after"] = f"{time.monotonic() - began_s:.1f} s"
        missing = given.get(variable, str(deployment.checkout / folder))
        assert f"bind source path does not exist: {missing}" in said
        assert not Path(missing).exists()
        assert deployment.scale("kafka") == 0


PORTS = {"the broker's": ("kafka", ()), "the router's": ("router", ("--profile", "gateway"))}


@pytest.mark.usefixtures("own_engine")  # else ports are those of another machine
@pytest.mark.parametrize(("taken", "profiles"), PORTS.values(), ids=PORTS)
def test_a_port_in_use_is_named_at_once(
    deployment: Deployment, taken: str, profiles: tuple[str, ...]
) -> None:
    deployment.set(**deployment.gateway_variables)
    with socket.socket() as other:
        other.bind(("127.0.0.1", deployment.ports[taken]))
        other.listen()
        said = refused(deployment, *profiles)
    assert f"127.0.0.1:{deployment.ports[taken]}" in said
    assert "address already in use" in said


def test_too_little_memory_is_said_before_the_broker_takes_it(
    deployment: Deployment, figures: dict[str, object]
) -> None:
    deployment.set(MEMORY_MB_MIN="9000000")
    told = refused_by(deployment, figures, "memory-check")
    assert "MB of memory, but 9000000 are needed: give it more" in told
    assert deployment.scale("kafka") == 0
