"""trackio, installed beside the other packages: with it on the path the sink works, without not.

What a sink wrote is read back by trackio's own command line and from its database.
"""

import fcntl
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.harness import Json

ROOT = Path(__file__).parents[2]
INSTALLED = Path(sys.prefix) / "trackio"
PROJECT = "turnstream"
SECONDS_MAX = 120


def installed() -> Path:
    """Its folder; made once, as `make test` makes it."""
    ready = INSTALLED / ".ready"
    with (Path(sys.prefix) / "trackio.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            # Under `make test` a make that we start would take itself for a part of that one.
            env = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
            made = ("make", "-s", str(ready.relative_to(ROOT)))
            subprocess.run(made, cwd=ROOT, env=env, check=True, timeout=SECONDS_MAX)
    return INSTALLED


def variables(folder: Path, **others: str) -> dict[str, str]:
    """Of a sink that keeps its projects there."""
    return {
        # What is tested is the tree that this file lies in.
        "PYTHONPATH": f"{ROOT}{os.pathsep}{installed()}",
        "TURNSTREAM_SINK_TRACKIO_FOLDER": str(folder),
        "TURNSTREAM_METRICS_PORT": "0",
    } | others


def listed(folder: Path) -> list[Json]:
    """`trackio list traces --json`."""
    run = subprocess.run(
        [
            sys.executable,
            INSTALLED / "bin/trackio",
            "list",
            "traces",
            "--project",
            PROJECT,
            "--json",
        ],
        env=os.environ | {"PYTHONPATH": str(installed()), "TRACKIO_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    traces: list[Json] = json.loads(run.stdout)["traces"]
    return traces


def rows(folder: Path, question: str) -> list[tuple[Any, ...]]:
    """Of the project's database."""
    with closing(sqlite3.connect(folder / f"{PROJECT}.db")) as database:
        return database.execute(question).fetchall()


def shown(folder: Path) -> list[tuple[str, str, int | None]]:
    """Key, session and branch of every trace, sorted; none while trackio makes its database."""
    if not (folder / f"{PROJECT}.db").exists():
        return []
    if not rows(folder, "SELECT 1 FROM sqlite_master WHERE name = 'traces'"):
        return []
    found = rows(folder, "SELECT key, metadata FROM traces")
    told = [(key, json.loads(metadata)) for key, metadata in found]
    return sorted((key, one["session_id"], one.get("branch")) for key, one in told)
