"""A container engine of our own for as long as a test runs: Debian's, unpacked and never installed.

    folder/programs     dockerd, containerd, docker with compose and buildx, docker-proxy, tini
    folder/data         images, volumes, the build's cache: kept for the next run
    folder/run          socket, pid file, state of what runs: gone with the engine
    this machine's      runc and iptables

Invariants: the engine has its own folders, bridge and addresses, and what it changed of the
machine's forwarding and packet filter is as before when it has ended; it is ended by its own
process id, after every container, and says why if it does not come up.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.compose.engine.debian import NotDebian, run

BRIDGE = "turnstream0"
BRIDGE_ADDRESS = "10.213.0.1/24"
POOL = "base=10.213.128.0/17,size=24"
"""Networks that compose makes."""
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 180.0
CONTAINERS_STOP_SECONDS_MAX = 90
"""The longest grace of the compose file."""
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_LINES_SAID = 40
_SOCKET_PATH_MAX = 90
"""The kernel takes 107 characters; the engine's own sockets are some longer than ours."""


class NoEngine(RuntimeError):
    """There is no engine, and none can be had here; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Docker:
    """An engine and the client that speaks to it."""

    program: Path
    environment: dict[str, str]
    restart: Callable[[signal.Signals], None] | None = None
    """End it by this signal and start it again, if it is ours."""

    def __call__(self, *words: str | Path, seconds: float = 120.0) -> str:
        """What a command of the client prints; `AssertionError` with its last lines if it fails."""
        done = self.tried(*words, seconds=seconds)
        last = "\n".join((done.stdout + done.stderr).splitlines()[-_LINES_SAID:])
        assert done.returncode == 0, f"docker {' '.join(map(str, words))}\n{last}"
        return done.stdout

    def tried(
        self,
        *words: str | Path,
        seconds: float = 120.0,
        cwd: Path | None = None,
        **variables: str,
    ) -> "subprocess.CompletedProcess[str]":
        """A command of the client, however it ends."""
        return subprocess.run(
            [self.program, *words],
            cwd=cwd,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


@contextlib.contextmanager
def running(programs: Path, folder: Path) -> Iterator[Docker]:
    """The engine of these programs, with its data in that folder, until the block ends."""
    socket = folder / "run/docker.sock"
    if len(str(socket)) > _SOCKET_PATH_MAX:
        raise NoEngine(f"{socket} is too long for a socket: use a checkout nearer to the root")
    _end_left_over(folder)
    (folder / "run").mkdir(parents=True, exist_ok=True)
    client = {
        "PATH": f"{programs / 'usr/bin'}:{programs / 'usr/sbin'}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(folder),
        "DOCKER_HOST": f"unix://{socket}",
        "DOCKER_CONFIG": str(_client_configuration(programs, folder)),
    }
    with _forwarding_as_before(folder / "forwarding.json"), _bridge():
        daemon = _Daemon(programs, folder, client)
        docker = Docker(programs / "usr/bin/docker", client, daemon.restart)
        try:
            daemon.start(docker)
            yield docker
        finally:
            _remove_containers(docker)
            daemon.stop()
            shutil.rmtree(folder / "run", ignore_errors=True)


def _end_left_over(folder: Path) -> None:
    """A run that was killed could not end its engine; it is known by its pid file and its words."""
    try:
        pid = int((folder / "run/docker.pid").read_text("utf-8"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ValueError):
        return
    if f"--config-file={folder / 'daemon.json'}".encode() not in words:
        return  # another process has that number now
    os.kill(pid, signal.SIGTERM)
    until_s = time.monotonic() + STOP_SECONDS_MAX
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > until_s:
            raise NoEngine(f"an engine of an earlier run, process {pid}, does not end")
        time.sleep(0.2)


def _client_configuration(programs: Path, folder: Path) -> Path:
    configuration = folder / "client"
    configuration.mkdir(exist_ok=True)
    plugins = programs / "usr/libexec/docker/cli-plugins"
    (configuration / "config.json").write_text(
        f'{{"cliPluginsExtraDirs": ["{plugins}"]}}\n', "utf-8"
    )
    return configuration


class _Daemon:
    """The process of the engine; there may be another later."""

    def __init__(self, programs: Path, folder: Path, client: dict[str, str]) -> None:
        self._said = folder / "dockerd.log"
        self._docker: Docker | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {key: value for key, value in client.items() if key != "DOCKER_HOST"}
        configuration = folder / "daemon.json"
        configuration.write_text("{}\n", "utf-8")
        self._command: list[str | Path] = [
            programs / "usr/sbin/dockerd",
            f"--config-file={configuration}",  # never the machine's own
            f"--data-root={folder / 'data'}",
            f"--exec-root={folder / 'run/exec'}",
            f"--pidfile={folder / 'run/docker.pid'}",
            f"--host={client['DOCKER_HOST']}",
            f"--bridge={BRIDGE}",
            f"--default-address-pool={POOL}",
            f"--mtu={_mtu()}",
            "--storage-driver=overlay2",
            f"--shutdown-timeout={CONTAINERS_STOP_SECONDS_MAX}",
        ]

    def start(self, docker: Docker) -> None:
        """Start, and wait until it answers."""
        self._docker = docker
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        until_s = time.monotonic() + START_SECONDS_MAX
        while docker.tried("version").returncode:
            if self._process.poll() is not None or time.monotonic() > until_s:
                last = "\n".join(self._said.read_text("utf-8").splitlines()[-15:])
                raise NoEngine(f"the engine does not come up here:\n{last}")
            time.sleep(0.1)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it; what is left of its group after a while is killed."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def restart(self, number: signal.Signals) -> None:
        """End it by this signal, and start it on what it had."""
        assert self._docker is not None
        self.stop(number)
        self.start(self._docker)


def _remove_containers(docker: Docker) -> None:
    """Before the engine ends: what a killed one leaves behind goes on without it."""
    left = docker.tried("ps", "--all", "--quiet").stdout.split()
    if left:
        docker.tried("rm", "--force", *left)


def _mtu() -> int:
    """Of the way out of this machine: larger packets would get lost behind our bridge."""
    words = run("ip", "-oneline", "route", "show", "default").split()
    if "dev" not in words:
        return 1500
    device = words[words.index("dev") + 1]
    return int(Path(f"/sys/class/net/{device}/mtu").read_text("utf-8"))


@contextlib.contextmanager
def _bridge() -> Iterator[None]:
    with contextlib.suppress(NotDebian):  # of a run that was killed
        run("ip", "link", "delete", BRIDGE)
    run("ip", "link", "add", "name", BRIDGE, "type", "bridge")
    try:
        run("ip", "address", "add", BRIDGE_ADDRESS, "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        yield
    finally:
        run("ip", "link", "delete", BRIDGE)


@contextlib.contextmanager
def _forwarding_as_before(kept: Path) -> Iterator[None]:
    """An engine forwards packets, and leaves its rules behind.

    What was before stands in a file meanwhile: a run that was killed is put right by the next.
    """
    if not kept.exists():
        before = {"forward": _FORWARD.read_text("utf-8"), "rules": run("iptables-save")}
        kept.write_text(json.dumps(before), "utf-8")
    before = json.loads(kept.read_text("utf-8"))
    try:
        yield
    finally:
        # Where another engine runs its rules are among them, and it may have changed them.
        if ":DOCKER " not in before["rules"]:
            rules = with_every_table(before["rules"])
            subprocess.run(["iptables-restore"], input=rules, text=True, timeout=60, check=True)
            _FORWARD.write_text(before["forward"], "utf-8")
        kept.unlink()


def with_every_table(rules: str) -> str:
    """With every table that an engine writes to, empty where there was none of it."""
    chains = {
        "filter": ("INPUT", "FORWARD", "OUTPUT"),
        "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
        "raw": ("PREROUTING", "OUTPUT"),
    }
    for table, names in chains.items():
        if f"*{table}\n" not in rules:
            policies = "".join(f":{name} ACCEPT [0:0]\n" for name in names)
            rules += f"*{table}\n{policies}COMMIT\n"
    return rules
