"""What the containers of a deployment are: confined, bounded, small, cheap to look after."""

import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.engine.daemon import Docker
from tests.compose.engine.deployment import ONCE, Container, Deployment, deployed

PROFILES = ("gateway", "sinks", "trainer")
PACKAGES_MB_MAX = 290
"""Of our own image above the one it stands on."""
IDLE_S = 20.0
LOOKS = 5
CORE_SHARE_MAX = 0.01
"""Of a core, for looking whether a container is well."""
CGROUPS = Path("/sys/fs/cgroup")
IMPORTS = """
import importlib, pkgutil, streams
failed = {}
for module in pkgutil.walk_packages(streams.__path__, "streams."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        failed[module.name] = str(error)
import json
print(json.dumps(failed))
"""


@pytest.fixture(scope="module")
def idle(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Every service but the trainer, up, and nobody asks anything of them."""
    with deployed(docker, tmp_path_factory.mktemp("idle")) as deployment:
        deployment.set(**deployment.gateway_variables, COMPOSE_PROFILES="gateway,sinks")
        deployment.up()
        yield deployment


def test_compose_reads_the_file_with_any_profiles(deployment: Deployment) -> None:
    for count in range(len(PROFILES) + 1):
        for chosen in itertools.combinations(PROFILES, count):
            words = [word for profile in chosen for word in ("--profile", profile)]
            read = json.loads(deployment.compose(*words, "config", "--format", "json"))
            assert ("trainer" in read["services"]) is ("trainer" in chosen)
            assert ("gateway-1" in read["services"]) is ("gateway" in chosen)


def test_containers_are_confined(idle: Deployment) -> None:
    for container in idle.containers():
        host = container.inspected["HostConfig"]
        assert host["CapDrop"] == ["ALL"], container.name
        assert host["SecurityOpt"] == ["no-new-privileges:true"], container.name
        assert host["ReadonlyRootfs"] is (container.service != "kafka"), container.name
        if not container.running:
            continue
        status = idle.compose("exec", "-T", container.service, "cat", "/proc/1/status")
        (effective,) = re.findall(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
        (user,) = re.findall(r"^Uid:\s*(\d+)", status, re.MULTILINE)
        # To bind low ports, which the router's program asks for and does not use.
        assert int(effective, 16) == (1 << 10 if container.service == "router" else 0)
        if container.service != "router":
            assert user == ("1000" if container.service == "kafka" else "10001"), container.name


def test_containers_are_bounded_and_leave_nothing_without_a_name(idle: Deployment) -> None:
    for container in idle.containers():
        host = container.inspected["HostConfig"]
        assert host["Memory"] > 0, container.name
        assert host["LogConfig"]["Type"] == "json-file"
        assert host["LogConfig"]["Config"] == {"max-size": "10m", "max-file": "3"}
        volumes = [m["Name"] for m in container.inspected["Mounts"] if m["Type"] == "volume"]
        assert all(name.startswith(idle.project) for name in volumes), container.name


def test_the_image_has_what_its_services_load_and_little_more(
    docker: Docker, idle: Deployment, figures: dict[str, object]
) -> None:
    printed = docker("run", "--rm", "--entrypoint", "python", "turnstream", "-c", IMPORTS)
    failed = json.loads(printed.splitlines()[-1])
    # What is computed with PyTorch is not for a service, nor what wraps environments.
    others = re.compile("torch|gymnasium|dm_env")
    assert {why for why in failed.values() if not others.search(why)} == set(), failed
    base = idle.container("processor").inspected["Config"]["Image"]
    assert base == "turnstream"
    sizes = {
        name: int(docker("image", "inspect", "--format", "{{.Size}}", name)) / 1e6
        for name in ("turnstream", "python:3.11.15-slim-trixie")
    }
    figures |= {name: f"{size:.0f} MB" for name, size in sizes.items()}
    assert sizes["turnstream"] - sizes["python:3.11.15-slim-trixie"] < PACKAGES_MB_MAX


def cpu_s(container: Container) -> float:
    """Of everything that ran in it, its checks too; the kernel's cgroups, of either version."""
    for found in CGROUPS.glob(f"**/{container.id}/cpuacct.usage"):
        return int(found.read_text("utf-8")) / 1e9
    for found in CGROUPS.glob(f"**/*{container.id}*/cpu.stat"):
        (used,) = re.findall(r"^usage_usec (\d+)$", found.read_text("utf-8"), re.MULTILINE)
        return int(used) / 1e6
    raise AssertionError(f"no cgroup of {container.name}")


@pytest.mark.usefixtures("own_engine")
def test_a_look_whether_a_container_is_well_costs_little(
    idle: Deployment, figures: dict[str, object]
) -> None:
    running = [container for container in idle.containers() if container.service not in ONCE]
    before, began_s = {c.name: cpu_s(c) for c in running}, time.monotonic()
    time.sleep(IDLE_S)
    idle_s = time.monotonic() - began_s
    resting = {c.name: (cpu_s(c) - before[c.name]) / idle_s for c in running}
    for container in running:
        check = container.inspected["Config"]["Healthcheck"]
        used_s, began_s = cpu_s(container), time.monotonic()
        for _ in range(LOOKS):
            idle.compose("exec", "-T", container.service, *check["Test"][1:])
        used_s = cpu_s(container) - used_s
        used_s -= (time.monotonic() - began_s) * resting[container.name]
        look_s, every_s = max(0.0, used_s) / LOOKS, check["Interval"] / 1e9
        figures[container.service] = (
            f"{look_s * 1000:.0f} ms every {every_s:.0f} s beside "
            f"{resting[container.name] * 1000:.0f} ms a second"
        )
        assert look_s / every_s < CORE_SHARE_MAX, container.name
