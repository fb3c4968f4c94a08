"""How long a session may take as a whole, and the words in which it ends when that is over.

Whoever opens the session sets the limit, as its budget `wall_ms`; the gateway ends it then, since
an agent may be any program, and one that hangs says nothing. Who opened it may say so as well.

Invariant: both use the same words, so that it does not matter who says them first.
"""

from typing import Any

WALL_MS = "wall_ms"
"""The budget's name: milliseconds from the opening to the end."""


def in_ms(timeout_s: float) -> int:
    """The limit as a budget.

    Raises:
        ValueError: that is no time to live.
    """
    limit_ms = round(timeout_s * 1000)
    if limit_ms < 1:
        raise ValueError(f"timeout_s={timeout_s!r}: give a time above 0, in seconds")
    return limit_ms


def reason_of(limit_ms: int) -> dict[str, Any]:
    """Why a session ended that took longer, as a field of `session_ended`."""
    return {
        "stage": "agent",
        "category": "timeout",
        "message": f"the session was not ended within its limit of {limit_ms / 1000:g} s",
    }
