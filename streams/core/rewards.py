"""What a session is worth so far: the newest session reward, and the newest of each turn.

Rewards come by id: a repeat of an id changes nothing, another id replaces. A reward that was
given but is no finite number replaces too: the session then has none, and says so.

Invariant: adding the same rewards in the same order gives the same book, redelivered or not.
"""

from typing import Any

import msgspec

from schemas.checks import score
from schemas.record import COUNT_MAX, NOT_GIVEN, json_text


class RewardBook(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Every reward folded in, in the order of the log."""

    value: float | None = None
    payload: msgspec.Raw = NOT_GIVEN
    has_final: bool = False
    """Some session reward was final, so nobody need wait for another."""
    invalid: bool = False
    """The newest session reward was not a finite number."""
    of_turns: dict[str, float] = msgspec.field(default_factory=dict)
    seen: set[str] = msgspec.field(default_factory=set)
    judged_ms: int | None = None
    """What judging took so far, summed over rewards that say it."""

    def add(
        self,
        reward_id: str | None,
        reward: float | dict[str, Any] | None,
        *,
        turn_id: str | None = None,
        final: bool = True,
        judged_ms: int | None = None,
    ) -> None:
        """Fold one reward in; nothing happens if its id is known. No id: it is its own."""
        if reward_id in self.seen:
            return
        if reward_id is not None:
            self.seen.add(reward_id)
        if judged_ms is not None:
            self.judged_ms = min((self.judged_ms or 0) + judged_ms, COUNT_MAX)
        number = score(reward)
        if turn_id is not None:
            self.of_turns.pop(turn_id, None)
            if number is not None:
                self.of_turns[turn_id] = number
            return
        self.value = number
        self.payload = json_text(reward) if isinstance(reward, dict) else NOT_GIVEN
        self.has_final = self.has_final or final
        self.invalid = number is None

    def fall_back_to(self, default: float | None) -> None:
        """A session without a reward takes the default, and still says what was given."""
        if self.value is None:
            self.value = default

    def of(self, turn_ids: list[str]) -> dict[str, float] | None:
        """The rewards of these turns, or none."""
        if not self.of_turns:
            return None
        return {k: self.of_turns[k] for k in turn_ids if k in self.of_turns} or None

    def copy(self) -> "RewardBook":
        """A book that can be added to without changing this one."""
        return msgspec.structs.replace(self, of_turns=dict(self.of_turns), seen=set(self.seen))


def share(value: float | None, samples: int, rule: str) -> float | None:
    """One sample's part of a session's reward."""
    if value is None:
        return None
    return value / samples if rule == "split" else value
