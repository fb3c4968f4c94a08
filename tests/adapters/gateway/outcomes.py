"""What a session became, held against what the engine says it sampled."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.events import Turn
from schemas.samples import Sample, SessionClosed
from streams.adapters.engines.scripted import ScriptedEngine

Generated = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""Prompt, output, logprobs."""


@dataclass
class Outcome:
    """What a closed session became."""

    turns: dict[str, Turn]
    """In the order of the log."""
    prompts: dict[str, list[int]]
    """Each turn's whole prompt."""
    samples: list[Sample]
    closed: SessionClosed

    @property
    def attached(self) -> list[str]:
        """How each turn of the ledger attached."""
        return [row.attach for row in self.closed.ledger]

    @property
    def untrained(self) -> dict[str, dict[str, int]]:
        """Turns of which not all trains, and why."""
        rows = {
            row.turn_id: {str(reason): n for reason, n in row.untrained.items()}
            for row in self.closed.ledger
        }
        return {turn: reasons for turn, reasons in rows.items() if sum(reasons.values())}


def whole_prompts(turns: Mapping[str, Turn]) -> dict[str, list[int]]:
    """Deltas resolved, the slow way."""
    prompts: dict[str, list[int]] = {}
    for turn in turns.values():
        kept: list[int] = []
        if turn.base_turn_id is not None:
            base = turns[turn.base_turn_id]
            whole = prompts[base.turn_id] + base.output_ids.tolist()
            kept = whole[: turn.kept_ids or 0]
        prompts[turn.turn_id] = kept + turn.prompt_ids.tolist()
    return prompts


def assert_faithful(engine: ScriptedEngine, outcome: Outcome) -> None:
    """The log has what the engine sampled, and every delivered token trains exactly once."""
    assert recorded(outcome) == journalled(engine, outcome.closed.session_id)
    trained = Counter(
        (outcome.turns[span.turn_id].part_of or span.turn_id, at - span.start)
        for sample in outcome.samples
        for span in sample.turns
        for start, end in sample.loss_mask
        for at in range(max(start, span.start), min(end, span.end))
    )
    assert set(trained.values()) <= {1}
    for sample in outcome.samples:
        for span in sample.turns:
            turn = outcome.turns[span.turn_id]
            assert sample.tokens[span.start : span.end].tolist() == turn.output_ids.tolist()
            own = any(start <= span.start and span.end <= end for start, end in sample.loss_mask)
            if own and turn.logprobs is not None:
                assert sample.logprobs[span.start : span.end].tolist() == turn.logprobs.tolist()
    told: Counter[str] = Counter()
    for row in outcome.closed.ledger:
        told[outcome.turns[row.turn_id].part_of or row.turn_id] += row.trained
    assert +told == Counter(turn_id for turn_id, _ in trained)
    put_behind = sum(row.untrained.get("forced", 0) for row in outcome.closed.ledger)
    assert outcome.closed.generated - put_behind == sum(
        len(turn.output_ids) for turn in outcome.turns.values() if turn.part_of is None
    )
    assert outcome.closed.gaps == 0


def assert_all_trains(engine: ScriptedEngine, outcome: Outcome) -> None:
    """Faithful, and nothing of it is left out."""
    assert_faithful(engine, outcome)
    assert outcome.untrained == {}
    assert outcome.closed.trained == outcome.closed.generated > 0


def recorded(outcome: Outcome) -> Counter[Generated]:
    return Counter(
        (
            tuple(outcome.prompts[turn.turn_id]),
            tuple(turn.output_ids.tolist()),
            tuple(() if turn.logprobs is None else turn.logprobs.tolist()),
        )
        for turn in outcome.turns.values()
        if turn.part_of is None
    )


def journalled(engine: ScriptedEngine, session_id: str) -> Counter[Generated]:
    """What the engine says it sampled; what was gone on with, as one."""
    found: list[Generated] = []
    for entry in engine.journal.of(session_id):
        prompt, ids = tuple(entry.input_ids.tolist()), tuple(entry.ids)
        logprobs = tuple(entry.logprobs)
        if entry.rule == "rest":
            at = next(n for n, (p, o, _) in enumerate(found) if p + o == prompt)
            before = found.pop(at)
            prompt, ids, logprobs = before[0], before[1] + ids, before[2] + logprobs
        if ids or entry.outcome != "failed":
            found.append((prompt, ids, logprobs))
    return Counter(found)
