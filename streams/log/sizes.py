"""How large one entry may be, the same in every store.

Invariant: an entry over the limit is refused before any of it is sent.
"""

from streams.errors import TooLarge
from streams.log.interface import Outgoing
from streams.settings import Settings


def check_size(outgoing: Outgoing, settings: Settings) -> None:
    """Events have the user's limit; what holds a whole event has room for it.

    Raises:
        TooLarge: key and value are over the limit.
    """
    event = outgoing.topic == settings.turns_topic
    limit = settings.message_bytes_max if event else settings.record_bytes_max
    size = len(outgoing.key or b"") + len(outgoing.value or b"")
    if size > limit:
        raise TooLarge(size, limit, session_id=outgoing.session_id, turn_id=outgoing.turn_id)
