"""What is known of a session: open with its tree, or closed with what must be remembered.

An open session is owned by whoever feeds it: `session.apply` changes it in place and returns
it, so a 10,000-turn tree is never copied. It can be rebuilt at any time from the rows that
were kept for it. A closed session is small and frozen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from schemas.events import SessionEnded, SessionOpened
from schemas.record import NOT_GIVEN
from streams.core.gaps import Numbering
from streams.core.limits import DEFAULT_LIMITS, Limits
from streams.core.policy import PROFILES, Policy
from streams.core.record_budget import NO_BYTES, RecordBytes
from streams.core.refused_turns import RefusedTurns
from streams.core.rewards import RewardBook, ScoredReward
from streams.core.sample_size import turn_reward_bytes, turn_rewards_bytes
from streams.core.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for every session of a run of the core."""

    forced_policy: Policy | None = None
    """Given on a command line: beats what sessions ask for."""
    default_policy: Policy = PROFILES["seed"]
    default_reward: float | None = None
    """For sessions that end without a reward; none: they give no sample."""
    fork_threshold_tokens: int | None = None
    """Given on a command line: holds whatever policy a session has."""
    limits: Limits = DEFAULT_LIMITS
    trace_share: float = 0.0
    """Part of the sessions that leave a trace; above 0, failures and eval sessions all do."""
    turn_age_ms_max: int | None = None
    """A turn that was finished longer than this before it was logged is `too_old`."""

    def adjusted(self, policy: Policy) -> Policy:
        """A policy with what the command line fixes."""
        if self.fork_threshold_tokens is None:
            return policy
        return replace(policy, fork_threshold_tokens=self.fork_threshold_tokens)


@dataclass(slots=True, eq=False, kw_only=True)
class OpenSession:
    """A session that still takes events."""

    session_id: str
    policy: Policy
    limits: Limits
    tree: Tree
    first: int
    """Position of the session's first row."""
    newest: int
    """Position of its newest row; at or below it an event is a replay."""
    identity: dict[str, Any] = field(default_factory=dict)
    opened: SessionOpened | None = None
    metadata: msgspec.Raw = field(default_factory=lambda: NOT_GIVEN)
    rewards: RewardBook = field(default_factory=RewardBook)
    numbering: Numbering = field(default_factory=Numbering)
    ended: SessionEnded | None = None
    """Set while the session is sealed and waits for its reward."""
    undelivered: set[str] = field(default_factory=set)
    """Turns reported undelivered before they arrived."""
    refused_turns: RefusedTurns = field(default_factory=RefusedTurns)
    """Turns over a budget."""
    records: RecordBytes = NO_BYTES
    """What its outcome and marker take at most."""
    event_bytes: int = 0
    """Of the turns and rewards that are kept whole."""
    rows: int = 0
    """Events that left one."""
    duplicates: int = 0
    ignored: int = 0
    refused: int = 0

    @property
    def full(self) -> bool:
        """Whether it has used up its budget of events."""
        return self.rows >= self.limits.events


class Marker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a session that gave its outcome; written once, at the close."""

    session_id: str
    key: str
    """Under which its samples were sent."""
    first: int
    """Position of the session's first row."""
    closed_at: int
    """Position of the event that closed it; at or below it an event is a replay."""
    samples: list[tuple[str, list[str]]]
    """Sample ids with the turns in them."""
    other_turns: list[str]
    """Turns in no sample; one that comes again is no news either."""
    reward_share: str
    rewards: RewardBook
    turns_digest: str | None = None
    """In place of turn ids that no record holds: hex blake2b-16 over their MessagePack list."""


class RevisionSizes:
    """How many bytes revisions take on the wire, known without building them.

    A late reward of a session with many samples revises each; a worker that reads the session's
    late rewards back needs only what they took.
    """

    __slots__ = ("_reward_bytes", "_rewarded", "_samples_of", "_turns")

    def __init__(self, marker: Marker) -> None:
        """As the marker's own rewards have it."""
        self._samples_of: dict[str, list[int]] = {}
        for index, (_, turn_ids) in enumerate(marker.samples):
            for turn_id in turn_ids:
                self._samples_of.setdefault(turn_id, []).append(index)
        self._rewarded = [0] * len(marker.samples)
        self._reward_bytes = [0] * len(marker.samples)
        self._turns: set[str] = set()
        for turn_id in marker.rewards.of_turns:
            self.add(turn_id)

    def samples_of(self, turn_id: str | None) -> Sequence[int]:
        """The samples that a reward of this turn revises, or of the session."""
        if turn_id is None:
            return range(len(self._rewarded))
        return self._samples_of.get(turn_id, ())

    def add(self, turn_id: str) -> None:
        """The turn has a reward."""
        if turn_id in self._turns:
            return
        self._turns.add(turn_id)
        for index in self._samples_of.get(turn_id, ()):
            self._rewarded[index] += 1
            self._reward_bytes[index] += turn_reward_bytes(turn_id)

    def of(self, indices: Sequence[int], plain_bytes: int) -> int:
        """Revisions of these samples, of which each takes so much without rewards of turns."""
        total = plain_bytes * len(indices)
        for index in indices:
            if rewarded := self._rewarded[index]:
                total += turn_rewards_bytes(rewarded) + self._reward_bytes[index]
        return total


@dataclass(slots=True, eq=False, kw_only=True)
class ClosedSession:
    """A marker and the rewards that came after it; used up by `apply` like an open session."""

    marker: Marker
    turn_ids: frozenset[str]
    late: list[tuple[int, ScoredReward]] = field(default_factory=list)
    """With their positions, in order; kept as rows beside the marker."""
    late_bytes: int = 0
    """What those rows take."""
    rewards: RewardBook
    """The marker's book with every late reward folded in."""
    revised_bytes: int = 0
    """Of the revisions that the late rewards led to."""
    sizes: RevisionSizes

    @classmethod
    def of(cls, marker: Marker) -> "ClosedSession":
        """As it stands at the close."""
        in_samples = (turn_id for _, turn_ids in marker.samples for turn_id in turn_ids)
        return cls(
            marker=marker,
            turn_ids=frozenset([*marker.other_turns, *in_samples]),
            rewards=marker.rewards.copy(),
            sizes=RevisionSizes(marker),
        )

    @property
    def newest(self) -> int:
        """Position of the newest late reward, else of the close."""
        return self.late[-1][0] if self.late else self.marker.closed_at


State = OpenSession | ClosedSession | None
"""None: nothing is known of the session."""
