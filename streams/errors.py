"""Every failure, drawn by whose fault it is, because that decides what a processor does.

* TurnstreamError
  x BadEvent          the producer's: cannot be true; dead-letter it and go on
    + TooLarge          it does not fit into one message of the log; nothing was published
  x BadPolicy         the operator's: a profile that does not exist or contradicts itself
  x BadSetting        the operator's: a TURNSTREAM_* variable that cannot be used
  x CannotConvert     the trainer's: its framework has no place for a sample as it is
  x LogError          the operator's: the log refused; stop before an offset moves
    + LogAway           it did not answer in time; what was asked may still happen: try again
    + WrongTopic        a topic is missing or not as it has to be
    + NoSuchPosition    before the log's start or behind its end: what stood there is gone
    + LogFull           no room on the disk; nothing of it is stored: make room, try again
    + WrongLog          a file that is missing, damaged, replaced or no log of this version
    + PositionMoved     a group stands elsewhere than expected: another works for it

`BadEvent` is a `schemas` BadRecord too: bytes that cannot be read and events that cannot be
true end the same way.
"""

from schemas.bad_record import BadRecord


class TurnstreamError(Exception):
    """The root of what this project raises."""


class BadEvent(TurnstreamError, BadRecord):
    """An event that contradicts its session; carries the dead-letter code."""


class TooLarge(BadEvent):
    """A value over the log's limit, refused before it was sent."""

    def __init__(
        self,
        size_bytes: int,
        limit_bytes: int | None,
        *,
        session_id: str | None = None,
        turn_id: str | None = None,
    ) -> None:
        """Name the size and the limit, None if only the broker knows it, beside the session."""
        limit = f"the limit is {limit_bytes}"
        if limit_bytes is None:
            limit = "more than the broker takes: raise `max.message.bytes` of the topic"
        detail = f"{size_bytes} bytes, {limit}"
        super().__init__("oversize", detail, session_id=session_id, turn_id=turn_id)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class BadPolicy(TurnstreamError):
    """A profile name or field that does not exist, or a value it cannot have."""


class BadSetting(TurnstreamError):
    """A variable that does not exist, or a value it cannot have; the text names it."""


class CannotConvert(TurnstreamError):
    """A sample that a framework would train wrongly or refuse; the text names both."""


class LogError(TurnstreamError):
    """The log did not do what it was asked; the text names what that was."""


class LogAway(LogError):
    """No answer within the time allowed. What was sent may be durable or may yet become so."""


class WrongTopic(LogError):
    """A topic that is missing, or whose partitions or settings differ from what is needed."""


class NoSuchPosition(LogError):
    """A position outside of what the log holds."""


class LogFull(LogError):
    """The disk has no room. What was asked is not stored; what was acknowledged before is."""


class WrongLog(LogError):
    """A file that is not a log of this version, or is no longer the one that was opened."""


class PositionMoved(LogError):
    """A group's position is not the expected one; nothing was changed."""
