"""Token sequences that share their beginnings, each token stored once.

A block is a run of tokens that continues another block at some position. A turn that extends
the newest one grows its block in place; a turn that leaves an older sequence at position L
starts a block there:

    block A   p p p p r r t t r r        turns 1 and 2, one after the other
    block B           └ x t r            turn 3 left the sequence at position 4

Invariant: `read(block, 0, end)` is exactly what the model saw and sampled up to `end`.
Blocks only grow; what was read once stays what it was.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

ID_BYTES = 4


@dataclass(slots=True, eq=False)
class Block:
    """Token ids from `start` on, as little-endian int32; what comes before is the parent's."""

    parent: "Block | None" = None
    start: int = 0
    ids: bytearray = field(default_factory=bytearray)

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.ids) // ID_BYTES


def read(block: Block | None, start: int, stop: int) -> bytes:
    """The ids in `[start, stop)` of the sequence that `block` ends."""
    pieces: list[bytearray] = []
    while stop > start:
        assert block is not None, "a sequence begins at position 0"
        if block.start < stop:
            low = max(start, block.start)
            offset = block.start
            pieces.append(block.ids[(low - offset) * ID_BYTES : (stop - offset) * ID_BYTES])
            stop = low
        block = block.parent
    pieces.reverse()
    return b"".join(pieces)


def grown(block: Block | None, end: int, tail: bytes) -> Block:
    """The block that holds `tail` from `end` on: the same one if `end` is its tip."""
    while block is not None and end <= block.start:
        block = block.parent
    if block is not None and block.end == end:
        block.ids += tail
        return block
    return Block(parent=block, start=end, ids=bytearray(tail))


def shared_length(block: Block, start: int, stop: int, incoming: bytes) -> int:
    """How many tokens of `[start, stop)` the incoming ids repeat, from the first on."""
    held = read(block, start, min(stop, start + len(incoming) // ID_BYTES))
    if incoming.startswith(held):
        return len(held) // ID_BYTES
    ours = np.frombuffer(held, np.int32)
    theirs = np.frombuffer(incoming, np.int32, count=ours.size)
    return int((ours != theirs).argmax())


def prompt_hash() -> Any:
    """The running digest that guards a delta's join: blake2b-16 over little-endian int32."""
    return blake2b(digest_size=16)
