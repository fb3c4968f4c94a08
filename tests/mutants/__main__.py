"""Plant each error in a fresh copy of the project and run the tests there.

    name                        killed by                                  seconds
    seed-realign-at-threshold   tests/core/test_thresholds.py::test_...        1.9

The checkout is never touched. For every error the tests most likely to notice it are run, and if
none does, all the others of the core; the tests that failed then have to pass in a copy without an
error, else their failing would prove nothing. Exit code 1 if an error survives, if its place in the
source is lost, or if a run gave neither a pass nor a failed test.

Invariant: an error counts as killed only if a test of the copy failed with it and passed without.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.mutants import chance
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


def failure_without_error(killers: Sequence[str]) -> str | None:
    """The first of these tests that fails in the project as it is."""
    try:
        with project_copy() as root:
            return first_failure(root, sorted(set(killers)))
    except NoVerdictError as error:
        return str(error)


def killers(verdicts: Iterable[Verdict], width: int) -> list[str]:
    """Print the table row by row; the tests that noticed an error, one for each killed."""
    print(f"{'name':{width}}  killed by  seconds")
    found = []
    for verdict in verdicts:
        words = f"killed by {verdict.killer}" if verdict.killer else verdict.trouble
        print(f"{verdict.mutant.name:{width}}  {words}  {verdict.seconds:.1f}", flush=True)
        found += [verdict.killer] if verdict.killer else []
    return found


def chosen(words: Sequence[str]) -> list[Mutant]:
    """The errors whose name contains one of the words; all without a word."""
    return [m for m in PLANTED if not words or any(word in m.name for word in words)]


def main() -> int:
    """Judge every chosen error; 0 if each fails a test."""
    parser = argparse.ArgumentParser(prog="make mutants", description=SUMMARY)
    parser.add_argument("word", nargs="*", help="plant only the errors with this in their name")
    chance.add_options(parser)
    options = parser.parse_args()
    mutants = chance.drawn(chosen(options.word), options)
    if not mutants:
        print("no error has such a name", file=sys.stderr)
        return 1
    start = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        width = max(len(mutant.name) for mutant in mutants)
        killed_by = killers(pool.map(judged, mutants), width)
    failure = failure_without_error(killed_by) if killed_by else None
    if failure is not None:
        print(f"fails without any error: {failure}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - start
    print(f"{len(killed_by)} of {len(mutants)} errors killed in {seconds:.0f} s")
    return 0 if len(killed_by) == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
