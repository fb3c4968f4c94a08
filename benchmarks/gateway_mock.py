"""The mock engine, a process: the n-th request of a session gets the n-th answer of the script.

    POST /prepare    wire, tokens an event, tokens a second and turns of what comes next
    POST anything    that answer in frames of that wire, as fast as was prepared
    GET  /journal    turns answered by session, digests of prompts since the last look
    GET  anything    what an engine says that is ready

It samples nothing, writes frames made before the load, and reads no request while the load runs,
so it is the least an engine costs.

Invariant: digests are of the ids as they were received, taken after the load.
"""

import asyncio
import re
import sys
from collections import defaultdict
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import uvloop

from benchmarks import gateway_wire
from benchmarks.gateway_child import serve_until_told
from benchmarks.gateway_http import SESSION_HEADER, Serving, header, whole
from benchmarks.gateway_script import Script

VLLM_SESSION_HEADER = "x-session-id"
WIRES: dict[str, gateway_wire.Frames] = {
    "sglang": gateway_wire.sglang,
    "sglang cumulative": gateway_wire.sglang_cumulative,
    "vllm": gateway_wire.vllm,
    "vllm chat": gateway_wire.vllm_chat,
}
_TICK_S = 0.001
_READY = msgspec.json.encode({"model_path": "mock", "version": "0.32.0"})
_REQUEST_ID = re.compile(rb'"(?:rid|request_id)":"([0-9a-f]{32})"')
_ROUTING_KEY = re.compile(rb'"routing_key":"([^"]+)"')
_BEGINNING = 300
"""Bytes of a body that hold its ids."""


class Prepare(msgspec.Struct):
    """What comes next."""

    wire: str
    per_event: int
    tokens_per_s: int
    """Of each stream."""
    turns: tuple[int, int]


class Asked(msgspec.Struct):
    """A request's ids, as either engine names them."""

    input_ids: list[int] = []
    token_ids: list[int] = []


class Journal(msgspec.Struct):
    """What sessions asked."""

    answered: dict[str, int]
    """Turns since the start, by session."""
    prompts: dict[str, list[str]]
    """Digests of the prompts since the last look, as a turn event has them."""


class Stream:
    """One answer on its way; frames are written one by one, so that each can be read by itself."""

    def __init__(
        self, transport: asyncio.Transport, frames: list[bytes], request_id: bytes | None
    ) -> None:
        """Its head is written."""
        self._transport = transport
        self._left = iter(frames)
        self._request_id = request_id
        self._due_s = 0.0
        transport.write(gateway_wire.HEAD)

    def goes_on(self, now_s: float, interval_s: float) -> bool:
        """Write a frame if one is due; whether there is more to write."""
        if now_s < self._due_s:
            return True
        frame = None if self._transport.is_closing() else next(self._left, None)
        if frame is None:
            return False
        if self._request_id is not None:
            frame = frame.replace(gateway_wire.REQUEST_ID, self._request_id)
        self._transport.write(frame)
        self._due_s = (self._due_s or now_s) + interval_s
        return True


class Mock:
    """Answers, counts and keeps."""

    def __init__(self, script: Script) -> None:
        """Nothing is prepared."""
        self._script = script
        self._frames: dict[int, list[bytes]] = {}
        self._interval_s = 1.0
        self._streams: list[Stream] = []
        self._ticking = False
        self._answered: dict[str, int] = defaultdict(int)
        self._kept: dict[str, list[bytes]] = defaultdict(list)

    def prepare(self, asked: Prepare) -> None:
        frames, script = WIRES[asked.wire], self._script
        self._interval_s = asked.per_event / asked.tokens_per_s
        self._frames = {
            turn: frames(script.answers[turn], script.prompt_tokens[turn], asked.per_event)
            for turn in range(*asked.turns)
        }

    def answer(self, transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET /"):
            said = self._journal() if head.startswith(b"GET /journal") else _READY
            transport.write(whole(said))
        elif head.startswith(b"POST /prepare"):
            self.prepare(msgspec.json.decode(body, type=Prepare))
            transport.write(whole(b"{}"))
        else:
            self._begin(transport, head, body)

    def _begin(self, transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        request_id = _REQUEST_ID.search(body, 0, _BEGINNING)
        routing_key = _ROUTING_KEY.search(body, 0, _BEGINNING)
        if routing_key:
            session = routing_key[1].decode()
        else:
            name = VLLM_SESSION_HEADER if request_id else SESSION_HEADER
            session = header(head, name.encode())
        turn = self._answered[session]
        self._answered[session] = turn + 1
        if request_id:
            self._kept[session].append(body)
        self._streams.append(
            Stream(transport, self._frames[turn], request_id[1] if request_id else None)
        )
        if not self._ticking:
            self._ticking = True
            self._tick()

    def _tick(self) -> None:
        """One step of decoding, for all streams."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._streams = [
            stream for stream in self._streams if stream.goes_on(now_s, self._interval_s)
        ]
        self._ticking = bool(self._streams)
        if self._ticking:
            loop.call_later(_TICK_S, self._tick)

    def _journal(self) -> bytes:
        prompts = {session: list(map(digest, bodies)) for session, bodies in self._kept.items()}
        self._kept.clear()
        return msgspec.json.encode(Journal(dict(self._answered), prompts))


def digest(body: bytes) -> str:
    """The digest of a request's ids, as a turn event has it."""
    asked = msgspec.json.decode(body, type=Asked)
    ids = np.asarray(asked.input_ids or asked.token_ids, "<i4")
    return blake2b(ids.tobytes(), digest_size=16).hexdigest()


async def main() -> None:
    mock = Mock(Script.load(Path(sys.argv[1])))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Serving(mock.answer), "127.0.0.1", 0)
    await serve_until_told(server.sockets[0].getsockname()[1])
    server.close()


if __name__ == "__main__":
    uvloop.run(main())
