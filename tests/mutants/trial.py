"""A throw-away copy of the project, and what tests say of it.

Invariant: a verdict is about the copy: a run that imports anything of ours from elsewhere, or
that neither passed nor failed, is none.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.guard import KILLER

ROOT = Path(__file__).resolve().parent.parent.parent
COPIED = ("schemas", "streams", "tests", "pyproject.toml")
"""Everything that the tests of the core read."""
GUARD = "tests.mutants.guard"
RUN_SECONDS_MAX = 900.0
"""Some take a minute to fail, and the machine may be ten times slower."""
PASSED, FAILED = 0, 1


class NoVerdictError(Exception):
    """The tests neither passed nor failed: they could not be run, or did not end."""


@contextmanager
def project_copy(names: Iterable[str] = COPIED) -> Iterator[Path]:
    """A throw-away copy of these files and folders."""
    with tempfile.TemporaryDirectory(prefix="turnstream-mutant-") as folder:
        root = Path(folder).resolve()
        for name in names:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, root / name, ignore=ignored)
            else:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, root / name)
        yield root


def first_failure(
    root: Path, tests: Sequence[str], switches: Mapping[str, str] | None = None
) -> str | None:
    """The first of these tests that fails in the copy; None if all pass.

    Args:
        root: The copy.
        tests: Files, or tests by name.
        switches: Further environment variables of the run.

    Raises:
        NoVerdictError: they neither passed nor failed.
    """
    # Nobody reads the assertions, and rewriting them costs more than most tests take.
    options = ["-x", "-q", "--tb=line", "--assert=plain", "-pno:cacheprovider", f"-p{GUARD}"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    env = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    env |= switches or {}
    try:
        run = subprocess.run(
            command,
            cwd=root,
            env=env,
            timeout=RUN_SECONDS_MAX,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        reason = f"no end after {RUN_SECONDS_MAX:.0f} s"
        raise NoVerdictError(reason) from None
    killer = root / KILLER
    if run.returncode == PASSED:
        return None
    if run.returncode == FAILED and killer.exists():
        return killer.read_text(encoding="utf-8")
    reason = f"the tests could not be run:\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
    raise NoVerdictError(reason)
