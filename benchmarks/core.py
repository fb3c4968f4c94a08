"""What the core costs: turns per CPU second, memory of an open session, bytes on the wire.

    python -m benchmarks.core [--json FILE] [--rounds 3] [--cpu-seconds 1.0]

Everything runs in one process on one core, beside a baseline that keeps whole prompts as Python
lists. The sides must make the same samples of every workload before anything is timed; if they
do not, the exit code is 1. A missed aim is printed, not punished.
"""

import argparse
import platform
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.agreement import difference
from benchmarks.contenders import Session, core, core_bytes, plain
from benchmarks.measure import (
    held_bytes,
    open_baseline_session,
    open_core_session,
    turns_per_cpu_second,
    wire_bytes,
)
from benchmarks.workloads import Call, appending, drifting

MEMORY_TURNS = 200
WIRE_TURNS = 100
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions of one kind and length."""

    name: str
    make: Callable[[int, int], list[Call]]
    turns: int
    sessions: int
    """How many different ones; a measurement goes round them. All pools hold as many turns, so
    that none sits better in the processor's caches than another."""

    def made(self) -> list[Session]:
        return [
            Session(self.make(self.turns, seed), f"{self.name.replace(' ', '-')}-{seed}")
            for seed in range(self.sessions)
        ]


WORKLOADS = (
    Workload("append 30", appending, 30, 10),
    Workload("append 100", appending, 100, 3),
    Workload("append 300", appending, 300, 1),
    Workload("drift 100", drifting, 100, 2),
)


@dataclass(frozen=True, slots=True)
class Speed:
    """One workload's line of the table."""

    workload: str
    turns: int
    samples: int
    attach: dict[str, int]
    """Turns of one session by what they did to the sequence, under `seed`."""
    turns_per_cpu_second: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.turns_per_cpu_second["core_seed"] / self.turns_per_cpu_second["baseline"]


@dataclass(frozen=True, slots=True)
class Aim:
    """A figure beside what it should be."""

    what: str
    figure: float
    bound: float
    at_least: bool
    unit: str

    @property
    def met(self) -> bool:
        return self.figure >= self.bound if self.at_least else self.figure <= self.bound

    def line(self) -> str:
        word = "at least" if self.at_least else "at most"
        verdict = "met" if self.met else "missed"
        figure, bound = (f"{value:g} {self.unit}" for value in (round(self.figure, 3), self.bound))
        return f"  {self.what:<52} {figure:>12}   aim {word} {bound}: {verdict}"


def speed_of(workload: Workload, sessions: list[Session], rounds: int, cpu_s: float) -> Speed:
    outcome = core("seed").run(sessions[0].events)
    return Speed(
        workload=workload.name,
        turns=len(sessions[0].calls),
        samples=len(outcome.samples),
        attach=dict(Counter(row.attach for row in outcome.outcome.ledger)),
        turns_per_cpu_second=turns_per_cpu_second(
            [core("seed"), core("slime"), core_bytes("seed"), plain()],
            sessions,
            rounds=rounds,
            cpu_s=cpu_s,
        ),
    )


def aims_of(speeds: list[Speed], memory: dict[str, int], wire: dict[str, int]) -> list[Aim]:
    by_name = {speed.workload: speed for speed in speeds}
    own = {name: speed.turns_per_cpu_second["core_seed"] for name, speed in by_name.items()}
    payload = wire["ids"] + wire["logprobs"] + wire["message_text"]
    return [
        Aim("append 100: core over baseline", by_name["append 100"].ratio, 20, True, "x"),
        Aim("  below this it is not finished", by_name["append 100"].ratio, 10, True, "x"),
        Aim("append 300 over append 30", own["append 300"] / own["append 30"], 0.9, True, "x"),
        Aim(
            "baseline's own speed, append 100",
            by_name["append 100"].turns_per_cpu_second["baseline"],
            1_000,
            True,
            "/s",
        ),
        Aim(
            f"memory of an open session, append {MEMORY_TURNS}",
            memory["core"] / MEGABYTE,
            3,
            False,
            "MB",
        ),
        Aim(
            f"ids, logprobs and message text, append {WIRE_TURNS}",
            payload / MEGABYTE,
            0.5,
            False,
            "MB",
        ),
    ]


def table(speeds: list[Speed]) -> list[str]:
    lines = [
        "Turns per CPU second through record + linearize, all checks on",
        "",
        f"  {'workload':<12}{'turns':>6}{'samples':>8}"
        f"{'core':>10}{'slime':>10}{'from bytes':>12}{'baseline':>10}{'ratio':>8}",
    ]
    for speed in speeds:
        figures = speed.turns_per_cpu_second
        lines.append(
            f"  {speed.workload:<12}{speed.turns:>6}{speed.samples:>8}"
            f"{figures['core_seed']:>10,.0f}{figures['core_slime']:>10,.0f}"
            f"{figures['core_seed_bytes']:>12,.0f}{figures['baseline']:>10,.0f}"
            f"{speed.ratio:>7.1f}x"
        )
    return [
        *lines,
        "",
        "  core: decoded events, profile seed; slime: the same under the baseline's rules;",
        "  from bytes: decoding too; ratio: core over baseline, which gets decoded lists",
        *(f"  {speed.workload}, attach: {_listed(speed.attach)}" for speed in speeds),
    ]


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def report(rounds: int, cpu_s: float) -> tuple[list[str], dict[str, Any]]:
    """The text and the figures; raises `SystemExit` if the sides disagree."""
    pools = [(workload, workload.made()) for workload in WORKLOADS]
    for workload, sessions in pools:
        if (found := difference(sessions[0])) is not None:
            sys.exit(f"{workload.name}: core and baseline disagree: {found}")
    speeds = [speed_of(workload, sessions, rounds, cpu_s) for workload, sessions in pools]
    long = Session(appending(MEMORY_TURNS, 0), "memory")
    memory = {
        "core": held_bytes(open_core_session(long)),
        "baseline": held_bytes(open_baseline_session(long)),
    }
    wire = wire_bytes(Session(appending(WIRE_TURNS, 0), "wire"))
    aims = aims_of(speeds, memory, wire)
    lines = [
        *table(speeds),
        "",
        f"Memory held by an open session of {MEMORY_TURNS} turns: "
        f"core {memory['core'] / MEGABYTE:.2f} MB, "
        f"baseline {memory['baseline'] / MEGABYTE:,.0f} MB",
        f"Wire bytes of a session of {WIRE_TURNS} turns, before compression: "
        + ", ".join(f"{name.replace('_', ' ')} {size:,}" for name, size in wire.items()),
        "",
        "Aims",
        *(aim.line() for aim in aims),
    ]
    figures = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "rounds": rounds,
        "cpu_seconds": cpu_s,
        "speeds": [{**asdict(speed), "ratio": speed.ratio} for speed in speeds],
        "memory_bytes": {"turns": MEMORY_TURNS, **memory},
        "wire_bytes": {"turns": WIRE_TURNS, **wire},
        "aims": [{**asdict(aim), "met": aim.met} for aim in aims],
    }
    return lines, figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.core", description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    parser.add_argument(
        "--cpu-seconds", type=float, default=1.0, help="CPU time of one measurement"
    )
    options = parser.parse_args()
    lines, figures = report(options.rounds, options.cpu_seconds)
    text = msgspec.json.format(msgspec.json.encode(figures), indent=2).decode()
    print("\n".join(lines), text, sep="\n\n")
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
