"""Sessions with known trees, as the entries that the turns topic takes, from a seed.

    opening   a turn | turns, sub-agents, drift, retries ... | end | rewards behind the end
                         bad events, poison, redeliveries in between

Every session is a script: its number and the seed decide it whole, whatever else runs. Most of
what may go wrong with a session goes wrong in some of them; what must happen in every run
(retries, eval sessions, megabytes, silence) is tied to the number, the rest to dice.

Invariant: the same seed and number give the same bytes.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import msgpack
import msgspec
import numpy as np

from schemas import codec
from schemas.events import (
    EndReason,
    EndStatus,
    Reward,
    SessionEnded,
    SessionOpened,
    Turn,
    TurnUndelivered,
)
from schemas.record import Octets, Record, json_text
from schemas.samples import Attach
from streams.log.keys import event_key
from tests.chaos.conversations import Author, Past

POISON_SHARE = 0.01
BIG_EVERY = 60
"""One session in so many has an event of 1 to 4 MB."""
SILENT_EVERY = 12
"""One session in so many is left to expire."""
GROUP_SIZE = 4
RETRY_EVERY = 20
FAILURES: tuple[EndStatus, ...] = ("error", "interrupted", "cancelled", "rejected", "closed")
TRAINING: tuple[EndStatus, ...] = ("completed", "completed", "truncated", "timeout", "parse_error")


class Step(NamedTuple):
    """One entry of a session's script."""

    kind: str
    key: bytes
    value: bytes
    late: bool = False
    """It comes some time after the session has said all else."""


@dataclass
class Script:
    """A session as it will be published."""

    session_id: str
    steps: list[Step] = field(default_factory=list)
    meant: list[tuple[str, Attach]] = field(default_factory=list)
    """Every turn that belongs to the tree and how it attaches, in order."""
    ends: bool = True
    """Not left to expire."""

    @property
    def kinds(self) -> Counter[str]:
        return Counter(step.kind for step in self.steps)


def script(seed: int, number: int) -> Script:
    """The session of this number."""
    return _Writer(seed, number).written()


class _Writer:
    def __init__(self, seed: int, number: int) -> None:
        self.dice = Random(f"{seed}/{number}")
        self.number = number
        self.script = Script(f"s{seed}-{number}")
        self.policy = self.dice.choices((None, "slime", "lossless"), (8, 1, 1))[0]
        opened = self.policy is not None or self.dice.random() < 0.7
        self.opens = opened or self._retries or self._retried
        lossless = self.policy == "lossless"
        self.author = Author(self.script.session_id, self.dice, lossless=lossless)
        self.rewards = 0

    @property
    def _retries(self) -> bool:
        """It fails, and the next session is another attempt at its place in the group."""
        return self.number % RETRY_EVERY == 7

    @property
    def _retried(self) -> bool:
        return self.number % RETRY_EVERY == 8

    def written(self) -> Script:
        if self.opens:
            self._open()
        if self.dice.random() < 0.02:
            self.add("early", TurnUndelivered(session_id=self.script.session_id, turn_id="t1"))
        self._turns()
        silent = self.number % SILENT_EVERY == 5
        if silent and self.dice.random() < 0.7:
            self.script.ends = False
        elif silent:
            self.script.ends = False
            self.add("pending end", self.ended("completed"))
        else:
            self._end()
        return self.script

    def add(self, kind: str, record: Record, *, late: bool = False) -> None:
        self._put(kind, codec.to_msgpack(record), late=late)

    def _put(self, kind: str, value: bytes, *, late: bool = False) -> None:
        key = event_key(self.script.session_id)
        self.script.steps.append(Step(kind, key, value, late))
        if self.dice.random() < POISON_SHARE:
            self.script.steps.append(Step("poison", *self._poison(), late))

    def _poison(self) -> tuple[bytes, bytes]:
        stranger = f"{self.script.session_id}-nobody"
        mine, bad = event_key(self.script.session_id), b"\xc1" + self.dice.randbytes(20)
        return self.dice.choice(
            (
                (mine, bad),
                (event_key(stranger), bad),
                (mine, b""),
                (mine, bytes(msgpack.packb([1, 2, 3]))),
                (mine, bytes(msgpack.packb({"type": "turm", "session_id": "s"}))),
                (mine, bytes(msgpack.packb({"type": "turn", "v": 9}))),
                (mine, codec.to_msgpack(TurnUndelivered(session_id=stranger))),
            )
        )

    # --- opening and turns -----------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        slot = self.number - 1 if self._retried else self.number
        identity: dict[str, Any] = {"run_id": "chaos", "task_id": f"task{slot % 7}"}
        if self._retries or self._retried or slot % 3:
            prefix = self.script.session_id.partition("-")[0]
            identity["group_id"] = f"g{prefix}-{slot // GROUP_SIZE}"
            identity["group_size"] = GROUP_SIZE
            identity["rollout_index"] = slot % GROUP_SIZE
            identity["attempt"] = int(self._retried)
        if self.number % 30 == 11:
            identity["split"] = "eval"
        return identity

    def _open(self) -> None:
        policy: Any = self.policy
        if policy is None and self.dice.random() < 0.2:
            policy = {"profile": "seed", "fork_threshold_tokens": 500}
        opened = SessionOpened(
            session_id=self.script.session_id,
            **self._identity(),
            policy=policy,
            metadata=json_text({"number": self.number, "note": "x" * self.dice.randint(0, 200)}),
        )
        self.add("opened", opened)
        if self.dice.random() < 0.05:
            self.add("redelivered", opened)

    def _turns(self) -> None:
        self._remember(self.author.first())
        for _ in range(self.dice.randint(3, 24)):
            self._next_turn()
            if self.dice.random() < 0.06:
                self._disturb()
        if self.number % BIG_EVERY == 2:
            big = self.author.first(tokens=self.dice.randint(250_000, 1_000_000))
            self._remember(big, "big turn")
            self._remember(self.author.go_on(big))

    def _next_turn(self) -> None:
        author, dice = self.author, self.dice
        newest = author.past[-1]
        match dice.choices(range(6), (70, 8, 6, 6, 5, 5))[0]:
            case 0:
                self._remember(author.go_on(newest))
            case 1:
                self._remember(author.go_on(dice.choice(author.past)), "branch")
            case 2:
                self._remember(author.drift(newest), "drift")
            case 3:
                self._remember(author.rerender(newest), "rerendered")
            case 4:
                self._remember(author.again(newest), "retry")
            case _:
                self._remember(author.first(), "sub-agent")

    def _remember(self, past: Past, kind: str = "turn") -> None:
        self.script.meant.append((past.turn.turn_id, past.attach))
        self.add(kind, past.turn)

    def _disturb(self) -> None:
        """Something between two turns that is not one more turn of the tree."""
        author, dice = self.author, self.dice
        some = dice.choice(author.past).turn
        match dice.randrange(6):
            case 0:
                self.add("redelivered", some)
            case 1:
                self.add("undelivered", _undelivered(some))
            case 2:
                self.reward("turn reward", turn_id=some.turn_id)
            case 3:
                self.reward("early reward", final=False)
            case 4 if dice.random() < 0.1:
                author.skip_number()
            case _:
                kind, value = self._bad_turn(some)
                self._put(kind, value)

    def _bad_turn(self, some: Turn) -> tuple[str, bytes]:
        replace = msgspec.structs.replace
        bad = replace(
            self.author.unsent(self.author.past[-1]), turn_id=f"b{len(self.script.steps)}"
        )
        ghost = {"base_turn_id": "ghost", "kept_messages": 1, "kept_ids": 1}
        kind, turn = self.dice.choice(
            (
                ("unknown_base", replace(bad, **ghost)),
                ("length_mismatch", replace(bad, logprobs=np.zeros(bad.output_ids.size + 1, "f4"))),
                ("digest_mismatch", replace(bad, prompt_digest=Octets(bytes(16)))),
                ("forked_turn_id", replace(some, output_ids=self.author.ids(3), logprobs=None)),
                ("too_old", replace(bad, finished_ms=1000)),
            )
        )
        if turn.weight_versions is not None:
            turn = replace(turn, weight_versions=[(1, turn.output_ids.size)])
        return kind, codec.to_msgpack(turn)

    # --- the end ---------------------------------------------------------------------------------

    def reward(self, kind: str, *, late: bool = False, **fields: Any) -> Reward:
        self.rewards += 1
        value: Any = round(self.dice.uniform(-1, 1), 3)
        if self.dice.random() < 0.2:
            value = {"score": value, "judge": "x"}
        session_id = self.script.session_id
        reward = Reward(session_id=session_id, reward_id=f"r{self.rewards}", reward=value, **fields)
        self.add(kind, reward, late=late)
        if self.dice.random() < 0.2:
            self.add("reward redelivered", reward, late=late)
        return reward

    def ended(self, status: EndStatus, **fields: Any) -> SessionEnded:
        if self.author.last_seq is not None and self.dice.random() < 0.5:
            fields["turns"] = self.author.last_seq
        return SessionEnded(session_id=self.script.session_id, end_status=status, **fields)

    def _end(self) -> None:
        dice = self.dice
        if self._retries:
            reason = EndReason(stage="environment", category="crash", retryable=True)
            self.add("end to be retried", self.ended("error", reason=reason, will_retry=True))
        elif dice.random() < 0.1:
            self.add("failed end", self.ended(dice.choice(FAILURES)))
        elif dice.random() < 0.4:
            self.add("pending end", self.ended(dice.choice(TRAINING), reward_pending=True))
            self._after_the_end()
            self.reward("pending reward", late=dice.random() < 0.5)
        else:
            self.add("end", self.ended(dice.choice(TRAINING), reward=round(dice.random(), 3)))
        self._after_the_end()

    def _after_the_end(self) -> None:
        dice = self.dice
        if dice.random() < 0.4:
            # Right behind: it is read while the session is closing.
            self.reward("correction")
        if dice.random() < 0.3:
            self.reward("late reward", late=True)
        if dice.random() < 0.05:
            turn_id = dice.choice(self.author.past).turn.turn_id
            self.reward("late turn reward", late=True, turn_id=turn_id)
        if dice.random() < 0.03:
            self.add("late turn", self.author.unsent(self.author.past[-1]), late=True)
        if dice.random() < 0.03:
            self.add("second end", self.ended("cancelled"))


def _undelivered(turn: Turn) -> TurnUndelivered:
    return TurnUndelivered(
        session_id=turn.session_id, turn_id=turn.turn_id, source=turn.source, seq=turn.seq
    )
