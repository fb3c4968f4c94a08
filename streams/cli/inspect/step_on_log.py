"""A training step as the log tells it: what the trainer said, and the samples it names.

A step may have several records: one a trainer where they share the work, or a commit that was
sent twice. A run that was restored trains steps again, in a higher epoch; the highest counts.

Invariant: nothing is written, and every wait is bounded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.samples import Sample
from schemas.trained import Trained
from streams.core.plain_values import plain_json
from streams.log.interface import Entry, Log
from streams.log.keys import run_key
from streams.processor.lookup import bounds, each_entry
from streams.settings import Settings


@dataclass(frozen=True, slots=True)
class Statistic:
    """What a trainer noted of a sample."""

    value: float | None
    """None: it was no finite number."""
    token: int | None = None
    """Where in the sample, if it is of one token."""


@dataclass(slots=True, kw_only=True)
class Step:
    """What is to be told of a step."""

    run_id: str
    run_epoch: int
    step: int
    weight_version: int
    trained_ms: int
    sample_ids: list[str]
    samples: dict[str, Sample] = field(default_factory=dict)
    """Those that the log still holds."""
    statistics: dict[str, dict[str, Statistic]] = field(default_factory=dict)
    rolled_back: list[int] = field(default_factory=list)
    """Lower epochs that trained this step too, before the run was restored."""


class SeveralRuns(Exception):
    """The step is told of in more than one run."""

    def __init__(self, runs: Sequence[str]) -> None:
        """Name them."""
        super().__init__(", ".join(runs))
        self.runs = list(runs)


async def find_step(log: Log, settings: Settings, step: int, run_id: str | None) -> Step | None:
    """The step with its samples; None if no trainer told of it.

    Raises:
        SeveralRuns: no run was named and there are several.
    """
    found: list[tuple[Trained, int]] = []
    key = None if run_id is None else run_key(run_id)

    def take(entry: Entry) -> None:
        record = _record(entry) if key in (None, entry.key) else None
        if isinstance(record, Trained) and record.step == step:
            found.append((record, entry.timestamp_ms))

    topic = settings.trained_topic
    await each_entry(log, settings, topic, await bounds(log, topic), take)
    runs = sorted({record.run_id for record, _ in found})
    if len(runs) > 1:
        raise SeveralRuns(runs)
    if not found:
        return None
    told = _told(found)
    places = _places(record for record, _ in found if record.run_epoch == told.run_epoch)
    await _read_samples(log, settings, told, places)
    return told


def _told(found: Sequence[tuple[Trained, int]]) -> Step:
    epoch = max(record.run_epoch for record, _ in found)
    mine = [(record, ms) for record, ms in found if record.run_epoch == epoch]
    newest, trained_ms = mine[-1]
    told = Step(
        run_id=newest.run_id,
        run_epoch=epoch,
        step=newest.step,
        weight_version=newest.weight_version,
        trained_ms=trained_ms,
        sample_ids=list(dict.fromkeys(name for record, _ in mine for name in record.sample_ids)),
        rolled_back=sorted({record.run_epoch for record, _ in found} - {epoch}),
    )
    for record, _ in mine:
        told.statistics |= _statistics(record)
    return told


def _statistics(record: Trained) -> dict[str, dict[str, Statistic]]:
    values = plain_json(record.statistics) if record.statistics else {}
    if not isinstance(values, dict):
        return {}
    return {
        name: {what: _statistic(value) for what, value in of.items()}
        for name, of in values.items()
        if isinstance(of, dict)
    }


def _statistic(value: Any) -> Statistic:
    token = None
    if isinstance(value, dict):
        token, value = value.get("token"), value.get("value")
    number = isinstance(value, int | float) and math.isfinite(value)
    return Statistic(float(value) if number else None, token if isinstance(token, int) else None)


def _places(records: Any) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for record in records:
        for partition, offset in record.places or ():
            found.setdefault(partition, set()).add(offset)
    return found


async def _read_samples(
    log: Log, settings: Settings, told: Step, places: Mapping[int, set[int]]
) -> None:
    wanted = set(told.sample_ids)

    def take(entry: Entry) -> None:
        if entry.position.offset in places[entry.position.partition]:
            record = _record(entry)
            if isinstance(record, Sample) and record.sample_id in wanted:
                told.samples[record.sample_id] = record

    topic = settings.samples_topic
    held = await bounds(log, topic)
    ranges = {
        partition: (
            max(min(offsets), held[partition][0]),
            min(max(offsets) + 1, held[partition][1]),
        )
        for partition, offsets in places.items()
        if partition in held
    }
    await each_entry(log, settings, topic, ranges, take)


def _record(entry: Entry) -> Any:
    try:
        return codec.from_msgpack(entry.value or b"")
    except BadRecord:
        return None
