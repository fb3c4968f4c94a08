"""What happens around a deployment: the engine restarted, the disk full, another one beside it."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compose.engine.agents import Load, judged
from tests.compose.engine.daemon import Docker
from tests.compose.engine.debian import run
from tests.compose.engine.deployment import Deployment, deployed

DISK_MB = 600


def begun(deployment: Deployment) -> None:
    deployment.set(**deployment.gateway_variables, PROCESSORS="2", COMPOSE_PROFILES="gateway")
    deployment.up()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_the_engine_is_restarted_under_load(
    own_engine: Docker,
    deployment: Deployment,
    figures: dict[str, object],
    number: signal.Signals,
) -> None:
    begun(deployment)
    with Load(deployment) as load:
        load.until_turns(40)
        assert own_engine.restart is not None
        began_s = time.monotonic()
        own_engine.restart(number)
        figures["engine"] = f"{time.monotonic() - began_s:.0f} s"
        if number == signal.SIGKILL:
            # It ends what went on without it and, unlike after a stop, leaves it ended.
            deployment.up()
        deployment.until_well(*("kafka", "processor", "gateway-1", "gateway-2", "router"))
        figures["all well"] = f"{time.monotonic() - began_s:.0f} s"
        load.until_turns(40)
        report = load.done()
    figures |= judged(deployment, report).figures()


@contextmanager
def small_disk(folder: Path) -> Iterator[tuple[str, Path]]:
    """A disk of its own, as a device, and where this machine sees what is on it."""
    image, seen = folder / "disk", folder / "seen"
    image.touch()
    os.truncate(image, DISK_MB * 1_000_000)
    # Its root is the broker's: a disk that is there already is taken as it is.
    run("mkfs.ext4", "-q", "-E", "root_owner=1000:1000", image)
    device = run("losetup", "--find", "--show", image).strip()
    try:
        seen.mkdir()
        run("mount", device, seen)
        try:
            (seen / "lost+found").rmdir()  # a folder that is no partition's ends a broker
            yield device, seen
        finally:
            run("umount", seen)
    finally:
        run("losetup", "--detach", device)


@pytest.mark.usefixtures("own_engine")
def test_a_full_disk_stops_the_broker_until_there_is_room(
    docker: Docker, tmp_path: Path, figures: dict[str, object]
) -> None:
    with small_disk(tmp_path) as (device, seen), deployed(docker, tmp_path) as deployment:
        name = f"{deployment.project}_kafka"
        labels = (f"project={deployment.project}", "volume=kafka")
        docker(
            *("volume", "create", "--opt", "type=ext4", "--opt", f"device={device}"),
            *(word for label in labels for word in ("--label", f"com.docker.compose.{label}")),
            name,
        )
        begun(deployment)
        with Load(deployment) as load:
            load.until_turns(40)
            filler = seen / "filler"
            with filler.open("wb") as file:
                free = os.statvfs(seen)
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
            before = deployment.container("kafka").restarts
            took_s = deployment.until(
                lambda: deployment.container("kafka").restarts > before, "the broker ends"
            )
            figures["the broker ended after"] = f"{took_s:.0f} s"
            filler.unlink()
            figures["all well"] = f"{deployment.until_well():.0f} s"
            load.until_turns(40)
            report = load.done()
        figures |= judged(deployment, report).figures()
        deployment.down("--volumes")


def test_two_deployments_do_not_know_each_other(
    docker: Docker, tmp_path: Path, figures: dict[str, object]
) -> None:
    with deployed(docker, tmp_path, "one") as one, deployed(docker, tmp_path, "two") as two:
        begun(one)
        begun(two)
        with Load(one, agents=5) as first, Load(two, agents=5) as second:
            first.until_turns(20)
            second.until_turns(20)
            report = first.done()
            judged(one, report)
            others = {container.id for container in two.containers()}
            one.down("--volumes")
            assert {container.id for container in two.containers()} == others
            second.until_turns(20)
            other = judged(two, second.done())
        assert not report.turns.keys() & other.turns.keys()
        figures |= {"sessions of the one": len(report.turns), "of the other": len(other.turns)}
