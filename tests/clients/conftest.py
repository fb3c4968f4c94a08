"""The clients, installed once, and the table of what became of their tokens.

These tests fetch and start programs of others, so `make test` leaves them out: they run when
their folder is named, as `make test-clients` does.
"""

from pathlib import Path

import pytest

from tests.clients.accounts import Account, table
from tests.clients.installing import KEPT, Programs, programs

# What they find is said in full, as in a test; none of them is imported yet.
pytest.register_assert_rewrite(
    "tests.clients.claude_scenes",
    "tests.clients.codex_scenes",
    "tests.clients.faithful",
    "tests.clients.theatre",
)

HERE = Path(__file__).resolve().parent
TABLE = KEPT / "table.md"
TOLD = pytest.StashKey[dict[str, Account]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out unless it is named."""
    named = [Path(str(argument).partition("::")[0]).resolve() for argument in config.args]
    return None if any(path.is_relative_to(HERE) for path in named) else True


@pytest.fixture(scope="session")
def clients() -> Programs:
    return programs()


@pytest.fixture(scope="session")
def accounts(request: pytest.FixtureRequest) -> dict[str, Account]:
    """A row for each client, by its name and where it ran."""
    return request.config.stash.setdefault(TOLD, {})


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep the table of a run in which everything passed."""
    rows = session.config.stash.get(TOLD, {})
    if rows and exitstatus == pytest.ExitCode.OK:
        TABLE.write_text(table(row.row(name) for name, row in rows.items()), "utf-8")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    rows = config.stash.get(TOLD, {})
    if rows:
        terminalreporter.write_line("")
        terminalreporter.write(table(row.row(name) for name, row in rows.items()))
