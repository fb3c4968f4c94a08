"""What a session is worth so far, and each of its turns: which of several rewards counts.

    valid before invalid     a reward that is no finite number replaces no number
    given before judged      a judger's answer replaces nothing that somebody gave
    later before earlier     among rewards of one rank

Rewards come by id: a repeat of an id from the same origin changes nothing. Final is not a rank: a
final reward ends the waiting of a session, whichever reward then counts. A final one that is no
finite number ends it too: it is a verdict. The session then closes without samples, and a number
that comes later is a `late_reward`, since nothing is left to revise.

Invariant: adding the same rewards gives the same value in every order that keeps the order of the
given ones and that of the judged ones; redelivered or not.
"""

from typing import Any, NamedTuple

import msgspec

from schemas.checks import score
from schemas.events import Reward, RewardOrigin
from schemas.record import COUNT_MAX, NOT_GIVEN, json_text


class ScoredReward(NamedTuple):
    """A reward as it is held: its payload as text, which as objects takes many times as much."""

    reward_id: str | None
    turn_id: str | None
    origin: RewardOrigin
    number: float | None
    """None: it is no finite number."""
    payload: msgspec.Raw
    final: bool
    judged_ms: int | None

    @classmethod
    def of(cls, reward: Reward) -> "ScoredReward":
        """What the event says."""
        payload = NOT_GIVEN
        if isinstance(reward.reward, dict):
            payload = json_text(reward.reward)
        return cls(
            reward_id=reward.reward_id,
            turn_id=reward.turn_id,
            origin=reward.origin,
            number=score(reward.reward),
            payload=payload,
            final=reward.final,
            judged_ms=reward.judged_ms,
        )

    def event(self, session_id: str) -> Reward:
        """The event that says it."""
        given: Any = msgspec.json.decode(self.payload) if self.payload else self.number
        return Reward(
            session_id=session_id,
            reward_id=self.reward_id,
            turn_id=self.turn_id,
            origin=self.origin,
            reward=given,
            reward_invalid=self.number is None,
            final=self.final,
            judged_ms=self.judged_ms,
        )


class RewardBook(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Every reward folded in, in the order of the log."""

    value: float | None = None
    origin: RewardOrigin = "given"
    """Of the session reward that counts; also of all that was written before there were origins."""
    payload: msgspec.Raw = NOT_GIVEN
    has_final: bool = False
    """Some session reward was final, so nobody need wait for another."""
    invalid: bool = False
    """Session rewards were given, and none of them was a finite number."""
    default: bool = False
    """The value is the default of the rules: any reward replaces it."""
    of_turns: dict[str, float] = msgspec.field(default_factory=dict)
    judged_turns: set[str] = msgspec.field(default_factory=set)
    """Turns whose reward is a judger's."""
    seen: set[str] = msgspec.field(default_factory=set)
    """Ids of given rewards."""
    seen_judged: set[str] = msgspec.field(default_factory=set)
    """Ids of judged ones: an id that both use is two rewards."""
    judged_ms: int | None = None
    """What judging took so far, summed over rewards that say it."""

    def knows(self, reward: Reward | ScoredReward) -> bool:
        """Whether its id came before from the same origin."""
        return reward.reward_id in self._ids(reward.origin)

    def add(self, reward: Reward) -> None:
        """Fold one reward in; nothing happens if its id is known. No id: it is its own."""
        self.fold(ScoredReward.of(reward))

    def fold(self, reward: ScoredReward) -> None:
        """Fold one reward in."""
        if self.knows(reward):
            return
        if reward.reward_id is not None:
            self._ids(reward.origin).add(reward.reward_id)
        if reward.judged_ms is not None:
            self.judged_ms = min((self.judged_ms or 0) + reward.judged_ms, COUNT_MAX)
        counts = self.would_count(reward)
        if reward.turn_id is None:
            self.has_final = self.has_final or reward.final
        if not counts:
            return
        number, turn_id = reward.number, reward.turn_id
        if turn_id is None:
            self.value, self.origin, self.payload = number, reward.origin, reward.payload
            self.invalid, self.default = number is None, False
        elif number is not None:
            self.of_turns[turn_id] = number
            self.judged_turns.discard(turn_id)
            if reward.origin == "judged":
                self.judged_turns.add(turn_id)

    def would_count(self, reward: ScoredReward) -> bool:
        """Whether it replaces what counts now for its session or its turn."""
        turn_id = reward.turn_id
        if turn_id is None:
            known = not self.default and (self.value is not None or self.invalid)
            before = _rank(self.value, self.origin)
        else:
            known = turn_id in self.of_turns
            before = _rank(0.0, "judged" if turn_id in self.judged_turns else "given")
        return not known or _rank(reward.number, reward.origin) >= before

    def fall_back_to(self, default: float | None) -> None:
        """A session without a reward takes the default, and still says what was given."""
        if self.value is None:
            self.value, self.default = default, default is not None

    def of(self, turn_ids: list[str]) -> dict[str, float] | None:
        """The rewards of these turns, or none."""
        if not self.of_turns:
            return None
        return {k: self.of_turns[k] for k in turn_ids if k in self.of_turns} or None

    def copy(self) -> "RewardBook":
        """A book that can be added to without changing this one."""
        return msgspec.structs.replace(
            self,
            of_turns=dict(self.of_turns),
            judged_turns=set(self.judged_turns),
            seen=set(self.seen),
            seen_judged=set(self.seen_judged),
        )

    def _ids(self, origin: RewardOrigin) -> set[str]:
        return self.seen if origin == "given" else self.seen_judged


def _rank(number: float | None, origin: RewardOrigin) -> tuple[bool, bool]:
    return number is not None, origin == "given"


def share(value: float | None, samples: int, rule: str) -> float | None:
    """One sample's part of a session's reward."""
    if value is None:
        return None
    return value / samples if rule == "split" else value
