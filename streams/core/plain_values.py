"""Any value as one that JSON has, for whatever environments, judgers and agents hand over.

    numpy scalar, enum        the number or text it stands for
    tuple, set, small array   a list
    large array               its shape, kind and digest: a frame of a game is no text
    dataclass, msgspec struct an object
    NaN, infinity             none
    bytes                     hex text
    anything else             its `repr`, cut, and counted

Invariant: what comes back can be written by every JSON writer and is no part of what was given:
changing one later does not change the other.
"""

import dataclasses
import decimal
import enum
import json
import math
import numbers
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from schemas.finite import builtin_of, finite_terms

ARRAY_ITEMS_MAX = 1_024
"""A larger array is told by its digest."""
TEXT_CHARS_MAX = 2_000
"""Of a value that has no form of its own."""
DEPTH_MAX = 64
INTEGER_MAX = 2**63 - 1
"""What readers that are not Python hold; a larger number becomes its text."""
_INTEGER_CHARS_MAX = len(str(-INTEGER_MAX))


def plain(value: Any, strange: Counter[str] | None = None, depth: int = 0) -> Any:
    """The value in JSON's own types, a deep copy.

    Args:
        value: Anything.
        strange: Counts, by type, what became text because there is no better form.
        depth: How deep it stands; what is nested too deep becomes text.
    """
    while isinstance(value, enum.Enum | np.generic):
        value = value.value if isinstance(value, enum.Enum) else builtin_of(value)
    if value is None or isinstance(value, bool | int | float | str):
        return _of_one(value)
    made, known = _of_many(value, strange, depth + 1) if depth < DEPTH_MAX else (None, False)
    if known:
        return made
    if strange is not None:
        strange[type(value).__name__] += 1
    return _of_one(_shown(value)[:TEXT_CHARS_MAX])


def plain_json(text: bytes) -> Any:
    """The value of a JSON text, whatever numbers are in it.

    Payloads are kept as text unread, so logs hold numbers that typed readers refuse. Whoever reads
    many sessions must lose that number, not the session: a float out of range becomes none, an
    integer its text, however many digits it has.
    """
    return plain(json.loads(bytes(text).decode(), parse_int=_integer))


def plain_score(score: Any) -> Any:
    """The number that a score stands for; what stands for none is given back as it is.

    Scores are computed with numpy, torch or fractions, by comparisons too: True is 1. A masked
    value is NaN, and a number that no float holds is infinite: neither is a reward.
    """
    if isinstance(score, np.ma.MaskedArray) and np.ma.is_masked(score):
        return math.nan
    item = getattr(score, "item", None)
    if callable(item):  # a scalar of numpy, or an array or tensor of one number
        try:
            score = item()
        except (TypeError, ValueError, RuntimeError):
            return score
    if not isinstance(score, numbers.Real | decimal.Decimal):
        return score
    try:
        return float(score)
    except OverflowError:
        return math.inf


def plain_reward(reward: Any) -> Any:
    """A reward with a plain score: a number, or a payload in JSON's own types.

    A score that is not finite stays so: it makes the reward invalid, and is seen.
    """
    if not isinstance(reward, Mapping):
        return plain_score(reward)
    payload = plain(finite_terms(dict(reward)))
    score = plain_score(reward.get("score"))
    return {**payload, "score": score} if isinstance(score, int | float) else payload


def _integer(digits: str) -> int | str:
    """Python's own reader ends with an error at some thousand digits."""
    return int(digits) if len(digits) <= _INTEGER_CHARS_MAX else digits


def _of_one(value: bool | float | str | None) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= INTEGER_MAX else str(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    # A lone surrogate cannot be written as UTF-8.
    return value.encode("utf-8", "replace").decode()


def _of_many(value: Any, strange: Counter[str] | None, depth: int) -> tuple[Any, bool]:
    """A value that holds others, and whether it is one that is known."""
    if isinstance(value, np.ndarray):
        return _of_array(value, strange, depth), True
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex(), True
    if isinstance(value, msgspec.Struct):
        fields: Mapping[Any, Any] = msgspec.structs.asdict(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, Mapping):
        fields = value
    elif isinstance(value, Set):
        items = [plain(item, strange, depth) for item in value]
        return sorted(items, key=repr), True  # the same set is the same text
    elif isinstance(value, Sequence):
        return [plain(item, strange, depth) for item in value], True
    else:
        return None, False
    return {_key(key): plain(held, strange, depth) for key, held in fields.items()}, True


def _of_array(array: np.ndarray[Any, Any], strange: Counter[str] | None, depth: int) -> Any:
    if array.size <= ARRAY_ITEMS_MAX:
        return plain(array.tolist(), strange, depth)
    digest = blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()
    return {"array": list(array.shape), "dtype": str(array.dtype), "digest": digest}


def _key(key: Any) -> str:
    made = plain(key)
    return made if isinstance(made, str) else str(made)


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # somebody's own repr, which may do anything
        return f"<{type(value).__name__} without a text: {type(error).__name__}>"
