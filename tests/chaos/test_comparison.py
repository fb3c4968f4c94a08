"""The comparison sees what it is there to see: no run that is not exact passes for one."""

import copy
from collections.abc import Callable

import pytest

from streams.log.interface import Entry, Position
from streams.settings import Settings
from tests.chaos.comparison import Found, compare
from tests.chaos.oracle import Expected, Keyed, Oracle
from tests.chaos.sessions import script

LOGGED_MS = 1_700_000_000_000
SESSIONS = 24


def expectations() -> Expected:
    """Of a few sessions that stand one after the other in one partition."""
    settings = Settings(trace_share=1.0)
    oracle = Oracle(settings)
    steps = [step for number in range(SESSIONS) for step in script(1, number).steps]
    for offset, step in enumerate(steps):
        place = Position(settings.turns_topic, 0, offset)
        oracle.feed(Entry(place, LOGGED_MS, step.key, step.value))
    return oracle.expected


EXPECTED = expectations()


def exactly() -> Found:
    """What workers without a fault would have written."""
    out = Found()
    out.samples = {name: list(values) for name, values in EXPECTED.samples.items()}
    out.outcomes = {name: list(values) for name, values in EXPECTED.outcomes.items()}
    out.revisions = {name: list(values) for name, values in EXPECTED.revisions.items()}
    out.traces = {name: list(values) for name, values in EXPECTED.traces.items()}
    out.letters.update(list(EXPECTED.letters))
    out.tables = copy.deepcopy(EXPECTED.tables)
    return out


def other(value: Keyed) -> Keyed:
    return value[0], value[1] + b"!"


def lose_sample(out: Found) -> None:
    out.samples.popitem()


def spoil_sample(out: Found) -> None:
    name, (value,) = out.samples.popitem()
    out.samples[name] = [value, other(value)]


def invent_sample(out: Found) -> None:
    out.samples["more"] = [(b"s", b"x")]


def move_outcome(out: Found) -> None:
    name, ((_, value),) = out.outcomes.popitem()
    out.outcomes[name] = [(b"elsewhere", value)]


def lose_revision(out: Found) -> None:
    out.revisions.popitem()


def lose_trace(out: Found) -> None:
    out.traces.popitem()


def lose_letter(out: Found) -> None:
    out.letters.popitem()


def spoil_letter(out: Found) -> None:
    key, value = next(iter(out.letters))
    out.letters[b"elsewhere", value] += 1
    assert key != b"elsewhere"


def leave_row(out: Found) -> None:
    out.tables[0][b"r|12345678|s"] = b"row"


def lose_marker(out: Found) -> None:
    del out.tables[0][next(key for key in out.tables[0] if key.startswith(b"m|"))]


def spoil_marker(out: Found) -> None:
    out.tables[0][next(key for key in out.tables[0] if key.startswith(b"m|"))] = b"other"


DAMAGES: dict[str, tuple[Callable[[Found], None], str]] = {
    "a lost sample": (lose_sample, "lost"),
    "a sample with other bytes, also beside a right one": (spoil_sample, "wrong"),
    "a sample nobody expects": (invent_sample, "wrong"),
    "an outcome under another key": (move_outcome, "wrong"),
    "a lost revision": (lose_revision, "lost"),
    "a lost trace": (lose_trace, "lost"),
    "a lost dead letter": (lose_letter, "dead letters lost"),
    "a dead letter nobody expects": (spoil_letter, "dead letters wrong"),
    "a row that was left": (leave_row, "rows left over"),
    "a marker that is gone": (lose_marker, "rows missing"),
    "a marker with other bytes": (spoil_marker, "rows wrong"),
}


def test_what_is_exact_has_no_difference() -> None:
    assert compare(EXPECTED, exactly()).differences == {}
    assert min(len(EXPECTED.samples), len(EXPECTED.revisions), len(EXPECTED.letters)) > 3


def test_duplicates_are_counted_and_are_no_difference() -> None:
    out = exactly()
    out.samples = {name: values * 2 for name, values in out.samples.items()}
    verdict = compare(EXPECTED, out)
    assert verdict.differences == {}
    assert verdict.duplicates["samples"] == len(EXPECTED.samples)


@pytest.mark.parametrize(("damage", "name"), DAMAGES.values(), ids=DAMAGES)
def test_a_difference_is_named(damage: Callable[[Found], None], name: str) -> None:
    out = exactly()
    damage(out)
    assert {kind: len(found) for kind, found in compare(EXPECTED, out).differences.items()} == {
        name: 1
    }
