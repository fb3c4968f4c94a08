"""A pytest plugin for the copy that holds an error: was it really the copy that was tested?

The project is installed in editable form, so a wrong path would silently test the checkout and
every error would survive, or worse, seem killed. Also names the test that failed first, and
leaves out hypothesis' shrinking: a failure is enough, nobody reads the example.
"""

import sys
from pathlib import Path

import pytest
from hypothesis import Phase, settings

import streams.core.partition
from schemas import codec

OURS = {"schemas", "streams", "tests"}
MUST_BE_LOADED = {codec.__name__, streams.core.partition.__name__}
KILLER = "killed-by.txt"


class Guard:
    """Bound to the root folder of one run."""

    def __init__(self, root: Path) -> None:
        """All of our modules must lie below `root`."""
        self.root = root

    def pytest_collection_finish(self) -> None:
        """Every module of ours that any test imported lies in the copy."""
        files = {
            name: Path(module.__file__)
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in OURS and module.__file__ is not None
        }
        assert files.keys() >= MUST_BE_LOADED
        strays = [str(file) for file in files.values() if not file.is_relative_to(self.root)]
        if strays:
            reason = f"imported from outside the copy: {strays[0]}"
            raise pytest.UsageError(reason)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write down the first test that failed."""
        killer = self.root / KILLER
        if report.failed and not killer.exists():
            killer.write_text(report.nodeid, encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Watch this run."""
    settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate))
    settings.load_profile("mutants")
    config.pluginmanager.register(Guard(config.rootpath))
