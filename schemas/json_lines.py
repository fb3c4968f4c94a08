"""Reading a JSON line that may be hostile: how deep, how spelled, whose it is.

Python programs write `NaN` and lone surrogates into JSON although neither is JSON. A line that
only fails for such a number is read again leniently, so the error can name the field, the
session and the turn; a `NaN` reward is even meaningful (the judge failed).

Invariant: the nesting limit is a property of the text, not of the reader's stack.
"""

import json
import re
from typing import Any

import msgspec
import numpy as np

from schemas.bad_record import BadRecord

NESTING_MAX = 100
_CHUNK = 1 << 20

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_READABLE_ID = re.compile(rb'"(session_id|turn_id)"\s*:\s*"([\w.:-]{1,200})"')


def split_fields(line: bytes) -> dict[str, msgspec.Raw]:
    """The top-level fields of a JSON object as JSON text."""
    if too_deep(line):
        raise BadRecord("undecodable", f"nested deeper than {NESTING_MAX}", **readable_ids(line))
    try:
        if not line.isascii():
            line.decode()  # payloads are kept as text unread, so this is where bytes are checked
        return _FIELDS.decode(line)
    except msgspec.ValidationError:
        raise BadRecord("undecodable", "the line is JSON, but not an object") from None


def too_deep(text: bytes) -> bool:
    """Whether brackets outside strings nest deeper than `NESTING_MAX`."""
    if text.count(b"[") + text.count(b"{") <= NESTING_MAX:
        return False
    bare = text.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NOT_STRUCTURE)
    depth = quotes = 0
    for at in range(0, len(bare), _CHUNK):  # bounded memory, also for a line of brackets only
        marks = np.frombuffer(bare, np.uint8, min(_CHUNK, len(bare) - at), at)
        quoted = np.cumsum(marks == ord('"')) + quotes
        outside = (quoted & 1) == 0
        opening = ((marks == ord("[")) | (marks == ord("{"))) & outside
        closing = ((marks == ord("]")) | (marks == ord("}"))) & outside
        depths = np.cumsum(opening.astype(np.int64) - closing.astype(np.int64)) + depth
        if depths.max() > NESTING_MAX:
            return True
        depth, quotes = int(depths[-1]), int(quoted[-1])
    return False


def readable_ids(line: bytes) -> dict[str, str]:
    """Session and turn as far as a broken line still shows them."""
    found = _READABLE_ID.findall(line[:1_000_000])
    return {key.decode(): value.decode("ascii", "replace") for key, value in reversed(found)}


def read_python_spelling(line: bytes, why: str) -> tuple[dict[str, msgspec.Raw], Any]:
    """A line that only Python's reader takes: its fields, and a reward that is not finite.

    Raises `BadRecord` if it is not readable at all, or if what is wrong is not the reward.
    """
    ids = readable_ids(line)
    try:
        fields = json.loads(line.decode())
    except (ValueError, RecursionError):
        raise BadRecord("undecodable", f"not a JSON object: {why}", **ids) from None
    if not isinstance(fields, dict):
        raise BadRecord("undecodable", f"not a JSON object: {why}", **ids)
    reward = fields.pop("reward", None)
    texts: dict[str, msgspec.Raw] = {}
    for name, value in fields.items():
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
            texts[str(name.encode(), "utf-8")] = msgspec.Raw(text)
        except UnicodeEncodeError:
            detail = f"`{name!r:.80}` holds a lone surrogate, which is not text"
            raise BadRecord("undecodable", detail, **ids) from None
        except ValueError:
            detail = f"`{name}` holds NaN or infinity"
            raise BadRecord("invalid_field", detail, **ids) from None
    try:
        json.dumps(reward, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRecord("undecodable", "`reward` holds a lone surrogate", **ids) from None
    return texts, reward
