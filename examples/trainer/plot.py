"""Draw what training runs have come to: reward, and trained / generated, step by step.

    python examples/trainer/plot.py OUT.png NAME=DIR/metrics.jsonl [NAME=...]

Each file is one that `train.py` left beside its checkpoints.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # a file, on a machine without a screen
from matplotlib import pyplot as plt

Steps = list[dict[str, Any]]


def read(metrics: Path) -> Steps:
    """A run's steps; of one that was done again after a crash, the last."""
    lines = map(json.loads, metrics.read_text("utf-8").splitlines())
    return list({line["step"]: line for line in lines}.values())


def draw(target: Path, runs: Mapping[str, Steps]) -> None:
    """One curve a run in each of two charts, one above the other."""
    figure, (rewards, shares) = plt.subplots(2, 1, sharex=True, figsize=(7, 6))
    for name, steps in runs.items():
        at = [step["step"] for step in steps]
        rewards.plot(at, [step["reward"] for step in steps], marker=".", label=name)
        shares.plot(at, [step["trained"] / step["generated"] for step in steps], marker=".")
    rewards.set(ylabel="mean reward", ylim=(0, None))
    rewards.legend()
    shares.set(ylabel="trained / generated", xlabel="step", ylim=(0, 1.05))
    figure.savefig(target, dpi=120, bbox_inches="tight")
    plt.close(figure)


if __name__ == "__main__":
    out, *named = sys.argv[1:]
    pairs = (word.partition("=") for word in named)
    draw(Path(out), {name: read(Path(file)) for name, _, file in pairs})
    print(out)
