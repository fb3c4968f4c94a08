"""Every failure, drawn by whose fault it is, because that decides what a processor does.

* TurnstreamError
  x BadEvent        the producer's: cannot be true; dead-letter it and go on
  x BadPolicy       the operator's: a profile that does not exist or contradicts itself

`BadEvent` is a `schemas` BadRecord too: bytes that cannot be read and events that cannot be
true end the same way.
"""

from schemas.bad_record import BadRecord


class TurnstreamError(Exception):
    """The root of what this project raises."""


class BadEvent(TurnstreamError, BadRecord):
    """An event that contradicts its session; carries the dead-letter code."""


class BadPolicy(TurnstreamError):
    """A profile name or field that does not exist, or a value it cannot have."""
