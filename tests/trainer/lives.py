"""Trainers that are killed and go on, and what they trained in all."""

import dataclasses
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from streams.settings import Settings
from tests.trainer.publishing import Published
from tests.trainer.records import session

SECONDS_MAX = 90
RUN = "r"
SAVE_EVERY = 3

Id = tuple[str, int, int]
"""A sample with its partition and offset."""


def rollouts(groups: int, seed: int = 1) -> list[Published]:
    """Groups of four, interleaved, with 0, 1 and 5 samples, retries, failures and repeats."""
    choose = random.Random(seed)
    queues: list[list[Published]] = []
    for number in range(groups):
        for slot in range(4):
            identity: dict[str, Any] = {
                "group_id": f"g{number}",
                "group_size": 4,
                "rollout_index": slot,
                "run_id": RUN,
            }
            name, kind = f"g{number}-{slot}", choose.random()
            records: list[Published] = []
            if kind < 0.1:
                records += session(
                    f"{name}-0", 0, will_retry=True, end_status="error", reward=None, **identity
                )
                identity["attempt"] = 1
            elif kind < 0.2:
                queues.append(
                    [
                        *session(
                            name, 0, end_status="error", reward=None, withheld="status", **identity
                        )
                    ]
                )
                continue
            reward = float(choose.random() < 0.5)
            records += session(name, choose.choice([0, 1, 1, 5]), reward=reward, **identity)
            if choose.random() < 0.15:
                records += records  # the processor sent it again
            queues.append(records)
    log: list[Published] = []
    started: list[list[Published]] = []
    while queues or started:
        while queues and len(started) < 12:  # so many sessions at a time
            started.append(queues.pop(0))
        queue = choose.choice(started)
        log.append(queue.pop(0))
        started = [queue for queue in started if queue]
    return log


def live(
    folder: Path, settings: Settings, name: str, *, die_at: int | None = None, **options: Any
) -> int:
    """One life of the trainer `name`; how it ended."""
    spec = {
        "settings": dataclasses.asdict(settings),
        "options": {"run_id": RUN, "until_end": True, "progress": False} | options,
        "journal": str(folder / f"{name}.jsonl"),
        "checkpoint": str(folder / f"{name}.json"),
        "save_every": SAVE_EVERY,
        "die_at": die_at,
    }
    path = folder / f"{name}-spec.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "tests.trainer.trainer_child", str(path)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert run.returncode <= 0, run.stderr
    return run.returncode


def steps(folder: Path, name: str) -> dict[int, list[Id]]:
    """What the weights have seen in the end, by step: what was trained again replaces."""
    lines = (folder / f"{name}.jsonl").read_text("utf-8").splitlines()
    found = [line for line in map(json.loads, lines) if "step" in line]
    return {line["step"]: [(i, p, at) for i, p, at in line["ids"]] for line in found}


def handed_out(folder: Path, name: str) -> int:
    """How many batches there were, those that were lost with a life included."""
    lines = (folder / f"{name}.jsonl").read_text("utf-8").splitlines()
    return sum("step" in json.loads(line) for line in lines)


def dropped(folder: Path, name: str) -> dict[str, int]:
    """What the last life left out, by reason."""
    last = (folder / f"{name}.jsonl").read_text("utf-8").splitlines()[-1]
    counts: dict[str, int] = json.loads(last)["dropped"]
    return counts
