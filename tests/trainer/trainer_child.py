"""A trainer as a process of its own: a loop with a checkpoint, to be killed at any moment.

    python -m tests.trainer.trainer_child SPEC.json

It appends a line for every batch it is handed and for every commit, each flushed, and can kill
itself between the step and its commit, as the kernel would: no handler runs.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from streams.settings import Settings
from streams.trainer import subscribe


def main() -> None:
    spec: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    checkpoint = Path(spec["checkpoint"])
    step, version = 0, 0
    with (
        Path(spec["journal"]).open("a", encoding="utf-8") as journal,
        subscribe(Settings(**spec["settings"]), **spec["options"]) as batches,
    ):
        if checkpoint.exists():
            saved = json.loads(checkpoint.read_text("utf-8"))
            batches.load_state_dict(saved["turnstream"])
            step, version = saved["step"], saved["version"]
        for batch in batches:
            step, version = step + 1, version + 1
            ids = [[sample.sample_id, *row] for sample, row in rows(batch)]
            print(json.dumps({"step": step, "ids": ids}), file=journal, flush=True)
            if step == spec.get("die_at"):
                os.kill(os.getpid(), signal.SIGKILL)
            batches.commit(step, version)
            if step % spec["save_every"] == 0:
                save(checkpoint, step, version, batches.state_dict())
        print(json.dumps({"dropped": dict(batches.status.dropped)}), file=journal, flush=True)


def rows(batch: Any) -> Any:
    for rollout in batch.rollouts:
        yield from zip(rollout.samples, rollout.places, strict=True)


def save(path: Path, step: int, version: int, state: dict[str, Any]) -> None:
    """Whole or not at all."""
    written = path.with_suffix(".part")
    text = json.dumps({"step": step, "version": version, "turnstream": state})
    written.write_text(text, encoding="utf-8")
    written.rename(path)


if __name__ == "__main__":
    main()
