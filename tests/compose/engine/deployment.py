"""One deployment of the compose file as it is, under a name and ports of its own.

    checkout/            docker-compose.yml, Dockerfile, Caddyfile and what the image is made of
      .env               the one table of what is not as the files have it: host ports, folders

Invariant: of the files nothing is changed, and when the block ends nothing of the deployment is
left: no container, network or volume.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.compose.engine.daemon import Docker
from tests.drift.qwen3 import tokenizer_folder
from tests.kafka.broker import free_port
from tests.kafka.jars import ROOT

COPIED = (
    *("docker-compose.yml", "Dockerfile", "Caddyfile", ".dockerignore", "requirements.txt"),
    *("pyproject.toml", "README.md", "LICENSE", "schemas", "streams", "examples/trainer"),
)
EVERYTHING = ("--profile", "*")
ONCE = ("memory-check", "gateway-check", "topics")
"""Services that end by themselves."""
SCRIPT = {
    "answers": [{"contains": "slowly", "text": "Word after word.", "gap_ms": 300, "times": None}],
    "otherwise": {"text": "Tokens that nobody would choose.", "drift": 2},
}
SECRET = "a-secret-of-this-test-of-32-letters"
UP_SECONDS_MAX = 600.0
PATIENCE_S = 300.0
"""For a container to be healthy again, on a busy machine."""


class Failed(AssertionError):
    """The deployment did not do what was asked; the text ends with what it said."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container as the engine sees it now."""

    id: str
    name: str
    service: str
    running: bool
    health: str
    """healthy, unhealthy, starting; `""` without a check."""
    restarts: int
    exit_code: int
    pid: int
    image: str
    inspected: dict[str, Any] = field(repr=False)

    @property
    def well(self) -> bool:
        """It does what it is there for, or has done it."""
        if self.service in ONCE:
            return not self.running and self.exit_code == 0
        return self.running and self.health in {"healthy", ""}


@dataclass(slots=True)
class Deployment:
    """What `docker compose` does in one checkout."""

    docker: Docker
    checkout: Path
    project: str
    ports: dict[str, int]

    @property
    def model(self) -> Path:
        """A folder for GATEWAY_TOKENIZER: a tokenizer, and a script for the engine beside it."""
        return self.checkout / "models/scripted"

    @property
    def gateway_variables(self) -> dict[str, str]:
        """What the profile `gateway` needs."""
        return {
            "TURNSTREAM_GATEWAY_SECRET": SECRET,
            "GATEWAY_TOKENIZER": str(self.model),
            "GATEWAY_ENGINE": "scripted:/tokenizer/script.json",
        }

    def compose(self, *words: str, seconds: float = UP_SECONDS_MAX, **variables: str) -> str:
        """What a command prints; `Failed` with what it said if it fails."""
        done = self.tried(*words, seconds=seconds, **variables)
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
            raise Failed(f"docker compose {' '.join(words)}: {done.returncode}\n{said}")
        return done.stdout

    def tried(
        self, *words: str, seconds: float = UP_SECONDS_MAX, **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        """A command, however it ends."""
        named = {"COMPOSE_PROJECT_NAME": self.project, **variables}
        return self.docker.tried("compose", *words, seconds=seconds, cwd=self.checkout, **named)

    def set(self, **variables: str) -> None:
        """Write `.env` anew: ports and these."""
        ports = {
            "KAFKA_HOST_PORT": str(self.ports["kafka"]),
            "GATEWAY_HOST_PORT": str(self.ports["router"]),
        }
        lines = (f"{name}={value}\n" for name, value in (ports | variables).items())
        (self.checkout / ".env").write_text("".join(lines), "utf-8")

    def up(self, *words: str) -> float:
        """`up --detach --wait`; the seconds it took."""
        began_s = time.monotonic()
        self.compose("up", "--detach", "--wait", *words)
        return time.monotonic() - began_s

    def down(self, *words: str) -> float:
        """Everything; the seconds it took."""
        began_s = time.monotonic()
        self.compose(*EVERYTHING, "down", *words)
        return time.monotonic() - began_s

    def containers(self, *services: str) -> list[Container]:
        """All there are, of these services; of every one if none is named."""
        label = f"label=com.docker.compose.project={self.project}"
        ids = self.docker("ps", "--all", "--quiet", "--filter", label).split()
        if not ids:
            return []
        found = [_container(told) for told in json.loads(self.docker("inspect", *ids))]
        return sorted(
            (c for c in found if not services or c.service in services), key=lambda c: c.name
        )

    def container(self, service: str) -> Container:
        """The only one of a service."""
        (found,) = self.containers(service)
        return found

    def scale(self, service: str) -> int:
        """How many run."""
        return sum(container.running for container in self.containers(service))

    def said(self, *services: str) -> str:
        """The last lines of what services print."""
        return self.tried(*EVERYTHING, "logs", "--no-color", "--tail", "40", *services).stdout

    def until(self, holds: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> float:
        """Wait for it; the seconds it took, `Failed` with the state of all if it does not come."""
        began_s = time.monotonic()
        while not holds():
            if time.monotonic() - began_s > seconds:
                states = "\n".join(map(str, self.containers()))
                raise Failed(f"{what}: not in {seconds:g} s\n{states}\n{self.said()}")
            time.sleep(0.2)
        return time.monotonic() - began_s

    def until_well(self, *services: str, seconds: float = PATIENCE_S) -> float:
        """Wait until these, or all there are, do what they are there for."""
        what = f"{', '.join(services) or 'all'} well"
        return self.until(lambda: all(c.well for c in self.containers(*services)), what, seconds)

    def kill(self, container: Container) -> float:
        """Kill -9 its first process; the seconds until another is well in its place.

        Not `docker kill`: what is ended by that counts as stopped by hand, and stays ended.
        """
        assert container.pid, f"{container.name} does not run"
        os.kill(container.pid, signal.SIGKILL)

        def replaced() -> bool:
            now = next(c for c in self.containers(container.service) if c.id == container.id)
            return now.restarts > container.restarts and now.well and now.pid != container.pid

        return self.until(replaced, f"{container.name} well after kill -9")

    @property
    def control_key(self) -> str:
        """As the documentation has it printed."""
        return self.compose(
            *("--profile", "gateway", "exec", "-T", "gateway-1"),
            *("turnstream", "gateway", "--print-control-key"),
        ).strip()

    @property
    def gateway_url(self) -> str:
        """Where agents go."""
        return f"http://127.0.0.1:{self.ports['router']}"

    @property
    def servers(self) -> str:
        """Where programs of this machine find the broker."""
        return f"127.0.0.1:{self.ports['kafka']}"


def _container(told: dict[str, Any]) -> Container:
    state = told["State"]
    return Container(
        id=told["Id"],
        name=told["Name"].lstrip("/"),
        service=told["Config"]["Labels"]["com.docker.compose.service"],
        running=state["Running"] and not state["Restarting"],
        health=state.get("Health", {}).get("Status", ""),
        restarts=told["RestartCount"],
        exit_code=state["ExitCode"],
        pid=state["Pid"],
        image=told["Image"],
        inspected=told,
    )


def copy_checkout(to: Path) -> Path:
    """What a user who cloned the project has of it, as far as compose reads it."""
    for name in COPIED:
        source, target = ROOT / name, to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    return to


def _make_model(folder: Path) -> None:
    shutil.copytree(tokenizer_folder(), folder)
    (folder / "script.json").write_text(json.dumps(SCRIPT), "utf-8")
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)  # another user reads it there


@contextlib.contextmanager
def deployed(docker: Docker, folder: Path, name: str = "test") -> Iterator[Deployment]:
    """Files in a folder of their own and nothing started yet; at the end nothing is left."""
    ports = {"kafka": free_port(), "router": free_port()}
    here = Deployment(docker, copy_checkout(folder / name), f"turnstream-{name}", ports)
    _make_model(here.model)
    here.set()
    try:
        yield here
    finally:
        # Whatever the test did to `.env`: without its profiles there would be less to remove.
        here.tried(*EVERYTHING, "down", "--volumes", "--timeout", "20", "--remove-orphans")
