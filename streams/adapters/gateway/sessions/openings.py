"""Where sessions were opened, as far as the log was followed: an id is opened once.

Invariant: the first opening that was met counts; only the newest ids are known.
"""

from collections import OrderedDict
from hashlib import blake2b

from schemas import codec
from schemas.events import SessionOpened
from streams.log.interface import Entry, Position

_KNOWN_MAX = 50_000


class Openings:
    """The places of the newest, and with which words each was opened."""

    def __init__(self) -> None:
        """None was met."""
        self._met: OrderedDict[str, tuple[Position, bytes]] = OrderedDict()

    def meet(self, session_id: str, entry: Entry) -> None:
        """An opening in the log."""
        if session_id not in self._met:
            self._met[session_id] = (entry.position, _digest(entry.value or b""))
            if len(self._met) > _KNOWN_MAX:
                self._met.popitem(last=False)

    def find(self, event: SessionOpened) -> tuple[Position, bool] | None:
        """Where a session of this id was opened, and whether with the same words."""
        met = self._met.get(event.session_id)
        return None if met is None else (met[0], met[1] == _digest(codec.to_msgpack(event)))


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()
