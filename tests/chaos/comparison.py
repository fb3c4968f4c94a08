"""What the topics hold against what the core gives: lost, wrong, twice, left over.

    lost        expected and not there
    wrong       there with other bytes or under another key, or not expected at all
    duplicates  there once more; consumers drop those by id
    early       an outcome that stands before a sample it lists

Invariant: a run is good only if every record and every entry of the table is accounted for.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from schemas import codec
from schemas.dead_letters import DeadLetter
from schemas.samples import Sample, SampleRevised, SessionClosed
from schemas.traces import Trace
from streams.log.interface import Entry, Log
from streams.settings import Settings
from tests.chaos.oracle import Expected, Keyed, read_to_end

EXAMPLES = 8
Name = TypeVar("Name", bound=Hashable)


@dataclass
class Found:
    """Everything the workers wrote."""

    samples: dict[str, list[Keyed]] = field(default_factory=dict)
    outcomes: dict[str, list[Keyed]] = field(default_factory=dict)
    revisions: dict[tuple[str, int], list[Keyed]] = field(default_factory=dict)
    traces: dict[str, list[Keyed]] = field(default_factory=dict)
    letters: Counter[Keyed] = field(default_factory=Counter)
    tables: dict[int, dict[bytes, bytes]] = field(default_factory=dict)
    early: list[str] = field(default_factory=list)
    records: list[Sample | SessionClosed] = field(default_factory=list)
    """Samples and outcomes as a consumer reads them, partition by partition."""
    rewritten: int = 0
    """Changelog entries under a key that was written before."""
    written: set[tuple[int, bytes]] = field(default_factory=set)


async def found(log: Log, settings: Settings) -> Found:
    """Read everything that came out."""
    out = Found()
    for entry in await _all(log, settings.samples_topic):
        _take_sample(out, entry)
    for entry in await _all(log, settings.traces_topic):
        trace = codec.from_msgpack(entry.value or b"")
        assert isinstance(trace, Trace), entry.position
        out.traces.setdefault(trace.session_id, []).append(_keyed(entry))
    for entry in await _all(log, settings.dead_letters_topic):
        out.letters[_keyed(entry)] += 1
    for entry in await _all(log, settings.changelog_topic):
        _take_row(out, entry)
    return out


async def _all(log: Log, topic: str) -> list[Entry]:
    reader = await log.read(topic, await log.start_positions(topic))
    try:
        entries = [entry async for entry in read_to_end(log, topic, reader)]
    finally:
        await reader.close()
    return sorted(entries, key=lambda entry: entry.position)


def _keyed(entry: Entry) -> Keyed:
    return entry.key or b"", entry.value or b""


def _take_sample(out: Found, entry: Entry) -> None:
    record = codec.from_msgpack(entry.value or b"")
    if isinstance(record, Sample):
        out.samples.setdefault(record.sample_id, []).append(_keyed(entry))
        out.records.append(record)
    elif isinstance(record, SampleRevised):
        key = record.sample_id, record.revision
        out.revisions.setdefault(key, []).append(_keyed(entry))
    else:
        assert isinstance(record, SessionClosed), entry.position
        if any(sample_id not in out.samples for sample_id in record.sample_ids):
            out.early.append(f"{record.session_id} at {entry.position}")
        out.outcomes.setdefault(record.session_id, []).append(_keyed(entry))
        out.records.append(record)


def _take_row(out: Found, entry: Entry) -> None:
    table = out.tables.setdefault(entry.position.partition, {})
    key = entry.key or b""
    if entry.value is None:
        table.pop(key, None)
    else:
        out.rewritten += (entry.position.partition, key) in out.written
        out.written.add((entry.position.partition, key))
        table[key] = entry.value


@dataclass
class Verdict:
    """The difference between what is there and what has to be."""

    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    duplicates: Counter[str] = field(default_factory=Counter)
    letters_expected: int = 0
    letters_found: int = 0
    letters_lost: list[str] = field(default_factory=list)
    letters_wrong: list[str] = field(default_factory=list)
    rows_left_over: list[str] = field(default_factory=list)
    rows_missing: list[str] = field(default_factory=list)
    rows_wrong: list[str] = field(default_factory=list)

    @property
    def differences(self) -> dict[str, list[str]]:
        """What is not as it has to be; duplicates are."""
        lists = {
            "lost": self.lost,
            "wrong": self.wrong,
            "outcome before its samples": self.early,
            "dead letters lost": self.letters_lost,
            "dead letters wrong": self.letters_wrong,
            "rows left over": self.rows_left_over,
            "rows missing": self.rows_missing,
            "rows wrong": self.rows_wrong,
        }
        return {name: found for name, found in lists.items() if found}

    def lines(self) -> list[str]:
        twice = ", ".join(f"{kind} {n}" for kind, n in sorted(self.duplicates.items()) if n)
        letters = f"dead letters expected {self.letters_expected}, found {self.letters_found}"
        counts = [
            f"lost {len(self.lost)}",
            f"wrong {len(self.wrong)}",
            f"duplicates by id: {twice or 'none'}",
            letters,
        ]
        for name, examples in self.differences.items():
            shown = "; ".join(examples[:EXAMPLES])
            counts.append(f"DIFFERENT: {name}, {len(examples)}: {shown}")
        return counts


def compare(expected: Expected, out: Found) -> Verdict:
    """Account for every record and every entry of the table."""
    verdict = Verdict(early=out.early)
    _compare(verdict, "sample", expected.samples, out.samples)
    _compare(verdict, "outcome", expected.outcomes, out.outcomes)
    _compare(verdict, "revision", expected.revisions, out.revisions)
    _compare(verdict, "trace", expected.traces, out.traces)
    verdict.letters_expected = len(expected.letters)
    verdict.letters_found = len(out.letters.keys() & expected.letters.keys())
    verdict.letters_lost = [
        name for letter, name in expected.letters.items() if letter not in out.letters
    ]
    verdict.letters_wrong = [
        _letter_name(letter) for letter in out.letters if letter not in expected.letters
    ]
    verdict.duplicates["dead letters"] = out.letters.total() - len(out.letters)
    for number in expected.tables.keys() | out.tables.keys():
        wanted, there = expected.tables.get(number, {}), out.tables.get(number, {})
        verdict.rows_left_over += [_row_name(number, k) for k in there.keys() - wanted.keys()]
        verdict.rows_missing += [_row_name(number, k) for k in wanted.keys() - there.keys()]
        both = there.keys() & wanted.keys()
        verdict.rows_wrong += [_row_name(number, k) for k in both if there[k] != wanted[k]]
    return verdict


def _compare(
    verdict: Verdict,
    kind: str,
    wanted: Mapping[Name, set[Keyed]],
    there: Mapping[Name, list[Keyed]],
) -> None:
    for name in wanted.keys() | there.keys():
        expected, copies = wanted.get(name, set()), there.get(name, [])
        key = next(iter(expected or copies))[0]
        about = f"{kind} {name} of {key.decode()}"
        if not copies:
            verdict.lost.append(about)
        elif set(copies) != expected:
            verdict.wrong.append(f"{about}, {'other bytes' if expected else 'not expected'}")
        verdict.duplicates[f"{kind}s"] += len(copies) - len(set(copies))


def _letter_name(letter: Keyed) -> str:
    record = codec.from_msgpack(letter[1])
    assert isinstance(record, DeadLetter), letter
    return f"{record.partition}/{record.offset} {record.code} {record.session_id}"


def _row_name(number: int, key: bytes) -> str:
    return f"{number}: {key!r}"
