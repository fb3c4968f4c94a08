"""Atropos' side: its server with its defaults, groups by POST, batches by GET, as JSON.

    store    atroposlib.api.server, in memory
    write    /register-env, then /scored_data, a group at a time
    read     /register, then /batch until all are there

Nobody asks for gzip, which it would do: on one machine that only costs time.

Invariant: this module needs the standard library and numpy alone, until it is the child.
"""

import asyncio
import contextlib
import http.client
import importlib
import json
import sys
import time
from typing import Any

import numpy as np

from benchmarks.child import tell
from benchmarks.peer_app import served
from benchmarks.trainer_child import serve
from benchmarks.trainer_load import BATCH, GROUP, Seen, content, groups

_POLL_S = 0.02
_ANSWER_S_MAX = 120.0


async def store() -> None:
    """Until stdin ends."""
    async with served(importlib.import_module("atroposlib.api.server").app) as port:
        tell({"address": str(port)})
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


class Client:
    """A connection for each question, since its server closes those that rest for 5 s."""

    def __init__(self, port: int) -> None:
        """Nothing is asked yet."""
        self._port = port

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What it answers."""
        sent = None if body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_S_MAX)
        with contextlib.closing(connection):
            connection.request(method, path, sent, {"content-type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]!r}")
        return json.loads(text)

    def register(self, tokens: int) -> None:
        """As a trainer does; the first question for a batch opens it for environments."""
        self.ask(
            "POST",
            "/register",
            {
                "wandb_group": "bench",
                "wandb_project": "bench",
                "batch_size": BATCH,
                "max_token_len": tokens,
                "checkpoint_dir": "",
                "save_checkpoint_interval": 0,
                "starting_step": 0,
                "num_steps": 1_000_000,
            },
        )
        self.ask("GET", "/batch")


def write(client: Client, count: int, tokens: int) -> dict[str, Any]:
    """All of them."""
    for numbers in groups(count):
        contents = [content(number, tokens) for number in numbers]
        group = {
            "tokens": [one.ids_T.tolist() for one in contents],
            "masks": [np.where(one.mask_T, one.ids_T, -100).tolist() for one in contents],
            "scores": [float(number % 2) for number in numbers],
            "inference_logprobs": [
                np.where(one.mask_T, one.logprobs_T, np.float32(1.0)).tolist() for one in contents
            ],
            "env_id": 0,
        }
        client.ask("POST", "/scored_data", group)
    return {}


def read(client: Client, count: int) -> dict[str, Any]:
    """Batches as tensors until there were so many samples."""
    torch: Any = importlib.import_module("torch")
    seen = Seen()
    while len(seen.numbers) < count:
        batch = client.ask("GET", "/batch")["batch"]
        if batch is None:
            time.sleep(_POLL_S)
            continue
        ids, masks, logprobs = (
            torch.tensor([row for group in batch for row in group[name]], dtype=kind)
            for name, kind in (
                ("tokens", torch.int64),
                ("masks", torch.int64),
                ("inference_logprobs", torch.float32),
            )
        )
        mask = masks != -100  # noqa: PLR2004  # its own fill
        seen.add(ids, mask, torch.where(mask, logprobs, 0.0))
    return {"numbers": seen.numbers, "digests": seen.digests}


def main() -> None:
    """The child."""
    role, *words = sys.argv[1:]
    if role == "store":
        asyncio.run(store())
        return
    port, count, tokens = map(int, words)
    client = Client(port)
    content(0, tokens)
    if role == "read":
        importlib.import_module("torch")
    else:
        client.register(tokens)
        env = {
            "max_token_length": tokens,
            "desired_name": "bench",
            "weight": 1.0,
            "group_size": GROUP,
        }
        client.ask("POST", "/register-env", env)
    serve(lambda: write(client, count, tokens) if role == "write" else read(client, count))


if __name__ == "__main__":
    main()
