"""Where one token of a sample comes from, and why it trains or does not.

Everything is read from the records themselves, so any consumer can ask.
"""

from collections.abc import Sequence

from schemas.samples import LedgerRow, Sample, SessionClosed, TurnSpan


def tell_token(
    outcome: SessionClosed, samples: Sequence[Sample], sample: Sample, position: int
) -> str:
    """The story of the token at `position`, a line a fact."""
    if position >= sample.tokens.size:
        return f"sample {sample.index + 1} has {sample.tokens.size} tokens, from 0"
    lines = [
        f"token {int(sample.tokens[position])} at {position} of {sample.tokens.size}",
        f"session {sample.session_id}, sample {sample.index + 1} of {sample.count}, "
        f"policy {sample.policy}",
    ]
    span = next((s for s in sample.turns if s.start <= position < s.end), None)
    if span is None:
        following = next((s for s in sample.turns if position < s.start), None)
        whose = f"the prompt of turn {following.turn_id}" if following else "the prompt"
        return "\n".join([*lines, f"given, not sampled: in {whose}"])
    lines.append(f"sampled by turn {span.turn_id} ({span.attach}), token {position - span.start}")
    lines += [
        f"weight version {version}"
        for version, start, end in sample.weight_versions or ()
        if start <= position < end
    ]
    if any(start <= position < end for start, end in sample.loss_mask):
        lines.append(f"trains, logprob {float(sample.logprobs[position]):.6g}")
    else:
        lines.append(_why_not(outcome, samples, sample, span))
    return "\n".join(lines)


def _why_not(
    outcome: SessionClosed, samples: Sequence[Sample], sample: Sample, span: TurnSpan
) -> str:
    for other in samples:
        same = next((s for s in other.turns if s.turn_id == span.turn_id), None)
        if other is sample or same is None:
            continue
        if any(same.start <= start < same.end for start, _ in other.loss_mask):
            return f"context here: it trains in sample {other.index + 1}"
    row: LedgerRow = next(row for row in outcome.ledger if row.turn_id == span.turn_id)
    reasons = ", ".join(f"{reason} ({tokens})" for reason, tokens in row.untrained.items())
    return f"does not train: {reasons or 'context'}"
