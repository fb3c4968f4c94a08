"""Events that come after a session's outcome: rewards revise its samples, the rest is late.

A judged reward that comes after a given one changes nothing and revises nothing.

Invariant: the revision at a position is the fold of the marker and the late rewards up to that
position, so a replayed reward gives the same revision again, byte for byte.
"""

from schemas import codec
from schemas.events import Event, Reward, Turn
from schemas.samples import SampleRevised
from streams.core.effects import EVENT_ROW, NOTHING, Effects
from streams.core.event_bytes import reward_bytes
from streams.core.limits import DEFAULT_LIMITS, Limits
from streams.core.record_budget import SAMPLE_ID
from streams.core.rewards import RewardBook, ScoredReward, share
from streams.core.state import ClosedSession, Marker
from streams.errors import BadEvent


def apply_late(
    state: ClosedSession, event: Event, position: int, limits: Limits = DEFAULT_LIMITS
) -> tuple[ClosedSession, Effects]:
    """What an event does to a closed session."""
    marker = state.marker
    if position <= marker.closed_at:
        return state, NOTHING
    try:
        if isinstance(event, Reward):
            return _reward(state, event, position, limits)
        if isinstance(event, Turn) and event.turn_id not in state.turn_ids:
            raise BadEvent("late_turn", "the session is closed; the turn cannot train")
    except BadEvent as error:
        error.session_id = marker.session_id
        error.turn_id = getattr(event, "turn_id", None)
        return state, Effects(refusals=(error,))
    except Exception as error:  # a defect of ours costs this event, never the worker
        failure = f"{type(error).__name__}: {error}"[:1000]
        refusal = BadEvent("core_failure", failure, session_id=marker.session_id)
        return state, Effects(refusals=(refusal,))
    return state, Effects(ignored=True)


def read_back(state: ClosedSession, event: Reward, position: int) -> None:
    """Fold in a late reward whose row was kept, without building what it led to."""
    reward = ScoredReward.of(event)
    state.rewards.fold(reward)
    _keep(state, reward, position, state.rewards)


def _reward(
    state: ClosedSession, event: Reward, position: int, limits: Limits
) -> tuple[ClosedSession, Effects]:
    marker = state.marker
    again = position <= state.newest
    book = _book_before(state, position)
    reward = ScoredReward.of(event)
    if book.knows(reward):
        return state, Effects(ignored=True)
    revised = state.sizes.samples_of(event.turn_id)
    if not revised:
        detail = "the session is closed and no sample of it can be revised; replay its log with "
        detail += "the reward in time, or under a default reward"
        raise BadEvent("late_reward", detail)
    if event.origin == "judged" and not book.would_count(reward):
        return state, Effects(ignored=True)
    if event.reward_invalid:
        raise BadEvent("invalid_field", "a late reward that is not a finite number")
    kept = again and any(at == position for at, _ in state.late)
    if not kept:
        _check_budgets(state, reward, len(revised), limits)
    book = book.copy()
    book.fold(reward)
    revisions = tuple(
        _revision(marker, *marker.samples[index], book, position) for index in revised
    )
    if not kept:
        _check_sizes(state, revisions, limits)
    if not again:
        _keep(state, reward, position, book)
    return state, Effects(row=EVENT_ROW, revisions=revisions)


def _keep(state: ClosedSession, reward: ScoredReward, position: int, book: RewardBook) -> None:
    """Remember a late reward that `book` has."""
    if reward.turn_id is not None and reward.turn_id in book.of_turns:
        state.sizes.add(reward.turn_id)
    revised = state.sizes.samples_of(reward.turn_id)
    plain = _revision(state.marker, SAMPLE_ID, [], book, position)
    state.revised_bytes += state.sizes.of(revised, len(codec.to_msgpack(plain)))
    state.late.append((position, reward))
    state.late_bytes += reward_bytes(reward.payload)
    state.rewards = book


def _revision(
    marker: Marker, sample_id: str, turn_ids: list[str], book: RewardBook, position: int
) -> SampleRevised:
    return SampleRevised(
        session_id=marker.session_id,
        sample_id=sample_id,
        revision=position,
        reward=share(book.value, len(marker.samples), marker.reward_share),
        session_reward=book.value,
        reward_payload=book.payload,
        turn_rewards=book.of(turn_ids),
    )


def _check_budgets(
    state: ClosedSession, reward: ScoredReward, revised: int, limits: Limits
) -> None:
    """Before anything is made of it: rewards and the bytes that each revision repeats."""
    if len(state.late) >= limits.late_rewards:
        detail = f"the session has {len(state.late)} late rewards, its budget is "
        detail += f"{limits.late_rewards}"
        raise BadEvent("oversize", detail)
    payload = len(bytes(reward.payload))
    if payload > limits.metadata_bytes:
        detail = f"the reward's payload is over the limit of {limits.metadata_bytes} bytes"
        raise BadEvent("oversize", detail)
    kept = state.late_bytes + reward_bytes(reward.payload)
    if kept > limits.late_reward_bytes:
        detail = f"the session's late rewards would take {kept} bytes, the budget is "
        detail += f"{limits.late_reward_bytes}"
        raise BadEvent("oversize", detail)
    _check_total(state, payload * revised, limits)


def _check_sizes(
    state: ClosedSession, revisions: tuple[SampleRevised, ...], limits: Limits
) -> None:
    total = 0
    for revision in revisions:
        size = len(codec.to_msgpack(revision))
        if size > limits.record_bytes:
            detail = f"a revision of {size} bytes is over the limit of {limits.record_bytes}"
            raise BadEvent("oversize", detail)
        total += size
        _check_total(state, total, limits)


def _check_total(state: ClosedSession, size: int, limits: Limits) -> None:
    total = state.revised_bytes + size
    if total > limits.sample_bytes_total:
        detail = f"the session's revisions would take {total} bytes, the limit is "
        detail += f"{limits.sample_bytes_total}"
        raise BadEvent("oversize", detail)


def _book_before(state: ClosedSession, position: int) -> RewardBook:
    if position > state.newest:
        return state.rewards
    book = state.marker.rewards.copy()
    for at, late in state.late:
        if at < position:
            book.fold(late)
    return book
