"""Events that come after a session's outcome: rewards revise its samples, the rest is late.

A judged reward that comes after a given one changes nothing and revises nothing.

Invariant: the revision at a position is the fold of the marker and the late rewards up to that
position, so a replayed reward gives the same revision again, byte for byte.
"""

from schemas.events import Event, Reward, Turn
from schemas.samples import SampleRevised
from streams.core.effects import EVENT_ROW, NOTHING, Effects
from streams.core.rewards import RewardBook, share
from streams.core.state import ClosedSession
from streams.errors import BadEvent


def apply_late(state: ClosedSession, event: Event, position: int) -> tuple[ClosedSession, Effects]:
    """What an event does to a closed session."""
    marker = state.marker
    if position <= marker.closed_at:
        return state, NOTHING
    try:
        if isinstance(event, Reward):
            return _reward(state, event, position)
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


def _reward(state: ClosedSession, event: Reward, position: int) -> tuple[ClosedSession, Effects]:
    marker = state.marker
    book = _book_before(state, position)
    if event.reward_id in book.seen:
        return state, Effects(ignored=True)
    revised = [
        (sample_id, turns)
        for sample_id, turns in marker.samples
        if event.turn_id is None or event.turn_id in turns
    ]
    if not revised:
        detail = "the session is closed and no sample of it can be revised; replay its log with "
        detail += "the reward in time, or under a default reward"
        raise BadEvent("late_reward", detail)
    counts = book.would_count(event)
    if event.origin == "judged" and not counts:
        return state, Effects(ignored=True)
    if event.reward_invalid:
        raise BadEvent("invalid_field", "a late reward that is not a finite number")
    book.add(event)
    value = share(book.value, len(marker.samples), marker.reward_share)
    revisions = tuple(
        SampleRevised(
            session_id=marker.session_id,
            sample_id=sample_id,
            revision=position,
            reward=value,
            session_reward=book.value,
            reward_payload=book.payload,
            turn_rewards=book.of(turns),
        )
        for sample_id, turns in revised
    )
    if position > state.newest:
        state.late.append((position, event))
    return state, Effects(row=EVENT_ROW, revisions=revisions)


def _book_before(state: ClosedSession, position: int) -> RewardBook:
    if position > state.newest:
        return state.rewards
    book = state.marker.rewards.copy()
    for at, late in state.late:
        if at < position:
            book.add(late)
    return book
