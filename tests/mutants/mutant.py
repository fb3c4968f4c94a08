"""What a planted error is: a name, a file, the exact text it replaces and what it puts there."""

from dataclasses import dataclass
from pathlib import Path


class LostPlaceError(Exception):
    """The text to replace does not stand exactly once in its file: the table has rotted."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One error, and the tests most likely to notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted_in(self, source: str) -> str:
        """The source with the error in it."""
        found = source.count(self.old)
        if found != 1:
            detail = f"{self.name}: {self.file} has {self.old!r} {found} times, not once"
            raise LostPlaceError(detail)
        return source.replace(self.old, self.new)

    def plant(self, root: Path) -> None:
        """Put the error into the copy of the project at `root`."""
        path = root / self.file
        path.write_text(self.planted_in(path.read_text(encoding="utf-8")), encoding="utf-8")


def in_file(
    file: str, tests: tuple[str, ...], errors: dict[str, tuple[str, str]]
) -> tuple[Mutant, ...]:
    """The errors of one file: name, old text, new text."""
    return tuple(Mutant(name, file, old, new, tests) for name, (old, new) in errors.items())
