"""A session tree as token sequences: which turns train, where, and why the rest do not.

Leaves are visited depth first. The first leaf below a turn owns it and trains it; other
branches carry it as context. Walking up from its leaf, the turns a leaf owns are one run:

    t1 ─┬─ t2 ── t3      leaf t3 owns t1 t2 t3
        └─ t4            leaf t4 owns t4, and shows t1 as context

A branch is cut into segments where a turn forks; a segment becomes one sample. Its tokens are
the whole prompt and output of its last turn. A turn's output trains there unless the next turn
on its owner's branch realigned over it.

Invariants: whether a turn trains is decided here, never by a flag set earlier; every sampled
token of a turn is counted once in its ledger row; a segment without a trained token is none.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from schemas.samples import LedgerRow, UntrainedReason
from streams.core.policy import Policy
from streams.core.recorded import Node, RecordedTurn
from streams.core.spans import Run, total, without
from streams.core.tree import Tree


class Fate(msgspec.Struct, eq=False):
    """What becomes of one turn's sampled tokens."""

    turn: RecordedTurn
    trained: list[Run] = msgspec.field(default_factory=list)
    """In positions of the sample that trains them."""
    untrained: dict[UntrainedReason, int] = msgspec.field(default_factory=dict)
    elsewhere: int = 0
    """Sampled tokens that stand in another turn's row, see `part_of`."""

    @property
    def generated(self) -> int:
        """The sampled tokens that this row counts."""
        return self.turn.generated - self.elsewhere

    def row(self) -> LedgerRow:
        """The ledger's line for this turn."""
        return LedgerRow(
            turn_id=self.turn.event.turn_id,
            attach=self.turn.attach,
            generated=self.generated,
            trained=total(self.trained),
            untrained=self.untrained,
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """A contiguous token sequence with at least one trained token."""

    owned: list[Fate]
    """The turns that train here: always the last ones."""
    leaf: RecordedTurn
    """The end of the branch; its finish reason says whether the branch was cut."""

    @property
    def last(self) -> RecordedTurn:
        """The turn whose prompt and output are the whole sequence."""
        return self.owned[-1].turn

    def turns(self) -> list[RecordedTurn]:
        """All turns of the sequence, root first; many segments may share the first ones."""
        turn = self.owned[0].turn
        context: list[RecordedTurn] = []
        while (above := turn.goes_on_from) is not None:
            context.append(above)
            turn = above
        return context[::-1] + [fate.turn for fate in self.owned]


def linearize(
    tree: Tree, withheld: UntrainedReason | None, prefix: int | None = None
) -> tuple[list[Segment], list[Fate]]:
    """Segments in order of emission, and the fate of every turn in order of arrival.

    `withheld` names why no turn may train, if so. With `prefix`, the session counts as if it
    had ended after so many turns; the others are behind a gap.
    """
    policy = tree.policy
    turns = len(tree.turns) if prefix is None else prefix
    standing = standing_turns(tree, turns)
    dropped = _dropped(standing, policy)
    kept = [turn for turn in standing if turn.order not in dropped]
    heir: dict[int, RecordedTurn] = {}
    for turn in kept:
        if turn.above is not None:
            heir.setdefault(turn.above.order, turn)
    fates = [
        _fate(
            turn,
            heir.get(turn.order),
            withheld or ("gap" if turn.order >= turns else None),
            dropped.get(turn.order) or _merged(turn, turns),
            policy,
        )
        for turn in tree.turns.values()
    ]
    stands = {turn.order for turn in kept}
    for told in _tellings(tree):
        _count_once([fates[turn.order] for turn in told], stands)
    segments: list[Segment] = []
    for leaf in kept:
        if leaf.order not in heir:
            segments += _segments(leaf, heir, fates)
    return segments, fates


def leave_out(segment: Segment) -> None:
    """Count a segment's trained tokens as `oversize` instead."""
    for fate in segment.owned:
        if tokens := total(fate.trained):
            fate.untrained["oversize"] = tokens
            fate.trained = []


def standing_turns(tree: Tree, prefix: int) -> list[RecordedTurn]:
    """The generated turns of the prefix, depth first, children in the order they came."""
    turns: list[RecordedTurn] = []
    unvisited: list[Node] = [tree.root]
    while unvisited:
        node = unvisited.pop()
        turn = node.turn
        if turn is None and node.merged is not None and node.merged.merged_by >= prefix:
            turn = node.merged
        if turn is not None and turn.order < prefix:
            turns.append(turn)
        unvisited += node.children[::-1]
    return turns


def _merged(turn: RecordedTurn, prefix: int) -> UntrainedReason | None:
    return "merged" if turn.merged and turn.merged_by < prefix else None


def _segments(
    leaf: RecordedTurn, heir: dict[int, RecordedTurn], fates: list[Fate]
) -> Iterable[Segment]:
    owned = [leaf]
    while (above := owned[-1].above) is not None and heir[above.order] is owned[-1]:
        owned.append(above)
    owned.reverse()
    starts = [i for i, turn in enumerate(owned) if i == 0 or turn.attach in ("fork", "root")]
    for start, stop in zip(starts, [*starts[1:], len(owned)], strict=True):
        mine = [fates[turn.order] for turn in owned[start:stop]]
        if any(fate.trained for fate in mine):
            yield Segment(mine, leaf)


def _fate(
    turn: RecordedTurn,
    heir: RecordedTurn | None,
    withheld: UntrainedReason | None,
    dropped: UntrainedReason | None,
    policy: Policy,
) -> Fate:
    """What becomes of a turn; `heir` is the next one on its owner's branch."""
    fate = Fate(turn)
    whole = withheld or _own_reason(turn, policy)
    if whole is not None:
        _count(fate, whole, turn.generated)
        return fate
    free = [(turn.prompt_len, turn.end)]
    if turn.event.untrained_runs:
        at = turn.prompt_len
        forced = [(at + low, at + high) for low, high, _ in turn.event.untrained_runs]
        free = without(at, turn.end, forced)
        _count(fate, "forced", turn.generated - total(free))
    if dropped is not None:
        _count(fate, dropped, total(free))
        return fate
    if heir is not None and heir.attach == "realign":
        intact = heir.shared if policy.realign_masks == "from_divergence" else turn.prompt_len
        kept = [(start, min(end, intact)) for start, end in free if start < intact]
        _count(fate, "realigned", total(free) - total(kept))
        free = kept
    fate.trained = free if turn.end > turn.prompt_len else []
    return fate


def _count(fate: Fate, reason: UntrainedReason, tokens: int) -> None:
    if tokens:
        fate.untrained[reason] = fate.untrained.get(reason, 0) + tokens
        if not fate.untrained[reason]:
            del fate.untrained[reason]


def _own_reason(turn: RecordedTurn, policy: Policy) -> UntrainedReason | None:
    event = turn.event
    if turn.undelivered and not turn.extended and not policy.train_undelivered:
        return "undelivered"
    if not event.trainable:
        return "not_trainable"
    if not policy.train_constrained and event.sampling and event.sampling.constraint is not None:
        return "constrained"
    guessed_wrong = event.class_by_shape and turn.extended
    if not policy.train_auxiliary and event.request_class == "auxiliary" and not guessed_wrong:
        return "auxiliary"
    if not policy.train_ill_formed and event.ill_formed:
        return "ill_formed"
    return None


def _dropped(standing: list[RecordedTurn], policy: Policy) -> dict[int, UntrainedReason]:
    """Leaves that must not own what they hang from: their branch is no training branch."""
    dropped: dict[int, UntrainedReason] = {}
    if not policy.train_undelivered:
        for turn in standing:
            if turn.undelivered and not turn.extended:
                dropped[turn.order] = "undelivered"
    if policy.drop_retry_orphans:
        for turn in _retry_orphans(t for t in standing if t.order not in dropped):
            dropped[turn.order] = "retry_orphan"
    return dropped


def _tellings(tree: Tree) -> list[list[RecordedTurn]]:
    """Samplings that are told whole and in parts: what clients kept of an answer, and all of it."""
    wholes = {turn.event.part_of for turn in tree.turns.values() if turn.event.part_of}
    told: dict[str, list[RecordedTurn]] = {whole: [] for whole in wholes}
    for turn in tree.turns.values():
        whole = turn.event.part_of or turn.event.turn_id
        if whole in told:
            told[whole].append(turn)
    return list(told.values())


def _count_once(told: list[Fate], stands: set[int]) -> None:
    """Each token of a sampling trains in the longest telling that stands; the others share it."""
    most = max(told, key=lambda fate: (fate.turn.order in stands, _sampled(fate)))
    for fate in told:
        if fate is most:
            continue
        fate.elsewhere = min(_sampled(fate), _sampled(most))
        left = fate.elsewhere - total(fate.trained)
        fate.trained = []
        for reason in [reason for reason in fate.untrained if reason != "forced"]:
            less = min(left, fate.untrained[reason])
            left -= less
            _count(fate, reason, -less)


def _sampled(fate: Fate) -> int:
    """Without what was not sampled but put behind it."""
    return fate.turn.generated - fate.untrained.get("forced", 0)


def _retry_orphans(turns: Iterable[RecordedTurn]) -> list[RecordedTurn]:
    """Copies of one request that nobody continued; the newest stays if none was."""
    requests: dict[int, list[RecordedTurn]] = {}
    for turn in turns:
        requests.setdefault(id(turn.node.parent), []).append(turn)
    orphans: list[RecordedTurn] = []
    for copies in requests.values():
        ends = [turn for turn in copies if not turn.extended]
        if len(ends) == len(copies):
            ends.remove(max(ends, key=_age(copies)))
        orphans += ends
    return orphans


def _age(copies: list[RecordedTurn]) -> Callable[[RecordedTurn], tuple[int, int]]:
    timed = all(turn.event.started_ms is not None for turn in copies)
    return lambda turn: ((turn.event.started_ms or 0) if timed else 0, turn.order)
