"""The terms of a reward as numbers that every reader has: what is not finite becomes none.

    {"score": 1.0, "style": NaN}   ->   {"score": 1.0, "style": null, "not_finite": ["style"]}

The score itself is not among them: without one there is no reward (`reward_invalid`).

Invariant: a payload whose numbers are finite is left as it is, so doing it twice changes nothing.
"""

import math
from typing import Any

import numpy as np

NOT_FINITE = "not_finite"
"""The flag beside the terms: where they stood."""
_DEPTH_MAX = 64


def builtin_of(scalar: np.generic) -> Any:
    """A scalar of numpy as what it is without numpy; long doubles give themselves as `item()`."""
    if scalar.dtype.kind == "f":
        return float(scalar)
    return complex(scalar) if scalar.dtype.kind == "c" else scalar.item()


def finite_terms(payload: dict[str, Any]) -> dict[str, Any]:
    """The payload, with none in place of NaN and infinities, and their names beside them."""
    found: list[str] = []
    made = {
        name: value if name == "score" else _finite(value, str(name), found, 0)
        for name, value in payload.items()
    }
    return {**made, NOT_FINITE: found} if found else payload


def _finite(value: Any, name: str, found: list[str], depth: int) -> Any:
    if isinstance(value, float | np.floating) and not math.isfinite(value):
        found.append(name)
        return None
    if depth < _DEPTH_MAX and isinstance(value, dict):
        return {
            key: _finite(held, f"{name}.{key}", found, depth + 1) for key, held in value.items()
        }
    if depth < _DEPTH_MAX and isinstance(value, list | tuple):
        return [_finite(held, f"{name}[{at}]", found, depth + 1) for at, held in enumerate(value)]
    return value
