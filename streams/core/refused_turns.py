"""Turns that a budget refused: not in the tree, but in the numbering and in the ledger.

    t1 ── t2 ── t3 (over a budget) ── t4 (based on t3)
    trains      └────── oversize ───────────┘

A refused turn fills its number, so it leaves no gap, and the turns before it train. What is kept
of it is its name, its number and how many tokens it sampled, in the row of its event, and whose
rollout the session is, where no event before it says so.

Invariant: rows and ledger are bounded; turns beyond their share are counted, not named.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from schemas.events import Turn
from schemas.record import IDENTITY_FIELDS
from schemas.samples import LedgerRow, UntrainedReason
from streams.errors import BadEvent


class RefusedTurn(NamedTuple):
    """What is kept of one."""

    turn_id: str
    generated: int
    source: str | None
    seq: int | None
    identity: dict[str, Any] | None = None
    """What it adds to the session's; rows of before have none."""

    @classmethod
    def of(cls, turn: Turn, known: Mapping[str, Any]) -> "RefusedTurn":
        """What the event says of it, in a session whose identity is known as far as this."""
        said = {name: getattr(turn, name) for name in IDENTITY_FIELDS if name not in known}
        added = {name: value for name, value in said.items() if value is not None}
        return cls(turn.turn_id, int(turn.output_ids.size), turn.source, turn.seq, added or None)


class RefusedTurns:
    """Those of one session."""

    __slots__ = ("named", "unnamed", "unnamed_generated")

    def __init__(self) -> None:
        """None yet."""
        self.named: dict[str, int] = {}
        """Sampled tokens by turn id, in order of arrival."""
        self.unnamed = 0
        """So many more that no record has room for."""
        self.unnamed_generated = 0
        """Their sampled tokens."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self.named) + self.unnamed

    def add(self, turn: RefusedTurn, *, named: bool) -> None:
        """One more."""
        if named:
            self.named[turn.turn_id] = turn.generated
        else:
            self.unnamed += 1
            self.unnamed_generated += turn.generated

    def check_base(self, turn: Turn, *, base_known: bool) -> None:
        """Raise `oversize` if the turn is based on one of these."""
        base = turn.base_turn_id
        if base is None or base_known:
            return
        if base in self.named or self.unnamed:
            detail = f"its base turn {base:.80} was refused over a budget of the session"
            raise BadEvent("oversize", detail)

    def ledger(self, withheld: UntrainedReason | None) -> Iterator[LedgerRow]:
        """Their rows; they hang from nothing."""
        for turn_id, generated in self.named.items():
            yield LedgerRow(
                turn_id=turn_id,
                attach="root",
                generated=generated,
                trained=0,
                untrained={withheld or "oversize": generated} if generated else {},
            )
