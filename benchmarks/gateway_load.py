"""The load generator, a process of its own: so many agents at a time, each one session at a time.

A job comes on stdin, what was measured goes to stdout. An agent sends its next request when it
has the last answer. A request is put together before its clock starts; the clock stops when the
last byte of the answer is there.

Invariant: an answer that is none, or lacks the call that the next request echoes, ends the run.
"""

import asyncio
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import uvloop

from benchmarks.gateway_http import Connection, request
from benchmarks.gateway_mock import SESSION_HEADER
from benchmarks.gateway_script import Script

_CALL = re.compile(rb'"tool_calls":\[\{"id":"([^"]+)"')
_OK = 200
UNMINTED = b"call_" + b"x" * 31
"""In place of an id where nobody mints one, as long as one."""


class Job(msgspec.Struct):
    """What to send where."""

    script: str
    port: int
    agents: int
    sessions: dict[str, str]
    """Keys, by session."""
    minted: bool
    """Whether answers bring ids that the next requests have to carry."""
    path: str = "/v1/chat/completions"
    """May hold `{session}`."""


class Measured(msgspec.Struct):
    """What came of it."""

    wall_s: float
    cpu_s: float
    """Of this process."""
    latencies_s: list[list[float]]
    """By turn of the session, from the first on."""
    sent_bytes: int


class Load:
    """One job."""

    def __init__(self, job: Job) -> None:
        """Nothing is sent yet."""
        self._job = job
        self._script = Script.load(Path(job.script))
        self.latencies_s: list[list[float]] = [[] for _ in self._script.bodies]
        self.sent_bytes = 0

    async def run(self) -> Measured:
        loop = asyncio.get_running_loop()
        connections = [
            (await loop.create_connection(Connection, "127.0.0.1", self._job.port))[1]
            for _ in range(self._job.agents)
        ]
        left = iter(self._job.sessions.items())
        began_s, spent_s = time.perf_counter(), time.process_time()
        await asyncio.gather(*(self._agent(connection, left) for connection in connections))
        return Measured(
            wall_s=time.perf_counter() - began_s,
            cpu_s=time.process_time() - spent_s,
            latencies_s=self.latencies_s,
            sent_bytes=self.sent_bytes,
        )

    async def _agent(self, connection: Connection, left: Iterator[tuple[str, str]]) -> None:
        for session_id, key in left:
            calls: list[bytes] = []
            for turn in range(len(self._script.bodies)):
                body = self._script.body(turn, session_id.encode(), calls)
                headers = {"authorization": f"Bearer {key}", SESSION_HEADER: session_id}
                head = request(self._job.path.format(session=session_id), headers, len(body))
                began_s = time.perf_counter()
                status, answer = await connection.exchange([head, body])
                self.latencies_s[turn].append(time.perf_counter() - began_s)
                self.sent_bytes += len(body)
                calls.append(self._call(session_id, status, answer))

    def _call(self, session_id: str, status: int, answer: bytes) -> bytes:
        found = _CALL.search(answer) if self._job.minted else None
        if status != _OK or (self._job.minted and found is None):
            raise RuntimeError(f"session {session_id}: {status} {answer[:500]!r}")
        return found[1] if found else UNMINTED


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    measured = uvloop.run(Load(job).run())
    sys.stdout.buffer.write(msgspec.json.encode(measured))


if __name__ == "__main__":
    main()
