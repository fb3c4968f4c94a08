"""Whether an event is on the partition of its session's key, for whoever grows sessions from a log.

Every event of a session has to be there; one that another partitioner put elsewhere would begin
the session a second time, and its offset says nothing about the session's others. Only what a
processor itself addresses to a partition, `purge` and `session_expired`, is taken wherever it is.

Which partition that is hangs on their number. A reader with another number in its settings than
the topic has would pass over most sessions without a word, so it asks the broker first.

Invariant: all readers of a log agree on which events belong to a session.
"""

import functools

from schemas.bad_record import BadRecord
from schemas.events import Event, Purge, SessionExpired
from streams.errors import WrongTopic
from streams.log.interface import Log
from streams.log.keys import event_key
from streams.log.partitioner import partition_of
from streams.settings import ACCEPT, KAFKA, PREFIX, Settings


async def require_partitions(log: Log, settings: Settings) -> None:
    """Make sure that `refuse_elsewhere` counts the partitions that the turns have.

    Raises:
        WrongTopic: they are more or fewer than the settings say.
    """
    if settings.log != KAFKA or settings.foreign_partitions == ACCEPT:
        return
    found = len(await log.end_positions(settings.turns_topic))
    if found != settings.partitions:
        detail = (
            f"{settings.turns_topic} has {found} partitions, {PREFIX}PARTITIONS is "
            f"{settings.partitions}: set it to {found}, as for whoever writes there"
        )
        raise WrongTopic(detail)


def refuse_elsewhere(
    event: Event | BadRecord, partition: int, settings: Settings
) -> Event | BadRecord:
    """The event, or a refusal if it is not on the partition of its session's key.

    Whoever reads a log begins with `require_partitions`, or compares the number itself.
    """
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
