"""What a processor counts of a session that closes, for its metrics."""

from collections import Counter

from schemas.bad_record import BadRecord
from schemas.events import Event, Turn
from streams.core.effects import Effects

RUN = "run_"
"""Counts whose name begins so are by run."""
OTHER_RUNS = "(others)"
_RUNS_MAX = 100
_CLOSED = f"{RUN}sessions_closed:"


def count_close(counts: Counter[str], effects: Effects) -> None:
    """Samples, tokens, and why tokens did not train."""
    outcome = effects.outcome
    assert outcome is not None, "every close has an outcome"
    counts["sessions_closed"] += 1
    counts["samples"] += len(effects.samples)
    counts["tokens_generated"] += outcome.generated
    counts["tokens_trained"] += outcome.trained
    run = _counted_run(counts, outcome.run_id)
    counts[f"{_CLOSED}{run}"] += 1
    counts[f"{RUN}samples:{run}"] += len(effects.samples)
    counts[f"{RUN}tokens_generated:{run}"] += outcome.generated
    counts[f"{RUN}tokens_trained:{run}"] += outcome.trained
    for row in outcome.ledger:
        for reason, tokens in row.untrained.items():
            counts[f"untrained:{reason}"] += tokens


def count_event(counts: Counter[str], event: Event | BadRecord) -> None:
    """Events, and turns among them."""
    counts["events"] += 1
    counts["turns"] += isinstance(event, Turn)


def count_refusals(counts: Counter[str], effects: Effects) -> None:
    """Dead letters by code."""
    for refusal in effects.refusals:
        counts[f"dead_letter:{refusal.code}"] += 1


def _counted_run(counts: Counter[str], run_id: str | None) -> str:
    """The run itself, or all that came after the first so many together."""
    run = run_id or ""
    if f"{_CLOSED}{run}" in counts:
        return run
    return run if sum(name.startswith(_CLOSED) for name in counts) < _RUNS_MAX else OTHER_RUNS
