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
    parts: int = 20_000
    """Turns that are the part of an answer which a client kept."""
    nodes: int = 100_000
    tokens: int = 4_000_000
    """Stored tokens: what several turns share counts once."""
    bytes: int = 256_000_000
    """Ids, logprobs, channels and message text."""
    joins: int = 100_000
    """Places where an engine stopped and was asked again, over all turns."""
    channels: int = 100
    """Names of channels, over all turns."""
    rewards: int = 50_000
    """Rewards by id and turns with a reward of their own."""
    late_rewards: int = 10_000
    """Rewards after the close, each of which revises samples."""
    late_reward_bytes: int = 16_000_000
    """As they are kept: each further one may have to read all of them back."""
    events: int = 250_000
    """Events of any kind that leave a row. Only what closes the session is taken after them."""
    event_bytes: int = 1_073_741_824
    """Of turns and rewards as they are kept, each with all that it repeats, until the close."""
    metadata_bytes: int = 1_000_000
    record_bytes: int = 7_500_000
    """Of an outcome, of a marker, of a revision, each encoded: what a message of 8 MiB holds."""
    sample_bytes: int = 7_500_000
    """A larger record would not fit a log message of 8 MiB: a sample is left out, an outcome
    loses what is large in it; both are reported. A session may lower it, not raise it."""
    sample_bytes_total: int = 1_073_741_824
    """Of all samples of a session, as they are sent: branches of one long conversation repeat it.
    The first ones are sent until it is spent. The revisions of late rewards have as much."""


DEFAULT_LIMITS = Limits()
_MAY_BE_RAISED = {"nodes", "tokens", "bytes"}
"""A session may lower all others, not raise them."""
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
        name: asked if name in _MAY_BE_RAISED else min(asked, getattr(limits, name))
        for name, asked in budgets.items()
    }
    return dataclasses.replace(limits, **held)
