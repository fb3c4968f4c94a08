"""What follows from one event: what to keep, what to send, what to refuse.

A shell carries them out in this order: samples, then the outcome, then the marker, then the
session's rows may go. Each step waits until the one before it is acknowledged.
"""

from dataclasses import dataclass

from schemas.record import Record
from schemas.samples import Sample, SampleRevised, SessionClosed
from schemas.traces import Trace
from streams.core.closing import Close
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
    refusals: tuple[BadEvent, ...] = ()
    samples: tuple[Sample, ...] = ()
    outcome: SessionClosed | None = None
    trace: Trace | None = None
    marker: Marker | None = None
    """Set when the session closed; it replaces the session's rows."""
    revisions: tuple[SampleRevised, ...] = ()
    ignored: bool = False
    """The event was true but came too late, or again, to change anything."""

    def records(self) -> list[Record]:
        """What goes to the sample topic, in order."""
        return [*self.samples, *self.revisions, *([self.outcome] if self.outcome else [])]


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
