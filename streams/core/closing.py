"""The last word on a session: its samples, its one outcome, and what must be remembered.

Invariants: the ledger's sums always match; a session that may not train gives an outcome and
no sample; samples too large for the log are left out *before* the reward is shared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

import msgpack
import msgspec
import numpy as np

from schemas import codec
from schemas.events import EndReason, EndStatus
from schemas.record import NOT_GIVEN
from schemas.samples import LedgerRow, Sample, SessionClosed
from schemas.traces import Trace
from streams.core.assembly import Planned, Samples, own_fields, sample_id
from streams.core.limits import Limits
from streams.core.linearize import Segment, leave_out, linearize
from streams.core.record_budget import SAMPLE_ID
from streams.core.rewards import share
from streams.core.sample_size import SampleSizes, number_bytes
from streams.core.state import Marker, OpenSession, Rules
from streams.core.tracing import leaves_trace, trace_of
from streams.errors import BadEvent

_REASON_CHARS_MAX = 20_000
_FAILURE_CHARS_MAX = 1_000
_DIGEST_BYTES = 16
_OVERSIZE_TOLD_MAX = 10
_MARKER_FIELDS_BYTES = 4_096
"""Of a marker without turns, rewards by id and payload."""
_NO_IDS = np.empty(0, np.int32)
_NO_LOGPROBS = np.empty(0, np.float32)

Withheld = Literal["rejected", "eval", "status", "no_reward", "gap"]


@dataclass(frozen=True, slots=True)
class Close:
    """What a close gives: records in order of emission, then the marker."""

    samples: Samples
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
    # Behind the budget of events nothing was counted, so nothing is missing there.
    named = ended.turns if ended is not None and not session.full else None
    gaps = session.numbering.missing(named)
    withheld = withheld_reason(session, status, gaps)
    segments, fates = linearize(session.tree, withheld, _prefix(session, gaps))
    samples, refusals = _samples(session, segments, status, rules.limits.record_bytes)
    ledger = [fate.row() for fate in fates]
    ledger += session.refused_turns.ledger(withheld)
    outcome = SessionClosed(
        session_id=session.session_id,
        **session.identity,
        sample_ids=[sample.sample_id for sample in samples.planned],
        end_status=status,
        policy=session.policy.label,
        turns=len(session.tree.turns) + len(session.refused_turns),
        generated=sum(row.generated for row in ledger) + session.refused_turns.unnamed_generated,
        trained=sum(row.trained for row in ledger),
        ledger=ledger,
        ledger_omitted=session.refused_turns.unnamed,
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
        lost=len(
            session.undelivered - session.tree.turns.keys() - session.refused_turns.named.keys()
        ),
        implied_end=implied,
    )
    limit = min(session.limits.sample_bytes, rules.limits.record_bytes)
    outcome, left_out = _fitting_outcome(outcome, limit)
    refusals += left_out
    marker = _marker(session, samples, position)
    if (failure := _too_large(outcome, marker, rules.limits.record_bytes)) is not None:
        return close_with_totals(outcome, marker, failure, refusals)
    trace = None
    if leaves_trace(outcome, rules.trace_share):
        trace = trace_of(session, outcome, samples)
    return Close(samples, outcome, marker, tuple(refusals), trace)


def close_after_failure(
    session: OpenSession, *, position: int, failure: str, limits: Limits
) -> Close:
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
    rows += session.refused_turns.ledger("status")
    outcome = SessionClosed(
        session_id=session.session_id,
        **session.identity,
        sample_ids=[],
        end_status="error",
        policy=session.policy.label,
        turns=len(rows) + session.refused_turns.unnamed,
        generated=sum(row.generated for row in rows) + session.refused_turns.unnamed_generated,
        trained=0,
        ledger=rows,
        ledger_omitted=session.refused_turns.unnamed,
        withheld="core_failure",
        reason=_core_failure(failure),
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
    limit = min(session.limits.sample_bytes, limits.record_bytes)
    outcome, left_out = _fitting_outcome(outcome, limit)
    marker = _marker(session, Samples(), position)
    if (too_large := _too_large(outcome, marker, limits.record_bytes)) is not None:
        return close_with_totals(outcome, marker, f"{failure}; {too_large}", left_out)
    return Close(Samples(), outcome, marker, tuple(left_out))


def close_with_totals(
    outcome: SessionClosed, marker: Marker, failure: str, refusals: Sequence[BadEvent] = ()
) -> Close:
    """The close in place of one whose records the log does not take: totals only.

    Both records then have no list and no text of the session's own but names of bounded length.
    """
    totals = msgspec.structs.replace(
        outcome,
        sample_ids=[],
        end_status="error",
        trained=0,
        ledger=[],
        ledger_omitted=outcome.turns,
        withheld="core_failure",
        reason=_core_failure(failure),
        finish_reason=None,
        reward_payload=NOT_GIVEN,
        metadata=NOT_GIVEN,
        final_message=NOT_GIVEN,
    )
    refusal = BadEvent("core_failure", failure, session_id=outcome.session_id)
    return Close(Samples(), totals, marker_of_totals(marker), (*refusals, refusal))


def marker_of_totals(marker: Marker) -> Marker:
    """A marker without a name of a turn or a reward."""
    turn_ids = [turn_id for _, turns in marker.samples for turn_id in turns] + marker.other_turns
    digest = blake2b(msgpack.packb(turn_ids), digest_size=_DIGEST_BYTES).hexdigest()
    rewards = msgspec.structs.replace(
        marker.rewards,
        payload=NOT_GIVEN,
        of_turns={},
        judged_turns=set(),
        seen=set(),
        seen_judged=set(),
    )
    return msgspec.structs.replace(
        marker, samples=[], other_turns=[], rewards=rewards, turns_digest=digest
    )


def _too_large(outcome: SessionClosed, marker: Marker, limit: int) -> str | None:
    """What of the two the log would not take, if either."""
    for name, size in (
        ("outcome", len(codec.to_msgpack(outcome))),
        ("marker", len(msgspec.json.encode(marker))),
    ):
        if size > limit:
            return f"the session's {name} has {size} bytes, the limit is {limit}"
    return None


def _core_failure(failure: str) -> EndReason:
    return EndReason(
        stage="processor",
        category="core_failure",
        message=failure[:_FAILURE_CHARS_MAX],
        retryable=False,
    )


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


def _samples(
    session: OpenSession, segments: Sequence[Segment], status: EndStatus, record_bytes: int
) -> tuple[Samples, list[BadEvent]]:
    """The samples that fit, by what each would take on the wire, and what is said of the others.

    Decided before any is built: the reward is shared, and `count` counted, among these alone.
    """
    if not segments:
        return Samples(), []
    shared = _shared(session, status)
    like = Sample(
        **shared,
        reward=session.rewards.value,
        sample_id=SAMPLE_ID,
        index=0,
        count=0,
        prompt_len=0,
        loss_mask=[],
        tokens=_NO_IDS,
        logprobs=_NO_LOGPROBS,
    )
    sizes = SampleSizes(like, session.rewards.of_turns)
    chosen, left_out = _chosen(session, segments, sizes, _room_for_names(session, record_bytes))
    if not chosen:
        return Samples(), left_out
    shared["reward"] = share(session.rewards.value, len(chosen), session.policy.reward_share)
    for planned in chosen:
        planned.own["count"] = len(chosen)
    return Samples(chosen, shared, session.rewards), left_out


def _chosen(
    session: OpenSession, segments: Sequence[Segment], sizes: SampleSizes, names_left: int
) -> tuple[list[Planned], list[BadEvent]]:
    limits, refusals = session.limits, _Oversize(session.session_id)
    chosen: list[Planned] = []
    spent = 0
    for number, segment in enumerate(segments):
        planned = _planned(session, segment, sizes, len(chosen), len(segments))
        repeated, why = sizes.above(segment.owned[0].turn).name_bytes, None
        if planned.encoded_bytes > limits.sample_bytes:
            why = f"is over the limit of {limits.sample_bytes}"
        elif repeated > names_left:
            why = "goes on from more turns than the marker has room to name again"
        if why is not None:
            refusals.add(planned, why)
            leave_out(segment)
            continue
        names_left -= repeated
        spent += planned.encoded_bytes
        if spent > limits.sample_bytes_total:
            refusals.add(planned, f"is over what is left of {limits.sample_bytes_total} in all")
            for unsent in segments[number:]:
                leave_out(unsent)
            refusals.more += len(segments) - number - 1
            break
        chosen.append(planned)
    # Its number among all is what it was measured with; it may take more bytes than its own.
    spare = number_bytes(len(segments)) - number_bytes(len(chosen))
    return [replace(p, encoded_bytes=p.encoded_bytes - spare) for p in chosen], refusals.told()


def _room_for_names(session: OpenSession, record_bytes: int) -> int:
    """What the marker has left: it names turns again in each sample that goes on from them."""
    payload = len(bytes(session.rewards.payload))
    return record_bytes - session.records.marker - payload - _MARKER_FIELDS_BYTES


def _planned(
    session: OpenSession, segment: Segment, sizes: SampleSizes, index: int, count: int
) -> Planned:
    """One sample; too large by its channels costs the channels, not the sample."""
    sums, place = sizes.sums(segment.last), {"index": index, "count": count}
    channels = True
    own = own_fields(segment, sums, channels=True) | place
    size = sizes.of(own, segment.last.end, sums, channels=True)
    if size > session.limits.sample_bytes and sums.channels:
        channels = False
        own = own_fields(segment, sums, channels=False) | place
        size = sizes.of(own, segment.last.end, sums, channels=False)
    return Planned(
        segment=segment,
        sample_id=sample_id(session.session_id, session.policy.label, segment.last.event.turn_id),
        own=own,
        encoded_bytes=size,
        channels=channels,
    )


def _shared(session: OpenSession, status: EndStatus) -> dict[str, Any]:
    return {
        "session_id": session.session_id,
        "rollout_id": session.session_id,
        **session.identity,
        "session_reward": session.rewards.value,
        "reward_payload": session.rewards.payload,
        "policy": session.policy.label,
        "revision": 0,
        "end_status": status,
    }


class _Oversize:
    """What is said of samples that are left out: the first few one by one, then their number."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._told: list[BadEvent] = []
        self.more = 0

    def add(self, planned: Planned, why: str) -> None:
        if len(self._told) == _OVERSIZE_TOLD_MAX:
            self.more += 1
            return
        detail = f"a sample of {planned.encoded_bytes} bytes {why}"
        turn_id = planned.segment.last.event.turn_id
        self._told.append(
            BadEvent("oversize", detail, session_id=self._session_id, turn_id=turn_id)
        )

    def told(self) -> list[BadEvent]:
        if not self.more:
            return self._told
        detail = f"{self.more} more samples are left out for the same reasons"
        return [*self._told, BadEvent("oversize", detail, session_id=self._session_id)]


def _fitting_outcome(outcome: SessionClosed, limit: int) -> tuple[SessionClosed, list[BadEvent]]:
    """The outcome without what makes it too large; that still stands in the session's events."""
    parts = ("final_message", "metadata", "reward_payload")
    sizes = {name: len(bytes(getattr(outcome, name))) for name in parts}
    outcome = _with_short_reasons(outcome)
    refusals: list[BadEvent] = []
    for name, size in sorted(sizes.items(), key=lambda part: -part[1]):
        if not size or len(codec.to_msgpack(outcome)) <= limit:
            break
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


def _marker(session: OpenSession, samples: Samples, position: int) -> Marker:
    turns = [
        (planned.sample_id, [turn.event.turn_id for turn in planned.segment.turns()])
        for planned in samples.planned
    ]
    in_samples = {turn_id for _, turn_ids in turns for turn_id in turn_ids}
    return Marker(
        session_id=session.session_id,
        key=session.identity.get("group_id") or session.session_id,
        first=session.first,
        closed_at=position,
        samples=turns,
        other_turns=[
            turn_id
            for turn_id in (*session.tree.turns, *session.refused_turns.named)
            if turn_id not in in_samples
        ],
        reward_share=session.policy.reward_share,
        rewards=session.rewards,
    )
