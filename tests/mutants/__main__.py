"""Plant each error in a fresh copy of the project and run the tests there.

    name                        killed by                                  seconds
    seed-realign-at-threshold   tests/core/test_thresholds.py::test_...        1.9

The checkout is never touched. First the copy without an error must pass: else a failure would
prove nothing. Then, for every error, the tests most likely to notice it, and if none does, all
the others of the core. Exit code 1 if an error survives, if its place in the source is lost, or
if a run gave neither a pass nor a failed test.

Invariant: an error counts as killed only if a test of the copy ran and failed.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.mutants.mutant import LostPlaceError, Mutant
from tests.mutants.planted import PLANTED
from tests.mutants.trial import ROOT, NoVerdictError, first_failure, project_copy

ALL_TESTS = "tests/core"
SLOWEST = ("test_against_the_oracle.py", "test_properties.py")
"""Started first where everything must run, last where one failure is enough."""
AT_ONCE = 2
SUMMARY = "Plant each named error in a copy of the project; each must fail a test."


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said of one error."""

    mutant: Mutant
    killer: str | None
    """The test that failed; None if none did."""
    trouble: str
    """Why the error does not count as killed; empty if it does."""
    seconds: float


def core_tests() -> list[str]:
    """Every test file of the core, the slowest first."""
    paths = sorted((ROOT / ALL_TESTS).glob("test_*.py"))
    paths.sort(key=lambda path: path.name not in SLOWEST)
    return [path.relative_to(ROOT).as_posix() for path in paths]


def judged(mutant: Mutant) -> Verdict:
    """Plant one error and look for a test that notices."""
    start = time.monotonic()
    others = [file for file in reversed(core_tests()) if file not in mutant.tests]
    killer, trouble = None, "SURVIVED"
    try:
        with project_copy() as root:
            mutant.plant(root)
            killer = first_failure(root, mutant.tests) or first_failure(root, others)
    except (LostPlaceError, NoVerdictError) as error:
        trouble = str(error)
    return Verdict(mutant, killer, "" if killer else trouble, time.monotonic() - start)


def failure_without_error(tests: str) -> str | None:
    """What is wrong with the project as it is, if anything."""
    try:
        with project_copy() as root:
            return first_failure(root, [tests])
    except NoVerdictError as error:
        return f"{tests}: {error}"


def report(verdicts: Iterable[Verdict], width: int) -> int:
    """Print the table row by row; the number of errors that no test noticed."""
    print(f"{'name':{width}}  killed by  seconds")
    alive = 0
    for verdict in verdicts:
        words = f"killed by {verdict.killer}" if verdict.killer else verdict.trouble
        print(f"{verdict.mutant.name:{width}}  {words}  {verdict.seconds:.1f}", flush=True)
        alive += not verdict.killer
    return alive


def chosen(words: Sequence[str]) -> list[Mutant]:
    """The errors whose name contains one of the words; all without a word."""
    return [m for m in PLANTED if not words or any(word in m.name for word in words)]


def main() -> int:
    """Judge every chosen error; 0 if each fails a test."""
    parser = argparse.ArgumentParser(prog="make mutants", description=SUMMARY)
    parser.add_argument("word", nargs="*", help="plant only the errors with this in their name")
    mutants = chosen(parser.parse_args().word)
    if not mutants:
        print("no error has such a name", file=sys.stderr)
        return 1
    start = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        broken = [failure for failure in pool.map(failure_without_error, core_tests()) if failure]
        if broken:
            print(f"the project fails without any error: {broken[0]}", file=sys.stderr)
            return 1
        print(f"without an error every test of {ALL_TESTS} passes")
        width = max(len(mutant.name) for mutant in mutants)
        alive = report(pool.map(judged, mutants), width)
    seconds = time.monotonic() - start
    print(f"{len(mutants) - alive} of {len(mutants)} errors killed in {seconds:.0f} s")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
