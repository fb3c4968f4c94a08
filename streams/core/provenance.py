"""Where one token of a sample comes from, and why it trains or does not."""

from collections.abc import Sequence

from schemas.record import UNKNOWN_VERSION
from schemas.samples import Sample, SessionClosed, TurnSpan
from streams.core.drawing import escaped
from streams.core.recorded import RecordedTurn
from streams.core.tree import Tree


def tell_token(
    tree: Tree,
    outcome: SessionClosed,
    samples: Sequence[Sample],
    sample: Sample,
    position: int,
) -> str:
    """The story of the token at `position`, a line a fact."""
    lines = [
        f"token {int(sample.tokens[position])} at {position} of {sample.tokens.size}",
        f"session {sample.session_id}, sample {sample.index + 1} of {sample.count}, "
        f"policy {sample.policy}",
    ]
    span = next((s for s in sample.turns if s.start <= position < s.end), None)
    if span is None:
        following = next((s for s in sample.turns if position < s.start), None)
        whose = f"the prompt of turn {escaped(following.turn_id)}" if following else "the prompt"
        return "\n".join([*lines, f"given, not sampled: in {whose}"])
    at = position - span.start
    turn = tree.turns[span.turn_id]
    lines.append(f"sampled by turn {escaped(span.turn_id)} ({span.attach}), token {at}")
    if (version := _version(turn, at)) is not None:
        known = "unknown" if version == UNKNOWN_VERSION else version
        lines.append(f"weight version {known}")
    if _trains(sample, position):
        lines.append(f"trains, logprob {float(sample.logprobs[position]):.6g}")
    else:
        lines.append(_why_not(turn, outcome, samples, span, at))
    return "\n".join(lines)


def _trains(sample: Sample, position: int) -> bool:
    return any(start <= position < end for start, end in sample.loss_mask)


def _version(turn: RecordedTurn, at: int) -> int | None:
    for version, tokens in turn.event.weight_versions or ():
        if at < tokens:
            return version
        at -= tokens
    return None


def _why_not(
    turn: RecordedTurn,
    outcome: SessionClosed,
    samples: Sequence[Sample],
    span: TurnSpan,
    at: int,
) -> str:
    for other in samples:
        same = next((s for s in other.turns if s.turn_id == span.turn_id), None)
        if same is not None and _trains(other, same.start + at):
            return f"context here: it trains in sample {other.index + 1}"
    untrained = next(row for row in outcome.ledger if row.turn_id == span.turn_id).untrained
    reasons: list[str] = list(untrained)
    if "forced" in reasons:
        forced = next(
            (why for start, end, why in turn.event.untrained_runs or () if start <= at < end), None
        )
        reasons = [r for r in reasons if (r == "forced") == (forced is not None)]
        reasons = [f"forced ({escaped(forced or '')})" if r == "forced" else r for r in reasons]
    return f"does not train: {', '.join(reasons)}"
