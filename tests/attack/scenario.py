"""What an attack is: a function that does it to real processes and yields what it measured.

    @scenario(quick=True)
    def one_key_opens_too_many_calls(folder: Path) -> Iterator[Bound]:
        \"\"\"150 parallel calls of one session key.\"\"\"
        ...
        yield Bound("gateway memory growth", grown_mb, at_most=50, unit="MB")

Invariant: a scenario ends every process it starts, and every bound it yields can fail.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

Attack = Callable[[Path], "Iterator[Bound]"]


class Bound(NamedTuple):
    """One measured figure and the limit it must keep."""

    what: str
    measured: float
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""

    @property
    def holds(self) -> bool:
        """Whether the figure keeps its limits; NaN keeps none."""
        low = self.at_least is None or self.measured >= self.at_least
        high = self.at_most is None or self.measured <= self.at_most
        return low and high and self.measured == self.measured

    def __str__(self) -> str:
        """A line for the report."""
        limits = [f"at least {self.at_least:g}"] if self.at_least is not None else []
        limits += [f"at most {self.at_most:g}"] if self.at_most is not None else []
        mark = "ok  " if self.holds else "FAIL"
        return f"{mark} {self.what}: {self.measured:g} {self.unit} ({', '.join(limits)})"


class Scenario(NamedTuple):
    """An attack with its name; a quick one also runs in the test suite."""

    name: str
    about: str
    quick: bool
    attack: Attack


def scenario(*, quick: bool) -> Callable[[Attack], Scenario]:
    """Make a scenario of a function: its name and the first line of its docstring."""

    def named(attack: Attack) -> Scenario:
        about = (attack.__doc__ or "").strip().split("\n")[0]
        return Scenario(attack.__name__, about, quick, attack)

    return named


def scenarios_in(names: dict[str, object]) -> list[Scenario]:
    """The scenarios of a module, in the order they are written."""
    return [value for value in names.values() if isinstance(value, Scenario)]
