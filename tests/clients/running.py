"""A client's process: an empty home, no network but the recorder's socket, an end.

Invariant: when `run` returns, no process of the client's group is left.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.clients.wire import Wire

PORT = 8000
"""In a network of the client's own, so it is always free."""
BASE_URL = f"http://127.0.0.1:{PORT}"
SECONDS_MAX = 60.0
START_SECONDS_MAX = 10.0
ALONE = Path(__file__).with_name("alone.py")
PATH = "/usr/local/bin:/usr/bin:/bin"


class NoNetworkOfItsOwn(RuntimeError):
    """This machine gives a process no network of its own."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How it ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    def assert_ok(self) -> "Ran":
        assert self.code == 0, f"exit {self.code}\n{self.stdout[-4000:]}\n{self.stderr[-4000:]}"
        return self


async def run(
    command: Sequence[str],
    wire: Wire,
    *,
    cwd: Path,
    environment: Mapping[str, str],
    seconds_max: float = SECONDS_MAX,
) -> Ran:
    """Run a program to its end; only the wire is there for it."""
    began_s = time.monotonic()
    ours, theirs = socket.socketpair()
    # Files, not pipes: what a client leaves running would hold a pipe open.
    with ours, theirs, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *_unshare(),
            *[sys.executable, "-I", "-S", str(ALONE), str(theirs.fileno()), str(PORT)],
            *command,
            cwd=cwd,
            env={"PATH": PATH, "LANG": "C.UTF-8", **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        try:
            if not await _served(wire, process, ours, seconds_max):
                await process.wait()
                raise NoNetworkOfItsOwn(
                    "a client runs in a network namespace of its own (unshare --net, as root or "
                    f"with user namespaces allowed), which fails here: {_text(errors)}"
                )
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        seconds = time.monotonic() - began_s
        return Ran(process.returncode or 0, _text(out), _text(errors), seconds)


async def _served(
    wire: Wire, process: asyncio.subprocess.Process, channel: socket.socket, seconds_max: float
) -> bool:
    """Serve the wire in the client's network until the client ends; False if it has none."""
    listener = await asyncio.to_thread(_received, channel)
    if listener is None:
        return False
    with listener:
        async with wire.served(listener):
            channel.send(b"!")
            await asyncio.wait_for(process.wait(), seconds_max)
    return True


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _unshare() -> list[str]:
    unshare = shutil.which("unshare")
    if unshare is None:
        raise NoNetworkOfItsOwn("unshare (util-linux) is not on the path")
    return [unshare, "--net"] if os.geteuid() == 0 else [unshare, "--map-root-user", "--net"]


def _received(channel: socket.socket) -> socket.socket | None:
    """The listening socket out of the client's network."""
    channel.settimeout(START_SECONDS_MAX)
    data, descriptors, _, _ = socket.recv_fds(channel, 16, 1)
    return socket.socket(fileno=descriptors[0]) if data else None
