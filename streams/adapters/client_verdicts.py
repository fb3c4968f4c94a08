"""The verdicts on a group, given at once when all of it is judged.

    gateway.rewards({"s-1": 1.0, "s-2": 0.0}, of=[first, second])

Each goes to the session that it names; the order of neither matters. Before anything is sent it is
seen that every session has one, that no other is named, and that each is a number.

Invariant: the same verdict given again is the same reward, so a call that failed half way is made
again as it was; none is ever given to another session than the one it names.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

from streams.adapters.client_session import KnownSession, Reward
from streams.adapters.client_steps import Steps, checked_reward
from streams.adapters.client_weights import ControlCalls

_NAMED_MAX = 10


class VerdictCalls(ControlCalls):
    """The part of the control API that is for whoever judges groups."""

    def rewards(self, verdicts: Mapping[str, Reward], *, of: Sequence[KnownSession]) -> None:
        """Give every session of a group its reward.

        Args:
            verdicts: By session id: a finite number, or a mapping whose `score` is one.
            of: The sessions of the group, all of them; they may have ended.

        Raises:
            ValueError: a session has no verdict, one is named that is none of them, or a verdict
                is no finite number; nothing was sent.
            ControlRefused: the gateway does not take one.
            GatewayAway: no answer in time; give them again.
        """
        for steps in _each(verdicts, of):
            self.run(steps)

    async def rewards_async(
        self, verdicts: Mapping[str, Reward], *, of: Sequence[KnownSession]
    ) -> None:
        """As `rewards`, without holding up the event loop."""
        for steps in _each(verdicts, of):
            await self.run_async(steps)


def _each(verdicts: Mapping[str, Reward], of: Sequence[KnownSession]) -> Iterator[Steps]:
    _check(verdicts, Counter(session.session_id for session in of))
    for session in of:
        verdict = verdicts[session.session_id]
        yield session._rewarding(verdict, None, True, reward_id=_id(session.session_id, verdict))


def _check(verdicts: Mapping[str, Reward], sessions: Mapping[str, int]) -> None:
    wrong = {
        "without a verdict": [name for name in sessions if name not in verdicts],
        "not of this group": [name for name in verdicts if name not in sessions],
        "named twice": [name for name, times in sessions.items() if times > 1],
    }
    said = [f"{', '.join(names[:_NAMED_MAX])}: {what}" for what, names in wrong.items() if names]
    if said:
        counts = f"{len(verdicts)} verdicts for {sum(sessions.values())} sessions"
        raise ValueError(f"{counts}; {'; '.join(said)}: nothing was sent")
    for name, verdict in verdicts.items():
        try:
            checked_reward(verdict)
        except ValueError as error:
            raise ValueError(f"session {name}: {error}: nothing was sent") from None


def _id(session_id: str, verdict: Reward) -> str:
    words = json.dumps([session_id, checked_reward(verdict)], sort_keys=True, default=str)
    return blake2b(words.encode(), digest_size=16).hexdigest()
