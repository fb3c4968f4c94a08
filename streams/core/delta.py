"""Token sequences that share their beginnings, each token stored once.

A block is a run of tokens that continues another block at some position. A turn that extends
the newest one grows its block in place; a turn that leaves an older sequence at position L
starts a block there:

    block A   p p p p r r t t r r        turns 1 and 2, one after the other
    block B           └ x t r            turn 3 left the sequence at position 4

Invariant: `read(block, 0, end)` is exactly what the model saw and sampled up to `end`.
Blocks only grow; what was read once stays what it was.
"""

from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

ID_BYTES = 4
_MANY_PIECES = 64


class Block(msgspec.Struct, eq=False):
    """Token ids from `start` to `end`; what comes before is the parent's."""

    parent: "Block | None" = None
    start: int = 0
    end: int = 0
    pieces: list[bytes] = msgspec.field(default_factory=list)
    """Little-endian int32, as they came; joined when read, so growing copies nothing."""


def read(block: Block | None, start: int, stop: int) -> bytes:
    """The ids in `[start, stop)` of the sequence that `block` ends."""
    parts: list[bytes] = []
    while stop > start:
        assert block is not None, "a sequence begins at position 0"
        if block.start < stop:
            low = max(start, block.start)
            parts.append(_read_own(block, low, stop))
            stop = low
        block = block.parent
    parts.reverse()
    return b"".join(parts)


def _read_own(block: Block, start: int, stop: int) -> bytes:
    if start == block.start and len(block.pieces) > _MANY_PIECES:
        block.pieces = [b"".join(block.pieces)]
    # Most reads want the newest tokens: walk back only as far as they reach.
    first, at = len(block.pieces), block.end
    while at > start:
        first -= 1
        at -= len(block.pieces[first]) // ID_BYTES
    joined = b"".join(block.pieces[first:])
    return joined[(start - at) * ID_BYTES : (stop - at) * ID_BYTES]


def grown(block: Block | None, at: int, *tail: bytes) -> Block:
    """The block that holds `tail` from `at` on: the same one if `at` is its tip."""
    while block is not None and at <= block.start:
        block = block.parent
    if block is None or block.end != at:
        block = Block(block, at, at)
    block.pieces += tail
    for piece in tail:
        block.end += len(piece) // ID_BYTES
    return block


def shared_length(block: Block, start: int, stop: int, incoming: bytes) -> int:
    """How many tokens of `[start, stop)` the incoming ids repeat, from the first on."""
    held = read(block, start, min(stop, start + len(incoming) // ID_BYTES))
    if incoming.startswith(held):
        return len(held) // ID_BYTES
    ours = np.frombuffer(held, np.dtype("<i4"))
    theirs = np.frombuffer(incoming, np.dtype("<i4"), count=ours.size)
    return int((ours != theirs).argmax())


def stored_together(left: Block, left_end: int, right: Block, right_end: int) -> int:
    """How many leading tokens of two sequences are the same stored ones; there may be more."""
    ends: dict[int, int] = {}
    block: Block | None = left
    while block is not None:
        ends[id(block)] = min(left_end, block.end)
        left_end = min(left_end, block.start)
        block = block.parent
    block = right
    while block is not None:
        if id(block) in ends:
            return min(ends[id(block)], right_end, block.end)
        right_end = min(right_end, block.start)
        block = block.parent
    return 0


def prompt_hash() -> Any:
    """The running digest that guards a delta's join: blake2b-16 over little-endian int32."""
    return blake2b(digest_size=16)
