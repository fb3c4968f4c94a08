"""Which groups have ended, so that nothing of them is taken for a new one.

    g1  ended at 0/812, delivered      g2  ended at 0/840, dropped      ...

A record of an ended group is a late attempt, a straggler, or one that was sent twice; a later
reward for a delivered one is handed over. Only a digest of the name is kept: a run of days fits
into a checkpoint.

Invariant: never more than `most` names; the oldest go first.
"""

from collections.abc import Iterable
from hashlib import blake2b

from streams.core.rollouts import Place

DIGEST_BYTES = 8


class ClosedGroups:
    """Names by the order in which their groups ended."""

    def __init__(self, most: int = 80_000) -> None:
        """None yet."""
        self.most = most
        self._found: dict[bytes, tuple[bool, Place]] = {}

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._found)

    def __contains__(self, group_id: str) -> bool:
        """Whether the group has ended."""
        return digest(group_id) in self._found

    def add(self, group_id: str, last: Place, *, delivered: bool) -> None:
        """It has ended; its newest record stands there."""
        self.add_digest(digest(group_id), last, delivered=delivered)

    def add_digest(self, name: bytes, last: Place, *, delivered: bool) -> None:
        """As `add`, by the digest."""
        self._found[name] = (delivered, last)
        if len(self._found) > self.most:
            del self._found[next(iter(self._found))]

    def read_again(self, group_id: str, place: Place) -> None:
        """Something of it stands there, behind all that was seen of it."""
        name = digest(group_id)
        self._found[name] = (self._found[name][0], place)

    def forget(self, group_id: str) -> None:
        """As if it had not ended."""
        self._found.pop(digest(group_id), None)

    def delivered(self, group_id: str) -> bool:
        """Whether it has ended by going to the trainer."""
        return self._found.get(digest(group_id), (False, None))[0]

    def names(self, *, without: Iterable[str] = ()) -> tuple[bytes, bytes]:
        """All digests in a row, of the delivered and of the dropped; some may be left out."""
        left_out = {digest(group_id) for group_id in without}
        kept = [(name, fate[0]) for name, fate in self._found.items() if name not in left_out]
        return (
            b"".join(name for name, delivered in kept if delivered),
            b"".join(name for name, delivered in kept if not delivered),
        )

    def names_above(self, partition: int, offset: int, without: Iterable[str] = ()) -> bytes:
        """Digests of the groups with a record at that place or behind it."""
        left_out = {digest(group_id) for group_id in without}
        return b"".join(
            name
            for name, (_, last) in self._found.items()
            if last[0] == partition and last[1] >= offset and name not in left_out
        )


def digest(group_id: str) -> bytes:
    """Of a group's name; two of a run's hundred thousand share one once in a billion runs."""
    return blake2b(group_id.encode(), digest_size=DIGEST_BYTES).digest()
