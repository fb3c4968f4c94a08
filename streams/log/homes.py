"""Whether an event is on the partition of its session's key, for whoever grows sessions from a log.

Every event of a session has to be there; one that another partitioner put elsewhere would begin
the session a second time, and its offset says nothing about the session's others. Only what a
processor itself addresses to a partition, `purge` and `session_expired`, is taken wherever it is.

Invariant: all readers of a log agree on which events belong to a session.
"""

import functools

from schemas.bad_record import BadRecord
from schemas.events import Event, Purge, SessionExpired
from streams.log.keys import event_key
from streams.log.partitioner import partition_of
from streams.settings import ACCEPT, Settings


def refuse_elsewhere(
    event: Event | BadRecord, partition: int, settings: Settings
) -> Event | BadRecord:
    """The event, or a refusal if it is not on the partition of its session's key."""
    if isinstance(event, BadRecord | Purge | SessionExpired):
        return event
    if settings.foreign_partitions == ACCEPT:
        return event
    session_id = event.session_id
    home = _home(session_id, settings.partitions)
    if home == partition:
        return event
    detail = (
        f"it is on partition {partition} of {settings.turns_topic}, but its key belongs on "
        f"partition {home} of {settings.partitions} (murmur2): set partitioner=murmur2_random in "
        "its producer (librdkafka's default is another), then `turnstream dead-letters replay`"
    )
    turn_id = getattr(event, "turn_id", None)
    return BadRecord("wrong_partition", detail, session_id=session_id, turn_id=turn_id)


@functools.lru_cache(maxsize=16_384)
def _home(session_id: str, partitions: int) -> int:
    return partition_of(event_key(session_id), partitions)
