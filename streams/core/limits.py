"""How much one session may hold, so that no session can take a worker down.

A turn over a budget is refused as `oversize`; the session itself goes on. `session_opened` may
set its own numbers under the same names.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from streams.errors import BadEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Budgets of a session; the defaults hold the largest agent runs seen, several times over."""

    turns: int = 20_000
    nodes: int = 100_000
    tokens: int = 4_000_000
    """Stored tokens: what several turns share counts once."""
    bytes: int = 256_000_000
    """Ids, logprobs, channels and message text."""
    metadata_bytes: int = 1_000_000
    sample_bytes: int = 7_500_000
    """A larger record would not fit a log message of 8 MiB: a sample is left out, an outcome
    loses what is large in it; both are reported. A session may lower it, not raise it."""
    sample_bytes_total: int = 1_073_741_824
    """Of all samples of a session, as they are sent: branches of one long conversation repeat it.
    The first ones are sent until it is spent."""


DEFAULT_LIMITS = Limits()
_FIXED = {"turns", "metadata_bytes", "sample_bytes", "sample_bytes_total"}
"""A session may lower these, not raise them."""
_ADAPTERS = {"context_tokens", "wall_ms"}
"""Budgets that an adapter keeps to; nothing here depends on them."""


def limits_from(limits: Limits, budgets: Mapping[str, int] | None) -> Limits:
    """The session's own budgets over the defaults."""
    if not budgets:
        return limits
    budgets = {name: asked for name, asked in budgets.items() if name not in _ADAPTERS}
    unknown = sorted(set(budgets) - {field.name for field in dataclasses.fields(Limits)})
    if unknown:
        raise BadEvent("invalid_field", f"`budgets` has no {unknown[0]!r:.80}")
    # What is written about a session has to fit into the log, whatever it asks for.
    held = {
        name: min(asked, getattr(limits, name)) if name in _FIXED else asked
        for name, asked in budgets.items()
    }
    return dataclasses.replace(limits, **held)
