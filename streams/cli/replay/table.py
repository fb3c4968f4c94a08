"""What another policy changes, as a table for people.

Invariant: every number stands as recorded, under the new policy, and as their difference.
"""

from collections.abc import Sequence
from typing import get_args

from schemas.samples import UntrainedReason
from streams.cli.replay.closed import Difference
from streams.cli.replay.run import Totals
from streams.core.state import Rules

MOST = 10
"""Sessions told one by one."""

Row = tuple[str, ...]


def rules_name(rules: Rules) -> str:
    """The rules as the command line gave them."""
    if rules.forced_policy is not None:
        named = [rules.adjusted(rules.forced_policy).label]
    elif rules.fork_threshold_tokens is not None:
        named = [f"fork threshold {rules.fork_threshold_tokens}"]
    else:
        named = []
    if rules.default_reward is not None:
        named.append(f"default reward {rules.default_reward:g}")
    return ", ".join(named)


def totals_table(before: Totals, after: Totals, name: str) -> str:
    """Both runs, number by number; reasons that occur in neither are left out."""
    reasons = [
        reason
        for reason in get_args(UntrainedReason)
        if before.untrained[reason] or after.untrained[reason]
    ]
    rows: list[Row] = [
        ("", "as recorded", f"under {name}", "difference"),
        _row("sessions", before.sessions, after.sessions),
        _row("samples", before.samples, after.samples),
        _row("tokens forwarded", before.tokens, after.tokens),
        _row("sampled tokens", before.generated, after.generated),
        _row("trained", before.trained, after.trained),
        *(_row(f"untrained: {r}", before.untrained[r], after.untrained[r]) for r in reasons),
        _row("reward on samples", before.reward, after.reward),
        _row("events refused", before.refused, after.refused),
    ]
    if before.still_open or after.still_open:
        rows.append(_row("still open, left out", before.still_open, after.still_open))
    return _aligned(rows)


def differences_table(differing: int, most: Sequence[Difference]) -> str:
    """The sessions that changed most."""
    if not differing:
        return "no session differs"
    head = "1 session differs" if differing == 1 else f"{differing:,} sessions differ"
    if differing > len(most):
        head += f"; the {len(most)} that differ most"
    rows: list[Row] = [(head, "samples", "tokens", "trained", "reward")]
    for one in most:
        a, b = one.before, one.after
        pairs = [(a.samples, b.samples), (a.tokens, b.tokens), (a.trained, b.trained)]
        changes = [_change(*pair) for pair in [*pairs, (a.reward, b.reward)]]
        rows.append((f"  {one.session_id}", *changes))
    return _aligned(rows)


def _row(label: str, before: float, after: float) -> Row:
    difference = after - before
    sign = "+" if difference > 0 else ""
    return (label, _number(before), _number(after), sign + _number(difference))


def _change(before: float, after: float) -> str:
    return _number(before) if before == after else f"{_number(before)} -> {_number(after)}"


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    # Sums of shares: below a millionth there is only rounding.
    text = f"{value:,.6f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _aligned(rows: Sequence[Row]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
