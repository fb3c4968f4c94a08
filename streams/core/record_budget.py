"""How many bytes a session's outcome and marker take at most, known while the session grows.

Both name every turn, the marker every reward too. Ids count as they are encoded: 200 characters
are up to 1,200 bytes of JSON. An event that would take either record over its share of what the
log holds is refused when it arrives, so that the close never has a record that cannot be sent.

    record_bytes  |---- turns ---- 3/4 |- refused turns, rewards - 13/16 |- all else -|

Invariant: what an outcome or a marker takes beyond identity, metadata, payload and texts is at
most what is counted here.
"""

from typing import NamedTuple

import msgpack
import msgspec

from schemas.samples import LedgerRow
from streams.errors import BadEvent

SAMPLE_ID = "0" * 32
"""As long as every one."""
_COUNT = 2**32 - 1
"""More tokens than one event can hold."""
_FLOAT_CHARS = 25
_ROW_BYTES = len(
    msgpack.packb(
        msgspec.to_builtins(
            LedgerRow(
                turn_id="",
                attach="realign",
                generated=_COUNT,
                trained=_COUNT,
                untrained={"forced": _COUNT, "realigned": _COUNT, "oversize": _COUNT},
            )
        )
    )
)
_SAMPLE_ID_BYTES = len(msgpack.packb(SAMPLE_ID))
_MARKER_SAMPLE_BYTES = len(msgspec.json.encode([SAMPLE_ID, []])) + 1


class RecordBytes(NamedTuple):
    """What both records take, or what something adds to them."""

    outcome: int = 0
    marker: int = 0

    def plus(self, added: "RecordBytes") -> "RecordBytes":
        """Both together."""
        return RecordBytes(self.outcome + added.outcome, self.marker + added.marker)


NO_BYTES = RecordBytes()


def of_turn(turn_id: str) -> RecordBytes:
    """A turn that has a sample of its own."""
    size = id_bytes(turn_id)
    return RecordBytes(_ROW_BYTES + _SAMPLE_ID_BYTES + size, _MARKER_SAMPLE_BYTES + size)


def of_refused_turn(turn_id: str) -> RecordBytes:
    """A turn that only the ledger has."""
    size = id_bytes(turn_id)
    return RecordBytes(_ROW_BYTES + size, size)


def of_turn_reward(turn_id: str) -> RecordBytes:
    """A reward of one turn, that a judge gave: the marker names the turn twice more."""
    return RecordBytes(marker=2 * id_bytes(turn_id) + _FLOAT_CHARS)


def of_reward_id(reward_id: str) -> RecordBytes:
    """A reward that was given by an id."""
    return RecordBytes(marker=id_bytes(reward_id))


def id_bytes(name: str) -> int:
    """At most what a name takes in a list, as JSON or as MessagePack."""
    return len(msgspec.json.encode(name)) + 1


def check_turn(total: RecordBytes, record_bytes: int) -> None:
    """Raise `oversize` if a session with this many bytes of turns is over their share."""
    if max(total) > record_bytes * 3 // 4:
        detail = (
            f"the session's outcome would take up to {total.outcome} bytes and what is remembered "
            f"of it {total.marker}; turns may take {record_bytes * 3 // 4} of a record"
        )
        raise BadEvent("oversize", detail)


def fits(total: RecordBytes, record_bytes: int) -> bool:
    """Whether refused turns and rewards of so many bytes leave room for all else."""
    return max(total) <= record_bytes * 13 // 16
