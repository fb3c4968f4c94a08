"""Break each claim of `tests/features.toml` in a copy of the project, and see its test fail.

    row            fails                                     seconds
    R-normal-end   tests/adapters/environments/test_...          1.9

The checkout is never touched. With what breaks it, a test of the row has to fail; the same tests
then have to pass in a copy with nothing broken, else their failing would prove nothing. Rows
whose tests need a broker share one. Exit code 1 if a claim survives what should break it.

Invariant: a row counts only if one test of its own failed broken and passed unbroken.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.features.rows import Row, rows
from tests.kafka.broker import SHARED_PORT, Broker
from tests.mutants import chance
from tests.mutants.mutant import LostPlaceError
from tests.mutants.trial import ROOT, NoVerdictError, first_failure, project_copy

AT_ONCE = 2
SUMMARY = "Break claims of tests/features.toml, each in a copy of the project; a test must fail."


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said of one broken row."""

    row: Row
    killer: str | None
    """The test that failed; None if none did."""
    trouble: str
    seconds: float


@contextmanager
def whole_copy() -> Iterator[Path]:
    """Everything that git keeps or would keep, with the packages of the checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    with project_copy(names) as root:
        (root / ".venv").symlink_to(ROOT / ".venv")
        yield root


def broken(row: Row) -> Verdict:
    """Break one row and look for a test of its own that notices."""
    start_s = time.monotonic()
    killer, trouble = None, "SURVIVED"
    try:
        with whole_copy() as root:
            if row.patch is not None:
                row.patch.plant(root)
            for test in row.tests:  # in this order, the quickest first
                killer = killer or first_failure(root, [test], row.broken_by.environment)
    except (LostPlaceError, NoVerdictError) as error:
        trouble = str(error)
    return Verdict(row, killer, "" if killer else trouble, time.monotonic() - start_s)


def failure_unbroken(killers: Sequence[str]) -> str | None:
    """The first of these tests that fails with nothing broken."""
    try:
        with whole_copy() as root:
            return first_failure(root, sorted(set(killers)))
    except NoVerdictError as error:
        return str(error)


@contextmanager
def one_broker(chosen: Sequence[Row]) -> Iterator[None]:
    """A broker for all tests that need one and do not break it."""
    if not any(test.startswith("tests/kafka/") for row in chosen for test in row.tests):
        yield
        return
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker") as running:
        os.environ[SHARED_PORT] = str(running.port)
        yield


def judge(chosen: Sequence[Row]) -> int:
    """Print the table row by row; how many rows are not shown to be tested."""
    width = max(len(row.id) for row in chosen)
    killers: list[str] = []
    with one_broker(chosen), ThreadPoolExecutor(AT_ONCE) as pool:
        for verdict in pool.map(broken, chosen):
            words = verdict.killer or verdict.trouble
            print(f"{verdict.row.id:{width}}  {words}  {verdict.seconds:.1f}", flush=True)
            killers += [verdict.killer] if verdict.killer else []
        failure = failure_unbroken(killers) if killers else None
    if failure is not None:
        print(f"fails with nothing broken: {failure}", file=sys.stderr)
        return len(chosen)
    return len(chosen) - len(killers)


def main() -> int:
    """Judge every chosen row; 0 if each is broken by what should break it."""
    parser = argparse.ArgumentParser(prog="make features", description=SUMMARY)
    parser.add_argument("id", nargs="*", help="only rows whose id begins with this; else all")
    chance.add_options(parser)
    options = parser.parse_args()
    named = [row for row in rows() if not options.id or row.id.startswith(tuple(options.id))]
    chosen = chance.drawn(named, options)
    if not chosen:
        print("no row has such an id", file=sys.stderr)
        return 1
    start_s = time.monotonic()
    untested = judge(chosen)
    tested = len(chosen) - untested
    print(f"{tested} of {len(chosen)} rows fail when broken, {time.monotonic() - start_s:.0f} s")
    return 1 if untested else 0


if __name__ == "__main__":
    sys.exit(main())
