"""Another gateway of this kind, as published: `rllm-model-gateway`, in an environment of its own.

    parent   makes the environment once (`peers`)
    child    runs with its Python: the package's own app, its SQLite store, its defaults

It hands a chat request on to the engine's chat API, asks there for token ids and logprobs, and
stores request and answer as JSON after it has answered. Its lines of each request are off.

Invariant: this module needs the standard library alone, until it is the child.
"""

import asyncio
import importlib
import json
import sys
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from benchmarks.gateway_child import serve_until_told
from benchmarks.peer_app import served

PATH = "/sessions/{session}/v1/chat/completions"
STORED_S_MAX = 120.0


def wait_until_stored(port: int, sessions: Sequence[str], turns: int) -> None:
    """Return when its store has so many turns of every session."""
    began_s = time.monotonic()
    while True:
        counts = {told["session_id"]: told["trace_count"] for told in _asked(port, "/sessions")}
        lacking = [session_id for session_id in sessions if counts.get(session_id, 0) < turns]
        if not lacking:
            return
        if time.monotonic() - began_s > STORED_S_MAX:
            raise RuntimeError(f"rllm: turns of {len(lacking)} sessions are not in its store")
        time.sleep(0.2)


def stored_ids(port: int, session_id: str) -> list[list[int]]:
    """The sampled ids of a session's turns, as its store has them."""
    traces = _asked(port, f"/sessions/{session_id}/traces")
    ordered = sorted(traces, key=lambda trace: len(trace["messages"]))
    return [trace["completion_token_ids"] for trace in ordered]


def _asked(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return json.load(answer)


async def main() -> None:
    """The child."""
    worker, store = sys.argv[1:]
    server_module: Any = importlib.import_module("rllm_model_gateway.server")
    models: Any = importlib.import_module("rllm_model_gateway.models")
    app = server_module.create_app(models.GatewayConfig(workers=[{"url": worker}], db_path=store))
    async with served(app) as port:
        await serve_until_told(port)


if __name__ == "__main__":
    asyncio.run(main())
