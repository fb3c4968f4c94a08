"""Runs the installed `turnstream` command as a user does: a process, its output, its exit code."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).parent / "turnstream"
SECONDS_MAX = 60

USER = {"role": "user", "content": "u"}
ANSWER = {"role": "assistant", "content": "ok"}


@dataclass(frozen=True)
class Ran:
    """What a finished command left behind."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def letters(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.err.splitlines()]


def turnstream(*arguments: str | Path, given: bytes = b"", **variables: str) -> Ran:
    run = subprocess.run(
        [COMMAND, *map(str, arguments)],
        input=given,
        env={**os.environ, **variables},
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    return Ran(run.returncode, run.stdout.decode(), run.stderr.decode())


def turn(session_id: str = "s", turn_id: str = "t1", **fields: Any) -> dict[str, Any]:
    event = {
        "type": "turn",
        "session_id": session_id,
        "turn_id": turn_id,
        "prompt_messages": [USER],
        "prompt_ids": [1, 2],
        "output_ids": [3, 4],
        "logprobs": [-0.5, -0.25],
        "response_message": ANSWER,
    }
    return event | fields


def ended(session_id: str = "s", **fields: Any) -> dict[str, Any]:
    event = {
        "type": "session_ended",
        "session_id": session_id,
        "end_status": "completed",
        "reward": 1.0,
    }
    return event | fields


def lines(*events: dict[str, Any] | bytes) -> bytes:
    texts = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return b"".join(text + b"\n" for text in texts)
