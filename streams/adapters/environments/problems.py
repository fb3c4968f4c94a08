"""What the wrapper raises by itself; what an environment raises passes as it is.

* TurnstreamError
  x NotRecorded       the log did not take it in time; the run went on, its record did not
  x MustReset         a step in an episode that is over by an error
  x TookTooLong       the environment did not answer, or its episode not end, in its time
"""

from streams.errors import TurnstreamError


class NotRecorded(TurnstreamError):
    """The log did not take an event in time; it may still be stored."""


class MustReset(TurnstreamError, RuntimeError):
    """The episode is over; only a reset begins another."""


class TookTooLong(TurnstreamError, TimeoutError):
    """A limit of time that the caller set is over."""
