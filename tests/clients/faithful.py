"""The log has what the engine sampled, token for token, and none of it trains twice.

Invariant: a sampled token counts once, whatever turns it stands in.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from streams.adapters.engines.scripted import ScriptedEngine
from tests.adapters.gateway.outcomes import journalled, recorded
from tests.clients.scene import Seen


def assert_faithful(seen: Seen, engine: ScriptedEngine) -> None:
    """All of it holds for a session."""
    outcome = seen.outcome
    wholes = seen.wholes()
    told = {turn_id: outcome.turns[turn_id] for turn_id in wholes.values()}
    assert recorded(replace(outcome, turns=told)) == journalled(engine, outcome.closed.session_id)
    trained: Counter[tuple[str, int]] = Counter()
    for sample in outcome.samples:
        for span in sample.turns:
            turn, whole_id = outcome.turns[span.turn_id], wholes[span.turn_id]
            for start, end in _overlaps(sample.loss_mask, span.start, span.end):
                own = slice(start - span.start, end - span.start)
                trained.update((whole_id, place) for place in range(own.start, own.stop))
                assert sample.tokens[start:end].tolist() == turn.output_ids[own].tolist()
                if turn.logprobs is not None:
                    assert sample.logprobs[start:end].tolist() == turn.logprobs[own].tolist()
    assert set(trained.values()) <= {1}
    assert trained.total() == sum(row.trained for row in outcome.closed.ledger)
    assert outcome.closed.gaps == 0


def _overlaps(runs: Iterable[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """What of the runs lies in the span."""
    cut = [(max(first, start), min(last, end)) for first, last in runs]
    return [(first, last) for first, last in cut if first < last]
