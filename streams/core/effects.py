"""What follows from one event: what to keep, what to send, what to refuse.

A shell carries them out in this order: samples, then the outcome, then the marker, then the
session's rows may go. Each step waits until the one before it is acknowledged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

from schemas.record import Record
from schemas.samples import SampleRevised, SessionClosed
from schemas.traces import Trace
from streams.core.assembly import Samples
from streams.core.closing import Close, close_with_totals
from streams.core.refused_turns import RefusedTurn
from streams.core.state import Marker
from streams.errors import BadEvent

EVENT_ROW = "event"
"""Keep the event itself. Any other row is the code of an event that only counts."""
DUPLICATE = "duplicate"
IGNORED = "ignored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The consequences of one event, all of them data."""

    row: str | None = None
    """`EVENT_ROW`, or a code to keep in the event's place, or nothing to keep."""
    refused_turn: RefusedTurn | None = None
    """What to keep beside the code of a turn over a budget."""
    refusals: tuple[BadEvent, ...] = ()
    samples: Samples = field(default_factory=Samples)
    """Of a session that closed: built one by one, as they are gone through, and never kept."""
    outcome: SessionClosed | None = None
    trace: Trace | None = None
    marker: Marker | None = None
    """Set when the session closed; it replaces the session's rows."""
    revisions: tuple[SampleRevised, ...] = ()
    ignored: bool = False
    """The event was true but came too late, or again, to change anything."""

    def records(self) -> Sequence[Record]:
        """What goes to the sample topic, in order; samples are built as they are gone through."""
        return Records(self)


class Records(Sequence[Record]):
    """Samples, revisions and outcome of one event, one behind the other."""

    def __init__(self, effects: Effects) -> None:
        """Nothing is built yet."""
        self._samples = effects.samples
        self._others = (*effects.revisions, *([effects.outcome] if effects.outcome else []))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._samples) + len(self._others)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        """One of them, or those of a slice."""
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self))[index] - len(self._samples)
        return self._others[place] if place >= 0 else self._samples[place]

    def __eq__(self, other: object) -> bool:
        """Equal records in the same order."""
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # records hold arrays


NOTHING = Effects()
KEPT = Effects(row=EVENT_ROW)


def closed_with(closing: Close, *refusals: BadEvent) -> Effects:
    """The effects of a close."""
    return Effects(
        samples=closing.samples,
        outcome=closing.outcome,
        trace=closing.trace,
        marker=closing.marker,
        refusals=(*refusals, *closing.refusals),
    )


def with_totals(effects: Effects, failure: str) -> Effects:
    """The close in place of one that has a record which the log does not take."""
    assert effects.outcome is not None, "every close has an outcome"
    assert effects.marker is not None, "every close has a marker"
    closing = close_with_totals(effects.outcome, effects.marker, failure)
    return closed_with(closing)
