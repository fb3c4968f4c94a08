"""The last word on a session: its samples, its one outcome, and what must be remembered.

Invariants: the ledger's sums always match; a session that may not train gives an outcome and
no sample; samples too large for the log are left out *before* the reward is shared.
"""

from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from schemas.events import EndReason, EndStatus
from schemas.record import NOT_GIVEN
from schemas.samples import LedgerRow, Sample, SessionClosed
from schemas.traces import Trace
from streams.core.assembly import encoded_bytes, sample_id, sequence
from streams.core.linearize import Segment, leave_out, linearize
from streams.core.rewards import share
from streams.core.state import Marker, OpenSession, Rules
from streams.core.tracing import leaves_trace, trace_of
from streams.errors import BadEvent

_LEDGER_ROW_BYTES = 150
_SAMPLE_ID_BYTES = 34
_REASON_CHARS_MAX = 20_000

Withheld = Literal["rejected", "eval", "status", "no_reward", "gap"]


@dataclass(frozen=True, slots=True)
class Close:
    """What a close gives: records in order of emission, then the marker."""

    samples: tuple[Sample, ...]
    outcome: SessionClosed
    marker: Marker
    refusals: tuple[BadEvent, ...] = ()
    """One for everything that was too large."""
    trace: Trace | None = None


def close(
    session: OpenSession,
    *,
    position: int,
    unended_status: EndStatus,
    rules: Rules,
    implied: bool = False,
) -> Close:
    """Close a session; `unended_status` is for one that never said how it ended."""
    ended = session.ended
    status: EndStatus = ended.end_status if ended is not None else unended_status
    session.rewards.fall_back_to(rules.default_reward)
    gaps = session.numbering.missing(ended.turns if ended is not None else None)
    withheld = withheld_reason(session, status, gaps)
    segments, fates = linearize(session.tree, withheld, _prefix(session, gaps))
    segments, refusals = _fitting(session, segments)
    samples = _samples(session, segments, status)
    ledger = [fate.row() for fate in fates]
    outcome = SessionClosed(
        session_id=session.session_id,
        **session.identity,
        sample_ids=[sample.sample_id for sample in samples],
        end_status=status,
        policy=session.policy.label,
        turns=len(session.tree.turns),
        generated=sum(row.generated for row in ledger),
        trained=sum(row.trained for row in ledger),
        ledger=ledger,
        withheld=withheld,
        reason=ended.reason if ended is not None else None,
        finish_reason=ended.finish_reason if ended is not None else None,
        accepted=ended.accepted if ended is not None else True,
        will_retry=ended.will_retry if ended is not None else False,
        reward=session.rewards.value,
        reward_payload=session.rewards.payload,
        reward_invalid=session.rewards.invalid,
        metadata=session.metadata,
        final_message=ended.final_message if ended is not None else NOT_GIVEN,
        duplicates=session.duplicates,
        ignored=session.ignored,
        refused=session.refused,
        gaps=gaps,
        lost=len(session.undelivered - session.tree.turns.keys()),
        implied_end=implied,
    )
    outcome, left_out = _fitting_outcome(outcome, session.limits.sample_bytes)
    refusals += left_out
    trace = None
    if leaves_trace(outcome, rules.trace_share):
        trace = trace_of(session, outcome, samples, segments)
    marker = _marker(session, samples, position)
    return Close(tuple(samples), outcome, marker, tuple(refusals), trace)


def close_after_failure(session: OpenSession, *, position: int, failure: str) -> Close:
    """The outcome of a session whose events this code cannot handle: no sample, status error."""
    rows = [
        LedgerRow(
            turn_id=turn.event.turn_id,
            attach=turn.attach,
            generated=turn.generated,
            trained=0,
            untrained={"status": turn.generated} if turn.generated else {},
        )
        for turn in session.tree.turns.values()
    ]
    outcome = SessionClosed(
        session_id=session.session_id,
        **session.identity,
        sample_ids=[],
        end_status="error",
        policy=session.policy.label,
        turns=len(rows),
        generated=sum(row.generated for row in rows),
        trained=0,
        ledger=rows,
        withheld="core_failure",
        reason=EndReason(
            stage="processor", category="core_failure", message=failure, retryable=False
        ),
        accepted=session.ended is None or session.ended.accepted,
        will_retry=session.ended is not None and session.ended.will_retry,
        reward=session.rewards.value,
        reward_payload=session.rewards.payload,
        reward_invalid=session.rewards.invalid,
        metadata=session.metadata,
        duplicates=session.duplicates,
        ignored=session.ignored,
        refused=session.refused,
    )
    outcome, left_out = _fitting_outcome(outcome, session.limits.sample_bytes)
    return Close((), outcome, _marker(session, [], position), tuple(left_out))


def withheld_reason(session: OpenSession, status: EndStatus, gaps: int) -> Withheld | None:
    """Why no turn of the session may train, in order of precedence."""
    policy, ended = session.policy, session.ended
    if status == "rejected" or (ended is not None and (ended.will_retry or not ended.accepted)):
        return "rejected"
    if session.identity.get("split") == "eval" and not policy.eval_samples:
        return "eval"
    if status not in policy.train_statuses:
        return "status"
    if policy.require_reward and session.rewards.value is None:
        return "no_reward"
    if gaps and policy.gaps == "reject":
        return "gap"
    return None


def _prefix(session: OpenSession, gaps: int) -> int | None:
    """How many turns came before the first that is behind a hole, if only those may train."""
    if not gaps or session.policy.gaps != "prefix":
        return None
    numbering = session.numbering
    holes = {source: numbering.first_missing(source) for source in numbering.seen}
    behind = [
        turn.order
        for turn in session.tree.turns.values()
        if turn.event.source in holes and (turn.event.seq or 0) > holes[turn.event.source or ""]
    ]
    return min(behind, default=None)


def _fitting(session: OpenSession, segments: list[Segment]) -> tuple[list[Segment], list[BadEvent]]:
    fitting: list[Segment] = []
    refusals: list[BadEvent] = []
    room = session.limits.sample_bytes - len(bytes(session.rewards.payload))
    for segment in segments:
        # Too large by its channels: that costs the channels, not the sample.
        forms = (segment, replace(segment, channels=False))
        fits = next((form for form in forms if encoded_bytes(form) <= room), None)
        if fits is not None:
            fitting.append(fits)
            continue
        leave_out(segment)
        size = encoded_bytes(segment) + session.limits.sample_bytes - room
        detail = f"a sample of {size} bytes is over the limit of {session.limits.sample_bytes}"
        turn_id = segment.last.event.turn_id
        refusals.append(
            BadEvent("oversize", detail, session_id=session.session_id, turn_id=turn_id)
        )
    return fitting, refusals


def _fitting_outcome(outcome: SessionClosed, limit: int) -> tuple[SessionClosed, list[BadEvent]]:
    """The outcome without what makes it too large; that still stands in the session's events."""
    parts = ("final_message", "metadata", "reward_payload")
    sizes = {name: len(bytes(getattr(outcome, name))) for name in parts}
    outcome = _with_short_reasons(outcome)
    turns = sum(len(row.turn_id) + _LEDGER_ROW_BYTES for row in outcome.ledger)
    left = turns + _SAMPLE_ID_BYTES * len(outcome.sample_ids) + sum(sizes.values())
    refusals: list[BadEvent] = []
    for name, size in sorted(sizes.items(), key=lambda part: -part[1]):
        if left <= limit or not size:
            break
        left -= size
        outcome = msgspec.structs.replace(outcome, **{name: NOT_GIVEN})
        detail = f"`{name}`, {size} bytes, is left out of an outcome over the limit of {limit}"
        refusals.append(BadEvent("oversize", detail, session_id=outcome.session_id))
    return outcome, refusals


def _with_short_reasons(outcome: SessionClosed) -> SessionClosed:
    """Free texts cut to what a person reads."""
    reason, finish = outcome.reason, outcome.finish_reason
    if reason is not None:
        names = ("stage", "category", "type", "message")
        texts = {name: getattr(reason, name) for name in names}
        cut = {name: text[:_REASON_CHARS_MAX] for name, text in texts.items() if text}
        reason = msgspec.structs.replace(reason, **cut)
    return msgspec.structs.replace(
        outcome, reason=reason, finish_reason=finish and finish[:_REASON_CHARS_MAX]
    )


def _samples(session: OpenSession, segments: list[Segment], status: EndStatus) -> list[Sample]:
    rewards, policy = session.rewards, session.policy
    label = policy.label
    reward = share(rewards.value, len(segments), policy.reward_share) if segments else None
    return [
        Sample(
            session_id=session.session_id,
            rollout_id=session.session_id,
            **session.identity,
            sample_id=sample_id(session.session_id, label, segment.last.event.turn_id),
            index=index,
            count=len(segments),
            reward=reward,
            session_reward=rewards.value,
            reward_payload=rewards.payload,
            turn_rewards=rewards.of([turn.event.turn_id for turn in segment.turns]),
            policy=label,
            revision=0,
            end_status=status,
            **sequence(segment),
        )
        for index, segment in enumerate(segments)
    ]


def _marker(session: OpenSession, samples: list[Sample], position: int) -> Marker:
    in_samples = {span.turn_id for sample in samples for span in sample.turns}
    return Marker(
        session_id=session.session_id,
        key=session.identity.get("group_id") or session.session_id,
        first=session.first,
        closed_at=position,
        samples=[(s.sample_id, [span.turn_id for span in s.turns]) for s in samples],
        other_turns=[turn_id for turn_id in session.tree.turns if turn_id not in in_samples],
        reward_share=session.policy.reward_share,
        rewards=session.rewards,
    )
