"""What could not be used, kept untouched in `turnstream.dead-letters` with the reason.

Keyed by topic/partition/offset, so a replay writes the same letter again and readers dedupe.
"""

from typing import Literal

from schemas.record import Octets, Record

Code = Literal[
    "undecodable",
    "unknown_version",
    "unknown_type",
    "invalid_field",
    "length_mismatch",
    "digest_mismatch",
    "unknown_base",
    "unknown_session",
    "forked_turn_id",
    "late_turn",
    "late_reward",
    "too_old",
    "oversize",
    "wrong_partition",
    "core_failure",
]


class DeadLetter(Record, frozen=True, kw_only=True, tag="dead_letter"):
    """One refused event: what is wrong with it, and its bytes."""

    code: Code
    detail: str
    """What happened and what to do, for a person."""
    session_id: str | None = None
    turn_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    line: int | None = None
    """The line of the file, where it came from one."""
    payload: Octets | None = None


DEAD_LETTER_TYPES: tuple[type[Record], ...] = (DeadLetter,)
