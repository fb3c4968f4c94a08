"""`python -m tests.attack [--quick] [WORD ...]`: run all attacks, or those a word names."""

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.attack.catalog import SCENARIOS
from tests.attack.scenario import Scenario


def main() -> int:
    """Exit code 1 if a bound did not hold or an attack could not be carried out."""
    parser = argparse.ArgumentParser(prog="make attack", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--quick", action="store_true", help="only those that the suite runs")
    given = parser.parse_args()
    chosen = [
        each
        for each in SCENARIOS
        if (each.quick or not given.quick)
        and (not given.words or any(word in each.name for word in given.words))
    ]
    if not chosen:
        sys.exit("no attack has such a name; there are " + ", ".join(s.name for s in SCENARIOS))
    failed = [each.name for each in chosen if not _holds(each)]
    sys.stdout.write(f"{len(chosen) - len(failed)} passed, {len(failed)} failed\n")
    return 1 if failed else 0


def _holds(each: Scenario) -> bool:
    sys.stdout.write(f"\n{each.name}: {each.about}\n")
    began, holds, bounds = time.monotonic(), True, 0
    with tempfile.TemporaryDirectory(prefix="turnstream-attack-") as folder:
        try:
            for bound in each.attack(Path(folder)):
                bounds += 1
                holds = holds and bound.holds
                sys.stdout.write(f"  {bound}\n")
        except Exception:
            traceback.print_exc(file=sys.stdout)
            holds = False
    sys.stdout.write(f"  {time.monotonic() - began:.0f} s\n")
    return holds and bounds > 0


if __name__ == "__main__":
    sys.exit(main())
