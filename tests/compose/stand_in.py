"""Stands in for a container engine: services of a compose file as processes of this machine.

A container's process is the image's entry point with the service's command, in the variables of
the image and the service and no others. Its health is what the service's own check says, asked as
often as the file says. Addresses and paths that mean something only inside a container are
replaced by one table, also in a file that is mounted; its `/tmp` is a folder of its own.

Invariant: no process outlives the stand-in; every wait ends, by the bounds of the file or by
`SECONDS_MAX`.
"""

import re
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.compose.compose_file import COMPOSE, HealthCheck, Service
from tests.compose.dockerfile import Stage

SECONDS_MAX = 60.0
"""For a service that ends by itself; the file has no bound for it."""
BASE_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
"""What the base image sets."""


class Failed(AssertionError):
    """A service did not do what the file asks of it; the text ends with what it printed."""


def replaced(text: str, table: Mapping[str, str]) -> str:
    """The text with every left side of the table replaced, in one pass, the longest first."""
    sides = sorted(table, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, sides)), lambda match: table[match[0]], text)


@dataclass(slots=True)
class Container:
    """One process in the place of one container."""

    name: str
    service: Service
    process: "subprocess.Popen[bytes]"
    environment: dict[str, str]
    folder: Path
    stop_signal: int

    @property
    def said(self) -> str:
        """Everything it printed, its checks included."""
        return (self.folder / "said").read_text("utf-8", errors="replace")

    def healthy(self) -> None:
        """Wait for it, as the engine does; `Failed` if it ends or stays unhealthy."""
        check = self.service.health
        if check is None:
            raise Failed(f"{self.name} has no health check, and something waits for it")
        begun_s, failures = time.monotonic(), 0
        while True:
            starting = time.monotonic() - begun_s < check.start_period_s
            time.sleep(check.start_interval_s if starting else check.interval_s)
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended with {self.process.returncode}: {self.said}")
            if self.checked(check):
                return
            failures += not starting
            if failures >= check.retries:
                raise Failed(f"{self.name} is unhealthy: {self.said}")

    def checked(self, check: HealthCheck) -> bool:
        """One look."""
        with (self.folder / "said").open("ab") as said:
            try:
                run = subprocess.run(
                    check.command,
                    env=self.environment,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    timeout=check.timeout_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return False
        return run.returncode == 0

    def completed(self, within_s: float = SECONDS_MAX) -> None:
        """Wait for its end; `Failed` if that is not a success."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} does not end: {self.said}") from None
        if code:
            raise Failed(f"{self.name} ended with {code}: {self.said}")

    def stopped(self, until_s: float) -> None:
        """Wait for its end after the stop signal; `Failed` unless it comes in time, and well."""
        try:
            code = self.process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            grace = f"{self.service.stop_grace_s:g} s"
            raise Failed(f"{self.name} does not stop in {grace}: {self.said}") from None
        if code:
            raise Failed(f"{self.name} ended with {code} when told to stop: {self.said}")


@dataclass(slots=True)
class StandIn:
    """The services whose program is at hand, started in the order the file asks for."""

    services: Mapping[str, Service]
    image: Stage
    folder: Path
    new_table: Callable[[str], Mapping[str, str]]
    """What is replaced for one more container of that service."""
    foreign: Mapping[str, Stage] = field(default_factory=dict)
    """By service: other images whose program is at hand."""
    containers: dict[str, list[Container]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing runs any more."""
        for container in self._all():
            container.process.kill()
            container.process.wait(SECONDS_MAX)

    def up(self, scale: Mapping[str, int], profiles: Collection[str] = ()) -> None:
        """Start everything and wait until it is healthy; what is not at hand runs already."""
        needs = {name: set(service.depends_on) for name, service in self.services.items()}
        for service in (self.services[name] for name in TopologicalSorter(needs).static_order()):
            asked = not service.profiles or not set(profiles).isdisjoint(service.profiles)
            at_hand = service.built or service.name in self.foreign
            if not at_hand or not asked:
                continue
            for other, condition in service.depends_on.items():
                self._wait(other, condition)
            numbers = range(1, scale.get(service.name, 1) + 1)
            self.containers[service.name] = []
            for number in numbers:
                container = self._started(f"{service.name}-{number}", service)
                self.containers[service.name].append(container)
        for container in self._all():
            if container.service.health is not None:
                container.healthy()

    def down(self) -> None:
        """Stop what still runs, dependents first."""
        for several in reversed(self.containers.values()):
            stop([container for container in several if container.process.poll() is None])

    def _all(self) -> list[Container]:
        return [container for several in self.containers.values() for container in several]

    def _wait(self, name: str, condition: str) -> None:
        for container in self.containers.get(name, []):
            match condition:
                case "service_started":
                    pass
                case "service_healthy":
                    container.healthy()
                case "service_completed_successfully":
                    container.completed()
                case _:
                    raise Failed(f"{name}: nothing is known of the condition {condition}")

    def _started(self, name: str, service: Service) -> Container:
        image = self.foreign.get(service.name, self.image)
        folder, table = self.folder / name, dict(self.new_table(service.name))
        folder.mkdir()
        table |= _mounted(service, folder, table)
        written = image.environment(BASE_ENVIRONMENT) | service.environment
        # A container's `/tmp`, the one place it may write to.
        environment = {
            key: str(folder) if value == "/tmp" else replaced(value, table)
            for key, value in (written | {"TMPDIR": "/tmp"}).items()
        }
        if service.health is not None:
            check = [replaced(word, table) for word in service.health.command]
            service = replace(service, health=replace(service.health, command=check))
        # Appended to, since the checks write here too.
        with (folder / "said").open("ab") as said:
            process = subprocess.Popen(
                [replaced(word, table) for word in (*image.entrypoint, *service.command)],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        number = signal.Signals[image.last("STOPSIGNAL")]
        return Container(name, service, process, environment, folder, number)


def _mounted(service: Service, folder: Path, table: Mapping[str, str]) -> dict[str, str]:
    """Files from beside the compose file, by where the container finds them."""
    found: dict[str, str] = {}
    for mount in service.options.get("volumes", []):
        if isinstance(mount, dict):  # a folder, which stands in the table
            continue
        source, target, *_ = mount.split(":")
        file = COMPOSE.parent / source
        if file.is_file():
            copy = folder / file.name
            copy.write_text(replaced(file.read_text("utf-8"), table), encoding="utf-8")
            found[target] = str(copy)
    return found


def stop(containers: list[Container]) -> None:
    """Stop containers of one service, all at the same time."""
    begun_s = time.monotonic()
    for container in containers:
        container.process.send_signal(container.stop_signal)
    for container in containers:
        container.stopped(begun_s + container.service.stop_grace_s)
