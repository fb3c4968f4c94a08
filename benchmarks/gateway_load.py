"""The load generator, a process of its own: so many agents at a time, each one session at a time.

A job comes on stdin, what was measured goes to stdout. An agent sends its next request when it
has all of the last answer. A request is put together before its clock starts; the clock stops
when the last byte of the answer is there. Of an answer only its first token, its end and the id
of its tool call are looked for.

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

from benchmarks.gateway_http import SESSION_HEADER, Connection, Reply, request
from benchmarks.gateway_script import Script

CALL_ID = re.compile(rb'(?:"tool_calls":\[\{[^\]]*?|"type":"tool_use",)"id":"(?P<id>[^"]+)"')
"""In an answer of either API."""
_OK = 200
UNMINTED = "call_" + "x" * 31
"""In place of an id where nobody mints one, as long as one."""


class Agent(msgspec.Struct):
    """One session's part in a job."""

    key: str
    calls: list[str]
    """Ids of the tool calls of its turns so far."""


class Job(msgspec.Struct):
    """What to send where."""

    script: str
    port: int
    api: str
    """The path that its requests are written for."""
    path: str
    """The one that they are sent to; may hold `{session}`."""
    agents: int
    turns: tuple[int, int]
    """Of each session: from this one, up to but without that one."""
    sessions: dict[str, Agent]
    minted: bool
    """Whether answers bring ids that the next requests have to carry."""


class Measured(msgspec.Struct):
    """What came of it."""

    wall_s: float
    cpu_s: float
    """Of this process."""
    latencies_s: list[float]
    first_tokens_s: list[float]
    sent_bytes: int
    sessions: dict[str, Agent]
    """As they are now."""


class Load:
    """One job."""

    def __init__(self, job: Job) -> None:
        """Nothing is sent yet."""
        self._job = job
        self._script = Script.load(Path(job.script))
        self._latencies_s: list[float] = []
        self._first_tokens_s: list[float] = []
        self._sent_bytes = 0

    async def run(self) -> Measured:
        loop = asyncio.get_running_loop()
        connections = [
            (await loop.create_connection(Connection, "127.0.0.1", self._job.port))[1]
            for _ in range(self._job.agents)
        ]
        left = iter(self._job.sessions.items())
        began_s, spent_s = time.perf_counter(), time.process_time()
        await asyncio.gather(*(self._work(connection, left) for connection in connections))
        return Measured(
            wall_s=time.perf_counter() - began_s,
            cpu_s=time.process_time() - spent_s,
            latencies_s=self._latencies_s,
            first_tokens_s=self._first_tokens_s,
            sent_bytes=self._sent_bytes,
            sessions=self._job.sessions,
        )

    async def _work(self, connection: Connection, left: Iterator[tuple[str, Agent]]) -> None:
        for session_id, agent in left:
            headers = {"authorization": f"Bearer {agent.key}", SESSION_HEADER: session_id}
            path = self._job.path.format(session=session_id)
            for turn in range(*self._job.turns):
                calls = [call.encode() for call in agent.calls]
                body = self._script.body(turn, session_id.encode(), calls, self._job.api)
                head = request(path, headers, len(body))
                began_s = time.perf_counter()
                reply = await connection.exchange([head, body])
                self._latencies_s.append(time.perf_counter() - began_s)
                self._sent_bytes += len(body)
                agent.calls.append(self._call_id(session_id, reply))
                assert reply.first_token_s is not None, f"session {session_id}: no token"
                self._first_tokens_s.append(reply.first_token_s - began_s)

    def _call_id(self, session_id: str, reply: Reply) -> str:
        found = CALL_ID.search(reply.body) if self._job.minted else None
        if reply.status != _OK or (self._job.minted and found is None):
            raise RuntimeError(f"session {session_id}: {reply.status} {reply.body[-500:]!r}")
        return found["id"].decode() if found else UNMINTED


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    measured = uvloop.run(Load(job).run())
    sys.stdout.buffer.write(msgspec.json.encode(measured))


if __name__ == "__main__":
    main()
