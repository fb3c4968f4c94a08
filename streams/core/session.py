"""The life of a session: `(state, event, position) -> (state, effects)`.

    nothing ── session_opened, a self-contained turn, session_ended ──► open
    open    ── turns, rewards, undelivered ──► open
    open    ── session_ended, reward known or not needed ──► closed
    open    ── session_ended, reward pending ──► sealed ── final reward, expiry ──► closed
    closed  ── reward ──► closed, samples revised

Positions are the log's: an event at or below the newest row is a replay and changes nothing. A
bad event changes nothing but its count.

Invariants: exactly one outcome per session; what is emitted depends only on the events and
their order, never on how often they were delivered.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from schemas.bad_record import BadRecord
from schemas.events import (
    Event,
    Reward,
    SessionEnded,
    SessionExpired,
    SessionOpened,
    Turn,
    TurnUndelivered,
)
from schemas.record import IDENTITY_FIELDS
from streams.core.after_close import apply_late
from streams.core.closing import close, close_after_failure
from streams.core.effects import (
    DUPLICATE,
    EVENT_ROW,
    IGNORED,
    KEPT,
    NOTHING,
    Effects,
    closed_with,
    with_totals,
)
from streams.core.event_bytes import event_bytes, payload_bytes, turn_bytes
from streams.core.limits import Limits, limits_from
from streams.core.policy import Policy, policy_from
from streams.core.record_budget import (
    RecordBytes,
    check_turn,
    fits,
    of_refused_turn,
    of_reward_id,
    of_turn,
    of_turn_reward,
)
from streams.core.refused_turns import RefusedTurn
from streams.core.state import ClosedSession, OpenSession, Rules, State
from streams.core.tree import Tree
from streams.core.twins import check_twin
from streams.errors import BadEvent, BadPolicy

_IDENTITY = attrgetter(*IDENTITY_FIELDS)
_NO_IDENTITY = (None,) * len(IDENTITY_FIELDS)


class Row(NamedTuple):
    """What was kept of one event of an open session: the event, or only its code."""

    position: int
    event: Event | None
    code: str | None = None
    refused_turn: RefusedTurn | None = None
    """Beside the code of a turn over a budget."""


def apply(
    state: State, event: Event, position: int, rules: Rules, logged_ms: int | None = None
) -> tuple[State, Effects]:
    """The next state and what follows from the event. An open state given is used up."""
    if isinstance(state, ClosedSession):
        return apply_late(state, event, position, rules.limits)
    session = state
    if session is not None and (passed := _passed_over(session, event, position)) is not None:
        return session, passed
    try:
        if session is None:
            session = _begin(event, position, rules)
        if logged_ms is not None:
            _check_age(event, rules, logged_ms)
        effects = _step(session, event, position, rules, fresh=state is None)
    except BadEvent as error:
        error.session_id = getattr(event, "session_id", None)
        error.turn_id = getattr(event, "turn_id", None)
        refused = None
        if isinstance(event, Turn) and error.code == "oversize":
            refused = RefusedTurn.of(event, {} if session is None else session.identity)
        if session is None or (state is None and refused is None):
            return None, Effects(refusals=(error,))
        count(session, error.code, position, refused)
        return session, Effects(row=error.code, refused_turn=refused, refusals=(error,))
    except Exception as error:  # a defect of ours must cost this session, never the worker
        session = session or _empty(getattr(event, "session_id", ""), position, rules)
        effects = _failure(session, position, error, rules, getattr(event, "turn_id", None))
    if effects.marker is not None:
        return ClosedSession.of(effects.marker), effects
    if effects.row is not None:
        session.newest = position
    if effects.row == EVENT_ROW:
        session.rows += 1
    return session, effects


def restore(rows: Iterable[Row], rules: Rules, session_id: str) -> State:
    """An open session from the rows kept for it, in order."""
    state: State = None
    for row in rows:
        if state is None and row.refused_turn is not None:
            state = _empty(session_id, row.position, rules)
        if row.event is not None:
            state, _ = apply(state, _as_kept(row.event), row.position, rules)
        elif isinstance(state, OpenSession) and row.code is not None:
            count(state, row.code, row.position, row.refused_turn)
        if isinstance(state, OpenSession):
            # Rows of before there was a budget may be over it; they are rows all the same.
            state.newest = max(state.newest, row.position)
    return state


def _as_kept(event: Event) -> Event:
    """An end that was kept did not close, under whatever default it was written."""
    if isinstance(event, SessionEnded) and event.reward_pending is None:
        return msgspec.structs.replace(event, reward_pending=True)
    return event


def refuse(state: State, error: BadRecord, position: int) -> Effects:
    """An event that could not even be read: counted, if its session is known and open."""
    refusal = BadEvent(error.code, error.detail, session_id=error.session_id, turn_id=error.turn_id)
    if not isinstance(state, OpenSession) or position <= state.newest or state.full:
        return Effects(refusals=(refusal,))
    count(state, error.code, position)
    return Effects(row=error.code, refusals=(refusal,))


def count(
    session: OpenSession, code: str, position: int, refused: RefusedTurn | None = None
) -> None:
    """An event that changes nothing but its count; a turn over a budget also fills its number."""
    if code == DUPLICATE:
        session.duplicates += 1
    elif code == IGNORED:
        session.ignored += 1
    else:
        session.refused += 1
    if refused is not None:
        _refuse_turn(session, refused)
    session.rows += 1
    session.newest = position


def finish(session: OpenSession, rules: Rules) -> Effects:
    """Close a session as the end of a file does: completed, unless it said otherwise."""
    try:
        closing = close(
            session,
            position=session.newest,
            unended_status="completed",
            rules=rules,
            implied=session.ended is None,
        )
    except Exception as error:  # as in `apply`
        return _failure(session, session.newest, error, rules)
    return closed_with(closing)


def fail(session: OpenSession, position: int, failure: str, rules: Rules) -> Effects:
    """Close a session that has a record which the log does not take: totals only."""
    closing = close_after_failure(session, position=position, failure=failure, limits=rules.limits)
    return with_totals(closed_with(closing), failure)


def _begin(event: Event, position: int, rules: Rules) -> OpenSession:
    self_contained = isinstance(event, Turn) and event.base_turn_id is None
    if not self_contained and not isinstance(event, SessionOpened | SessionEnded):
        detail = "nothing is known of this session; it starts with session_opened, a turn with its "
        detail += "whole prompt, or session_ended"
        raise BadEvent("unknown_session", detail)
    session = _empty(getattr(event, "session_id", ""), position, rules)
    if isinstance(event, SessionOpened) and event.policy is not None and not rules.forced_policy:
        session.policy = session.tree.policy = _policy(event.policy, rules)
    return session


def _empty(session_id: str, position: int, rules: Rules) -> OpenSession:
    policy = rules.adjusted(rules.forced_policy or rules.default_policy)
    return OpenSession(
        session_id=session_id,
        policy=policy,
        limits=rules.limits,
        tree=Tree(policy, rules.limits),
        first=position,
        newest=position,
    )


def _step(
    session: OpenSession, event: Event, position: int, rules: Rules, *, fresh: bool
) -> Effects:
    if isinstance(event, SessionOpened):
        return _opened(session, event, position, rules, fresh=fresh)
    return _STEPS[type(event)](session, event, position, rules)


def _turn(session: OpenSession, event: Turn, position: int, _: Rules) -> Effects:
    known = session.tree.turns.get(event.turn_id)
    if known is not None:
        check_twin(session.tree, known, event)
        return _counted(session, DUPLICATE, position)
    if event.turn_id in session.refused_turns.named:
        return _counted(session, DUPLICATE, position)
    if session.ended is not None:
        raise BadEvent("late_turn", "the session has ended; the turn cannot train")
    identity = _merged_identity(session, event)
    _check_payload(event.reward, session.limits)
    kept_bytes = _with_event(session, turn_bytes(event))
    session.refused_turns.check_base(event, base_known=event.base_turn_id in session.tree.turns)
    records = session.records.plus(of_turn(event.turn_id))
    check_turn(records, session.limits.record_bytes)
    reward = _reward_of(event)
    if reward is not None:
        records = _with_reward(session, reward, records)
    recorded = session.tree.add(event)
    session.identity, session.records = identity, records
    session.event_bytes = kept_bytes
    session.numbering.add(event.source, event.seq)
    recorded.undelivered = recorded.undelivered or event.turn_id in session.undelivered
    if reward is not None:
        session.rewards.add(reward)
    return KEPT


def _reward(session: OpenSession, event: Reward, position: int, rules: Rules) -> Effects:
    if session.rewards.knows(event):
        return _counted(session, DUPLICATE, position)
    _check_payload(event.reward, session.limits)
    kept_bytes = _with_event(session, event_bytes(event))
    session.records = _with_reward(session, event, session.records)
    session.event_bytes = kept_bytes
    session.rewards.add(event)
    if session.ended is not None and event.turn_id is None and event.final:
        return _closed(session, position, rules)
    return KEPT


def _undelivered(
    session: OpenSession, event: TurnUndelivered, _position: int, _rules: Rules
) -> Effects:
    session.numbering.add(event.source, event.seq)
    if event.turn_id is not None:
        session.undelivered.add(event.turn_id)
        if (turn := session.tree.turns.get(event.turn_id)) is not None:
            turn.undelivered = True
    return KEPT


def _opened(
    session: OpenSession, event: SessionOpened, position: int, rules: Rules, *, fresh: bool
) -> Effects:
    if session.opened is not None:
        if event == session.opened:
            return _counted(session, DUPLICATE, position)
        raise BadEvent("invalid_field", "the session was opened before, with other fields")
    if not fresh and event.policy is not None and not rules.forced_policy:
        asked = _policy(event.policy, rules).label
        if asked != session.policy.label:
            detail = f"the session began under policy {session.policy.label}, not {asked}"
            raise BadEvent("invalid_field", detail)
    identity = _merged_identity(session, event)
    limits = limits_from(rules.limits, event.budgets)
    if len(bytes(event.metadata)) > limits.metadata_bytes:
        detail = f"`metadata` has {len(bytes(event.metadata))} bytes of {limits.metadata_bytes}"
        raise BadEvent("oversize", detail)
    session.identity, session.opened = identity, event
    session.limits = session.tree.limits = limits
    session.metadata = event.metadata
    return KEPT


def _ended(session: OpenSession, event: SessionEnded, position: int, rules: Rules) -> Effects:
    if session.ended is not None:
        return _counted(session, IGNORED, position)
    _check_payload(event.reward, session.limits)
    session.identity = _merged_identity(session, event)
    session.ended = event
    if event.reward is not None or event.reward_invalid:
        reward = Reward(
            session_id=session.session_id,
            reward_id="end",
            reward=event.reward,
            origin=event.reward_origin,
            judged_ms=event.judged_ms,
        )
        session.rewards.add(reward)
    if _waits_for_reward(session, event):
        return KEPT
    return _closed(session, position, rules)


def _waits_for_reward(session: OpenSession, end: SessionEnded) -> bool:
    """Whether a reward is to come: as the end says, else the opening, else by the status.

    A session that ran into its time limit often has nobody left who would give one, and would
    hold its group for the whole grace period.
    """
    pending = end.reward_pending
    if pending is None and session.opened is not None:
        pending = session.opened.reward_pending
    if pending is not None:
        return pending
    trains = end.end_status in session.policy.train_statuses
    return trains and end.end_status != "timeout" and not session.rewards.has_final


def _expired(session: OpenSession, event: SessionExpired, position: int, rules: Rules) -> Effects:
    if event.last_offset != session.newest:
        return Effects(ignored=True)
    return _closed(session, position, rules)


def _closed(session: OpenSession, position: int, rules: Rules) -> Effects:
    closing = close(
        session,
        position=position,
        unended_status="expired",
        rules=rules,
    )
    return closed_with(closing)


def _passed_over(session: OpenSession, event: Event, position: int) -> Effects | None:
    """What a replay leads to, or an event behind the budget of events: nothing that is kept."""
    if position <= session.newest:
        return NOTHING
    if not session.full or _may_close(session, event):
        return None
    detail = f"the session has {session.rows} events, its budget is {session.limits.events}; end it"
    turn_id = getattr(event, "turn_id", None)
    refusal = BadEvent("oversize", detail, session_id=session.session_id, turn_id=turn_id)
    return Effects(refusals=(refusal,))


def _may_close(session: OpenSession, event: Event) -> bool:
    if isinstance(event, Reward):
        return session.ended is not None and event.final and event.turn_id is None
    return isinstance(event, SessionEnded | SessionExpired)


def _refuse_turn(session: OpenSession, refused: RefusedTurn) -> None:
    session.identity = {**(refused.identity or {}), **session.identity}
    session.numbering.add(refused.source, refused.seq)
    records = session.records.plus(of_refused_turn(refused.turn_id))
    named = fits(records, session.limits.record_bytes)
    if named:
        session.records = records
    session.refused_turns.add(refused, named=named)


def _reward_of(turn: Turn) -> Reward | None:
    if turn.reward is None and not turn.reward_invalid:
        return None
    return Reward(
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        reward=turn.reward,
        origin=turn.reward_origin,
    )


def _with_reward(session: OpenSession, reward: Reward, records: RecordBytes) -> RecordBytes:
    """What the records take with one more reward; `oversize` if that is over a budget."""
    book, limits = session.rewards, session.limits
    total = len(book.seen) + len(book.seen_judged) + len(book.of_turns)
    if reward.reward_id is not None:
        total, records = total + 1, records.plus(of_reward_id(reward.reward_id))
    if reward.turn_id is not None and reward.turn_id not in book.of_turns:
        total, records = total + 1, records.plus(of_turn_reward(reward.turn_id))
    if total > limits.rewards:
        detail = f"the session would have {total} rewards, its budget is {limits.rewards}"
        raise BadEvent("oversize", detail)
    if not fits(records, limits.record_bytes):
        detail = f"what is remembered of the session would take up to {records.marker} bytes; "
        detail += f"a record of {limits.record_bytes} has no room for more rewards"
        raise BadEvent("oversize", detail)
    return records


def _with_event(session: OpenSession, size: int) -> int:
    """What the rows take with one more event; `oversize` if that is over the budget."""
    total, most = session.event_bytes + size, session.limits.event_bytes
    if total > most:
        detail = f"the session's events would take {total} bytes, its budget is {most}"
        raise BadEvent("oversize", detail)
    return total


def _counted(session: OpenSession, code: str, position: int) -> Effects:
    count(session, code, position)
    return Effects(row=code, ignored=True)


def _failure(
    session: OpenSession,
    position: int,
    error: Exception,
    rules: Rules,
    turn_id: str | None = None,
) -> Effects:
    failure = f"{type(error).__name__}: {error}"[:1000]
    refusal = BadEvent("core_failure", failure, session_id=session.session_id, turn_id=turn_id)
    closing = close_after_failure(session, position=position, failure=failure, limits=rules.limits)
    return closed_with(closing, refusal)


def _merged_identity(
    session: OpenSession, event: SessionOpened | Turn | SessionEnded
) -> dict[str, Any]:
    identity = session.identity
    given = _IDENTITY(event)
    if given == _NO_IDENTITY:
        return identity
    for name, value in zip(IDENTITY_FIELDS, given, strict=True):
        if value is None:
            continue
        if name not in identity:
            identity = {**identity, name: value}
        elif identity[name] != value:
            detail = f"`{name}` is {identity[name]!r:.80} in this session, the event says "
            detail += f"{value!r:.80}"
            raise BadEvent("invalid_field", detail)
    return identity


def _policy(asked: str | dict[str, Any], rules: Rules) -> Policy:
    try:
        return rules.adjusted(policy_from(asked))
    except BadPolicy as error:
        raise BadEvent("invalid_field", str(error)) from None


def _check_payload(reward: object, limits: Limits) -> None:
    if payload_bytes(reward) > limits.metadata_bytes:
        detail = f"the reward's payload is over the limit of {limits.metadata_bytes} bytes"
        raise BadEvent("oversize", detail)


def _check_age(event: Event, rules: Rules, logged_ms: int) -> None:
    if not isinstance(event, Turn) or event.finished_ms is None:
        return
    age = logged_ms - event.finished_ms
    if rules.turn_age_ms_max is not None and age > rules.turn_age_ms_max:
        detail = f"the turn was finished {age} ms before it was logged; the limit is "
        detail += f"{rules.turn_age_ms_max}"
        raise BadEvent("too_old", detail)


_STEPS: dict[type[Event], Callable[[OpenSession, Any, int, Rules], Effects]] = {
    Turn: _turn,
    Reward: _reward,
    TurnUndelivered: _undelivered,
    SessionEnded: _ended,
    SessionExpired: _expired,
}
