"""A real Kafka broker in KRaft mode, from the jars of `tools/broker/pom.xml`.

    with Broker(folder) as broker:       formatted, started, answering
        broker.bootstrap_servers         "127.0.0.1:21734"
        broker.kill(); broker.start()    kill -9, and up again on the same data and ports

Ports lie below the range that systems hand out for outgoing connections. In that range a client
that keeps asking a dead broker's port sooner or later connects to itself, and then holds the
port when the broker wants it back.

Invariant: no broker outlives the process that made it. A small shell watches a pipe from here
and kills the broker when the pipe breaks, so that holds after `kill -9` of the tests too.
"""

import asyncio
import atexit
import base64
import contextlib
import fcntl
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from tests.kafka.jars import ARCHIVE, NoBroker, broker_jars, java_command, one_at_a_time

START_SECONDS_MAX = 300.0
STOP_SECONDS_MAX = 30.0
MESSAGE_BYTES_MAX = 8_388_608
SHARED_PORT = "TESTS_BROKER_PORT"
"""The variable that names a broker which several runs of tests share."""
_PORTS = range(20_000, 30_000)
_given: set[int] = set()
_GUARD = 'while read -r pid; do last=$pid; done; [ -z "$last" ] || kill -9 "$last"'

_COMMON = f"""\
process.roles=broker,controller
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
auto.create.topics.enable=false
offsets.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
message.max.bytes={MESSAGE_BYTES_MAX}
replica.fetch.max.bytes={MESSAGE_BYTES_MAX}
log.cleaner.dedupe.buffer.size=16777216
log.cleaner.backoff.ms=500
log.index.size.max.bytes=1048576
# After a kill the controller waits for the old session to end before it lets the broker back.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=1000
num.network.threads=2
num.io.threads=2
"""


class Broker:
    """One broker that is its own controller, or one of a cluster of them."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        heap_mb: int = 384,
    ) -> None:
        """Choose ports and an identity; nothing runs yet.

        Args:
            folder: Data, settings and log of this broker; kept between starts.
            port: Where clients connect; a free one if not given.
            heap_mb: Of the Java process.
        """
        self.folder = folder
        self.port = port if port is not None else free_port()
        self.node_id = 1
        self.controller_port = free_port()
        self._voters = f"1@127.0.0.1:{self.controller_port}"
        self._cluster_id = _new_id()
        self._copies = 1
        self.properties: list[str] = []
        """Further lines of `server.properties`; they win over ours."""
        self.java_options: list[str] = []
        """Further options of Java; they win over ours."""
        self._heap_mb = heap_mb
        self._archive_to: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    def several(cls, folder: Path, count: int, *, heap_mb: int = 384) -> list["Broker"]:
        """So many brokers that form one cluster; start them with `start_all`."""
        brokers = [cls(folder / f"broker-{n}", heap_mb=heap_mb) for n in range(1, count + 1)]
        ports = [broker.controller_port for broker in brokers]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(ports, 1))
        for node_id, broker in enumerate(brokers, 1):
            broker.node_id = node_id
            broker._voters, broker._copies = voters, min(3, count)
            broker._cluster_id = brokers[0]._cluster_id
        return brokers

    @property
    def bootstrap_servers(self) -> str:
        """What a client is given."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the Java process, for signals."""
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there; it may be stopped by a signal."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        """The broker, answering."""
        try:
            self.start()
        except BaseException:
            self.close()  # whoever is interrupted here never comes to the end of the block
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gone, in any case."""
        self.close()

    def start(self, brokers: int = 1) -> float:
        """Start on the same data and ports; seconds until that many brokers answered."""
        begun_s = time.monotonic()
        self.spawn()
        self.wait(brokers)
        return time.monotonic() - begun_s

    def spawn(self) -> None:
        """Start without waiting."""
        assert not self.running, "the broker runs already"
        jars = broker_jars()
        if self._archive_to is None:
            _share_classes(jars)
        properties = self._written_properties()
        if not (self.folder / "data/meta.properties").exists():
            self._format(jars, properties)
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *java_command(jars, self._heap_mb, self._archive_to),
                    *self.java_options,
                    "kafka.Kafka",
                    str(properties),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal is ours to handle, the broker must not see it first.
                start_new_session=True,
            )
        self._watch(self._process.pid)

    def wait(self, brokers: int = 1) -> None:
        """Until the broker answers and knows of that many brokers; bounded."""
        deadline_s = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline_s:
            if not self.running:
                raise NoBroker(f"the broker ended at its start:\n{self.log_tail()}")
            if self._accepts() and _known_brokers(self.bootstrap_servers) >= brokers:
                return
            time.sleep(0.05)
        raise NoBroker(f"no answer in {START_SECONDS_MAX:g} s:\n{self.log_tail()}")

    def stop(self) -> None:
        """SIGTERM, and wait; `kill -9` and an error if that takes too long."""
        process = self._living()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            detail = f"the broker did not stop in {STOP_SECONDS_MAX:g} s:\n{self.log_tail()}"
            raise NoBroker(detail) from None
        self._watch(None)

    def kill(self) -> None:
        """`kill -9`."""
        process = self._living()
        process.kill()
        process.wait(10)
        self._watch(None)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._living().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._living().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Gone, whatever state it is in; also its guard."""
        if self.running:
            self.kill()
        if self._guard is not None:
            _close_guard(self._guard)
            self._guard = None

    def log_tail(self, lines: int = 30) -> str:
        """The end of the broker's own log."""
        path = self.folder / "broker.log"
        text = path.read_text("utf-8", errors="replace") if path.is_file() else "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def _living(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "the broker was not started"
        return self._process

    def _written_properties(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        listener = f"PLAINTEXT://127.0.0.1:{self.port}"
        controller = f"CONTROLLER://127.0.0.1:{self.controller_port}"
        copies, insync = self._copies, 1 if self._copies == 1 else 2
        lines = [
            _COMMON.rstrip(),
            f"node.id={self.node_id}",
            f"controller.quorum.voters={self._voters}",
            f"listeners={listener},{controller}",
            f"advertised.listeners={listener}",
            f"log.dirs={self.folder / 'data'}",
            f"offsets.topic.replication.factor={copies}",
            f"transaction.state.log.replication.factor={copies}",
            f"transaction.state.log.min.isr={insync}",
            f"share.coordinator.state.topic.replication.factor={copies}",
            f"share.coordinator.state.topic.min.isr={insync}",
            *self.properties,
        ]
        path = self.folder / "server.properties"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def _format(self, jars: Path, properties: Path) -> None:
        tool = [*java_command(jars, 128), "kafka.tools.StorageTool", "format"]
        run = subprocess.run(
            [*tool, "-t", self._cluster_id, "-c", str(properties), "--ignore-formatted"],
            capture_output=True,
            text=True,
            timeout=START_SECONDS_MAX,
            check=False,
        )
        if run.returncode:
            raise NoBroker(f"the data folder cannot be formatted:\n{run.stdout}{run.stderr}")

    def _accepts(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def _watch(self, pid: int | None) -> None:
        """Tell the guard which process must not outlive us."""
        if self._guard is None:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True
            )
            atexit.register(self.close)
        _pipe(self._guard).write(f"{pid or ''}\n".encode())
        _pipe(self._guard).flush()


def start_all(brokers: Sequence[Broker]) -> None:
    """Start a cluster and wait until every broker knows all the others."""
    for broker in brokers:
        broker.spawn()
    for broker in brokers:
        broker.wait(len(brokers))


def free_port(among: Sequence[int] = _PORTS) -> int:
    """A port nobody listens on, outside of the range for outgoing connections.

    It is the caller's until this process ends: no other call here or in another process gives it.
    """
    ledger = _ledger()
    for port in random.sample(among, len(among)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            if port in _given:
                continue
            # A lock on one byte of the ledger, which goes with the process, however that ends.
            fcntl.lockf(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    raise NoBroker("no free port")


@functools.cache
def _ledger() -> IO[bytes]:
    """One file for all checkouts of a user; open as long as we run, since closing it unlocks."""
    path = Path(tempfile.gettempdir()) / f"turnstream-ports-{os.getuid()}"
    return path.open("ab")


def _share_classes(jars: Path) -> None:
    """Make Java's archive of loaded classes, once: it halves the time of every later start."""
    archive = jars / ARCHIVE
    if archive.exists():
        return
    with one_at_a_time(), tempfile.TemporaryDirectory() as folder:
        if archive.exists():
            return
        broker = Broker(Path(folder) / "broker")
        broker._archive_to = made = Path(folder) / ARCHIVE
        with broker:
            broker.stop()
        # A Java that made none goes without; an empty archive is one it passes over.
        made.touch()
        shutil.copyfile(made, jars / f"{ARCHIVE}.part")
        (jars / f"{ARCHIVE}.part").rename(archive)


def _new_id() -> str:
    """A cluster's id in Kafka's spelling; one that starts with a dash reads as an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]).startswith("-"):
        pass
    return text


def _known_brokers(servers: str) -> int:
    """How many brokers the cluster has, by its own word; 0 if it does not answer."""

    async def ask() -> int:
        admin = AIOKafkaAdminClient(bootstrap_servers=servers, request_timeout_ms=3000)
        try:
            async with asyncio.timeout(5):
                await admin.start()
                return len((await admin.describe_cluster())["brokers"])
        except (KafkaError, OSError, TimeoutError):
            return 0
        finally:
            await admin.close()

    # Its own thread, since the caller may stand inside an event loop.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, ask()).result()


def _pipe(guard: "subprocess.Popen[bytes]") -> IO[bytes]:
    assert guard.stdin is not None
    return guard.stdin


def _close_guard(guard: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(BrokenPipeError):
        _pipe(guard).write(b"\n")
        _pipe(guard).close()
    guard.wait(10)
