"""How much JSON a body is, counted before it is decoded.

A byte of JSON can be a value: a million messages that hold nothing are 30 MB, decode to a
gigabyte, and take the event loop seconds. So values are counted by what separates and opens them,
everywhere in the text; that counts more than there are, and most in text full of commas. Objects
are counted exactly, outside of strings, where the cheap count leaves a doubt.

Invariant: no count here takes memory in proportion to the body, nor more than a pass over it.
"""

import numpy as np

_PIECE = 1_048_576
_QUOTE, _OBJECT = ord('"'), ord("{")


def values_at_most(body: bytes) -> int:
    """No fewer than the values in the body, those in strings included."""
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def has_more_objects(body: bytes, most: int) -> bool:
    """Whether the body holds more JSON objects than that."""
    return body.count(b"{") > most and count_objects(body) > most


def count_objects(body: bytes) -> int:
    """How many objects begin outside of strings."""
    count, inside, at = 0, False, 0
    while at < len(body):
        piece = _whole_escapes(body, at)
        at += len(piece)
        # An escaped backslash ends no escape, and an escaped quote ends no string.
        text = np.frombuffer(piece.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        quotes = text == _QUOTE
        in_string = np.logical_xor.accumulate(quotes) ^ inside
        count += int(np.count_nonzero((text == _OBJECT) & ~in_string))
        inside ^= bool(np.count_nonzero(quotes) % 2)
    return count


def _whole_escapes(body: bytes, at: int) -> bytes:
    """The next piece, which does not end between a backslash and what it escapes."""
    end = at + _PIECE
    piece = body[at:end]
    backslashes = len(piece) - len(piece.rstrip(b"\\"))
    return piece + body[end : end + 1] if backslashes % 2 else piece
