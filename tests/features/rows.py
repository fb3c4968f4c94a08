"""What a row of `tests/features.toml` is: a claim, the tests that show it, and what breaks it.

    [[row]]
    id = "R-normal-end"              origin, dash, name
    claim = "..."                    one sentence
    tests = ["tests/...::test_..."]  the quickest first
    note = "..."                     what the tests cannot show here, and why; most have none
    [row.broken_by]
    file, old, new                   a patch: `old` stands exactly once in the file
    environment = {NAME = "value"}   or a switch

Invariant: every row that is given out has an id of its own, a claim, a test and what breaks it.
"""

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from tests.mutants.mutant import Mutant

TABLE = Path(__file__).resolve().parent.parent / "features.toml"
ORIGINS = "TAXRKPF"


class Broken(msgspec.Struct, forbid_unknown_fields=True):
    """What makes a test of the row fail."""

    file: str = ""
    old: str = ""
    new: str = ""
    environment: dict[str, str] = {}


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """One claim."""

    id: str
    claim: str
    tests: list[str]
    broken_by: Broken
    note: str = ""

    @property
    def patch(self) -> Mutant | None:
        """What breaks it as a planted error; None if a switch does."""
        broken = self.broken_by
        if not broken.file:
            return None
        return Mutant(self.id, broken.file, broken.old, broken.new, tuple(self.tests))


def read(table: dict[str, Any]) -> list[Row]:
    """The rows of a table.

    Raises:
        ValueError: a row is not as it has to be; its id is named.
    """
    rows = [_row(given) for given in table["row"]]
    ids = [row.id for row in rows]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ValueError(f"more than one row has the id {', '.join(twice)}")
    return rows


def _row(given: dict[str, Any]) -> Row:
    name = given.get("id", "a row without an id")
    try:
        row = msgspec.convert(given, Row)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from error
    broken = row.broken_by
    if row.id[:2] not in {f"{origin}-" for origin in ORIGINS}:
        raise ValueError(f"{name}: an id begins with one of {', '.join(ORIGINS)} and a dash")
    if not row.tests or not row.claim.endswith("."):
        raise ValueError(f"{name}: has no test, or no claim that is a sentence")
    if bool(broken.file) == bool(broken.environment) or broken.old == broken.new != "":
        raise ValueError(f"{name}: is broken by nothing, or by two things")
    return row


def rows() -> list[Row]:
    """All of them."""
    return read(tomllib.loads(TABLE.read_text(encoding="utf-8")))
