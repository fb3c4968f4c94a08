"""What sessions became, held against what the engine sampled and what clients saw the end of.

    in the log     ⊆ journal        prompt, output and logprobs of every turn, as they were sampled;
                                    of an answer that its client left, as far as it came
    seen the end   ⊆ in the log     once each, and all of it trains, once
    the rest       cut by a kill: not in the log, or told not to have been delivered

Invariant: no token trains that the engine did not sample after exactly what stands before it.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from schemas.events import Event, Turn
from schemas.samples import Sample, SessionClosed
from tests.adapters.gateway.outcomes import Generated, Outcome, recorded, whole_prompts

_NUMBER = re.compile(rb"number (\d+)")


@dataclass
class Fate:
    """What became of a session's tokens."""

    turns: int = 0
    seen: int = 0
    """Turns whose end the client saw."""
    cut: int = 0
    """Generations that are not in the log."""
    unseen: int = 0
    """Turns in the log whose end no client saw."""
    unseen_trained: int = 0
    """Of those: nothing tells that they were not delivered."""
    attached: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: "Fate") -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def outcome_from(
    events: Iterable[Event], records: Iterable[Sample | SessionClosed], session_id: str
) -> Outcome:
    """Of one session, out of everybody's."""
    turns = {
        event.turn_id: event
        for event in events
        if isinstance(event, Turn) and event.session_id == session_id
    }
    own = [record for record in records if record.session_id == session_id]
    samples = {each.sample_id: each for each in own if isinstance(each, Sample)}
    closed = next(record for record in own if isinstance(record, SessionClosed))
    return Outcome(turns, whole_prompts(turns), list(samples.values()), closed)


def judged(outcome: Outcome, sampled: Counter[Generated], seen: Iterable[int]) -> Fate:
    """Hold a session's outcome against the engine's journal and the client's eyes."""
    closed, turns = outcome.closed, outcome.turns
    logged = recorded(outcome)
    fate = Fate(turns=logged.total(), attached=Counter(outcome.attached))
    rest = sampled - logged
    foreign = _not_begun(outcome, logged - sampled, rest)
    name = closed.session_id

    def wrong(what: str) -> None:
        fate.wrong.append(f"{name}: {what}")

    if foreign:
        wrong(f"{foreign} turns are not what was sampled")
    if (closed.gaps, closed.refused, closed.withheld) != (0, 0, None):
        wrong(f"gaps {closed.gaps}, refused {closed.refused}, withheld {closed.withheld}")
    trained = _trained(outcome, wrong)
    whole = [turn for turn in turns.values() if turn.part_of is None]
    numbers = Counter(number_of(turn) for turn in whole)
    by_number = {number_of(turn): turn for turn in whole}
    seen = list(seen)
    for number in seen:
        if numbers[number] != 1:
            wrong(f"answer {number} was seen and is {numbers[number]} times in the log")
            continue
        turn = by_number[number]
        if trained[turn.turn_id] != len(turn.output_ids):
            why = outcome.untrained.get(turn.turn_id)
            wrong(f"answer {number}: {trained[turn.turn_id]} of {len(turn.output_ids)}, {why}")
    fate.seen = len(seen)
    fate.cut = rest.total()
    # Not by number: several may have been cut before theirs.
    unseen = [turn for turn in whole if number_of(turn) not in seen]
    fate.unseen = len(unseen)
    fate.unseen_trained = sum(trained[turn.turn_id] > 0 for turn in unseen)
    return fate


def _not_begun(outcome: Outcome, others: Counter[Generated], rest: Counter[Generated]) -> int:
    """How many turns are not even the beginning of what was sampled; the rest loses the others.

    What a client left is recorded as far as the gateway had it, and the engine was ahead of that;
    if the client left before the engine had the request, nothing was sampled.
    """
    left_early = recorded(
        dataclasses.replace(
            outcome, turns={n: turn for n, turn in outcome.turns.items() if not turn.delivered}
        )
    )
    foreign = (others - left_early).total()
    for prompt, ids, logprobs in (others & left_early).elements():
        if not ids:
            continue
        whole = next(
            (
                (p, i, lp)
                for p, i, lp in rest
                if p == prompt and i[: len(ids)] == ids and lp[: len(ids)] == logprobs
            ),
            None,
        )
        if whole is None:
            foreign += 1
        else:
            rest.subtract([whole])
            if not rest[whole]:
                del rest[whole]
    return foreign


def _trained(outcome: Outcome, wrong: Callable[[str], None]) -> Counter[str]:
    """How many tokens of each turn train; those of a part count for its whole."""
    found: Counter[tuple[str, int]] = Counter()
    for sample in outcome.samples:
        for span in sample.turns:
            turn = outcome.turns[span.turn_id]
            if sample.tokens[span.start : span.end].tolist() != turn.output_ids.tolist():
                wrong(f"turn {span.turn_id}: the sample has other tokens")
            for start, end in sample.loss_mask:
                for at in range(max(start, span.start), min(end, span.end)):
                    found[turn.part_of or span.turn_id, at - span.start] += 1
                    if turn.logprobs is not None and (
                        sample.logprobs[at] != turn.logprobs[at - span.start]
                    ):
                        wrong(f"turn {span.turn_id}: the sample has another logprob")
    if any(count > 1 for count in found.values()):
        wrong("tokens train twice")
    return Counter(turn_id for turn_id, _ in found)


def number_of(turn: Turn) -> int:
    """Of the answer it gave; -1 if so little of it was sampled."""
    found = _NUMBER.findall(bytes(turn.response_message or b""))
    return int(found[-1]) if found else -1
