"""What one session has recorded, and which of its turns a request goes on from.

Messages form a tree, as in the processor: a turn hangs where its prompt ends, its answer is a
child there. A request walks it from the root, message by message; an assistant's message is
compared with the answers given at that place (`matching`), any other has to be the same.

    system ─ user ─ [t1] ─ tool ─ [t2] ─ user             [ ] answers, with the ids they have
                      └ cut t1 ─ user ─ [t3]              what the client kept of t1, then t3

The same answer may stand at several places: after a compaction it is context under a new prompt.
An id therefore names a turn only together with its place; elsewhere the turn lends its tokens.
The token ids of all turns are stored once each, in the blocks that the processor uses.

Invariant: what is kept grows with what is new. `ids(turn, end)` is what the model saw and said.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from schemas.events import Turn
from schemas.record import Ids
from streams.adapters.dialects.calls import Message
from streams.adapters.gateway.history.matching import Cut, carried_ids, compare
from streams.adapters.gateway.history.tokens import kept_messages_of, prompt_sums, with_tokens
from streams.adapters.gateway.history.tree import (
    Answers,
    Kept,
    Node,
    RecordedTurn,
    answers_at,
    same_answer,
    step,
)
from streams.core.delta import read
from streams.errors import BadEvent

_READ = msgspec.json.Decoder(dict[str, Any]).decode
WAYS_MAX = 64
"""Answers that say the same, and what follows each: so many are looked at side by side."""
Named = Mapping[int, tuple[str, ...]]
"""Ids of turns, by the place of the message that names them."""
NOTHING_NAMED: Named = MappingProxyType({})
Recognise = Callable[[str], str | None]
"""An id that a client carried, as the id of the turn it names; None if it is not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How far a request goes along with what is recorded."""

    node: Node
    """The place it reaches."""
    rest: tuple[Message, ...]
    """Its messages from there on."""
    base: RecordedTurn | None = None
    """The deepest turn under the same tools that it goes on from."""
    kept: Kept | None = None
    """What the first of `rest` is, if it is the beginning of an answer at that place."""
    twin: RecordedTurn | None = None
    """A turn that answered this very request."""
    foreign: tuple[int, ...] = ()
    """The places of assistant messages that no turn is known for."""
    missing: tuple[str, ...] = ()
    """Turns that such messages name by our own ids: they are recorded, but not here."""
    named: Named = field(default_factory=dict)
    """The turns that messages of `rest` name beside the ids of their calls."""


@dataclass(slots=True)
class History:
    """The recorded turns of one session."""

    recognise: Recognise = lambda _: None
    root: Node = field(default_factory=Node)
    turns: dict[str, RecordedTurn] = field(default_factory=dict)
    parts: int = 0
    """How many of them are what clients kept of others."""
    _calls: dict[str, RecordedTurn] = field(default_factory=dict)
    """By the ids of the calls in their answers."""

    def record(self, event: Turn, *, position: int | None = None) -> RecordedTurn:
        """Keep a turn; the same turn again changes nothing.

        On which base the event is written makes no difference to what is kept. The one that its
        prompt was built on shares most, also while the log has not acknowledged it. `position` is
        where the log has the turn, if it has.

        Raises:
            BadEvent: its base is not known here, or a message of it is none that can be read.
        """
        known = self.turns.get(event.turn_id)
        if known is not None:
            if position is not None:
                known.position = position
            return known
        base = self._base_of(event)
        hashed, checked = prompt_sums(event, base)
        prompt, answer = _messages_of(event)  # before anything is kept of it
        place = self._place_of(event, base, prompt)
        turn = with_tokens(event, base, place, hashed, checked)
        turn.position = position
        self.turns[turn.turn_id] = turn
        self.parts += event.part_of is not None
        _answers(place).turns.append(turn)
        if answer is not None:
            self._answer(turn, answer)
        return turn

    def acknowledge(self, turn_id: str, position: int) -> None:
        """The log has this turn."""
        self.turns[turn_id].position = position

    def find(
        self,
        messages: Sequence[Message],
        tools_digest: str | None,
        *,
        after: RecordedTurn | None = None,
        named: Named = NOTHING_NAMED,
    ) -> Match:
        """The deepest turn that the messages go on from; `after` if they follow one as it is.

        `named` are the turns that a message says it comes from, by its place, beside the ids
        of its calls.
        """
        start = (after.node or after.place) if after else self.root
        walked, node = _heard_before(start, messages, named)
        ways: tuple[Node, ...] = (node,)
        kept: Kept | None = None
        for message in messages[walked:]:
            names = named.get(walked, ())
            if len(ways) > 1 or ways[0].heard != message or ways[0].heard_named != names:
                found = [self._next(node, message, names) for node in ways]
                further = tuple(node for leads, _ in found for node in leads)
                if not further:
                    kept = next((part for _, part in found if part is not None), None)
                    break
                ways = further[:WAYS_MAX]
            else:
                ways = ways[0].heard_leads
            walked += 1
        rest = tuple(messages[walked:])
        node = kept.turn.place if kept else _best(ways, tools_digest, ended=not rest)
        foreign = [
            walked + at
            for at, message in enumerate(rest)
            if message["role"] == "assistant"
            and self.turn_of(message, named.get(walked + at, ())) is None
            and not (at == 0 and kept)
        ]
        return Match(
            node=node,
            rest=rest,
            named={at - walked: names for at, names in named.items() if at >= walked},
            base=node.deepest_turn(tools_digest),
            kept=kept,
            twin=None if rest else node.twin(tools_digest),
            foreign=tuple(foreign),
            missing=tuple(self._missing((messages[at], named.get(at, ())) for at in foreign)),
        )

    def turn_of(self, message: Message, names: Sequence[str] = ()) -> RecordedTurn | None:
        """The turn whose answer a message repeats somewhere else, known by an id with it."""
        called = (self._calls.get(carried) for carried in carried_ids(message))
        found = (*called, *(self.turns.get(name) for name in names))
        return next((turn for turn in found if turn is not None), None)

    def named(self, carriers: Mapping[int, Sequence[str]]) -> Named:
        """The turns that texts of ours name, for `find`."""
        found = {
            at: tuple(name for name in map(self.recognise, texts) if name is not None)
            for at, texts in carriers.items()
        }
        return {at: tuple(dict.fromkeys(names)) for at, names in found.items() if names}

    def ids(self, turn: RecordedTurn, end: int) -> Ids:
        """The first `end` ids of a turn's prompt and output."""
        return np.frombuffer(read(turn.block, 0, end), np.dtype("<i4"))

    def output(self, turn: RecordedTurn) -> Ids:
        """What the turn sampled."""
        return np.frombuffer(read(turn.block, turn.prompt_len, turn.end), np.dtype("<i4"))

    def part(self, place: Node, message: Message) -> RecordedTurn | None:
        """The turn that stands for what a client kept of an answer at this place."""
        turn = same_answer(place, message)
        return None if turn is None or (turn.broken and turn.is_leaf) else turn

    def forget(self, part_id: str, whole_id: str) -> None:
        """A part that was not recorded after all; what it names is the whole's again."""
        part, whole = self.turns.pop(part_id), self.turns[whole_id]
        self.parts -= 1
        answers = _answers(part.place)
        answers.turns.remove(part)
        for named in (self._calls, answers.calls):
            named.update({name: whole for name, turn in named.items() if turn is part})

    def superseded(self, turn: RecordedTurn) -> list[RecordedTurn]:
        """The twins of a turn that is being extended, in the log before it was asked.

        Asked again, the client never got them. Twins that were asked for side by side were all
        wanted: the client chooses among them. Places in the log say so, whoever wrote there; the
        clocks of two gateways do not.
        """
        asked_after = -1 if turn.prev is None else turn.prev
        at_place = turn.place.answers.turns if turn.place.answers else []
        return [
            twin
            for twin in at_place
            if twin is not turn
            and twin.tools_digest == turn.tools_digest
            and twin.is_leaf
            and twin.position is not None
            and twin.position <= asked_after
        ]

    def _base_of(self, event: Turn) -> RecordedTurn | None:
        if event.base_turn_id is None:
            return None
        base = self.turns.get(event.base_turn_id)
        if base is None:
            detail = f"turn {event.turn_id} hangs on turn {event.base_turn_id}, which is not known"
            raise BadEvent("unknown_base", detail, turn_id=event.turn_id)
        return base

    def _place_of(self, event: Turn, base: RecordedTurn | None, prompt: list[Message]) -> Node:
        kept_messages = kept_messages_of(event, base)
        place = base.place_at(kept_messages) if base else self.root
        if place is None:
            detail = f"turn {event.turn_id} keeps {kept_messages} messages, its base has fewer"
            raise BadEvent("invalid_field", detail, turn_id=event.turn_id)
        for message in prompt:
            place = self._mount(place, message)
        return place

    def _answer(self, turn: RecordedTurn, response: Message) -> None:
        turn.node = Node(turn.place, response, turn, turn.place.depth + 1)
        named = dict.fromkeys(carried_ids(response), turn)
        self._calls.update(named)
        _answers(turn.place).calls.update(named)
        if turn.goes_on and turn.place.parent is not None:
            before = _answers(turn.place.parent)
            before.joined.append(turn)
            before.calls.update(named)

    def _mount(self, node: Node, message: Message) -> Node:
        """The place below `node` where a recorded prompt puts this message."""
        if message.get("role") == "assistant":
            turn = same_answer(node, message)
            if turn is not None and turn.node is not None:
                return turn.node
        return step(node, message) or node.add(message)

    def _next(
        self, node: Node, message: Message, names: tuple[str, ...]
    ) -> tuple[tuple[Node, ...], Kept | None]:
        """Where a request's message leads; if nowhere, what is left of an answer there."""
        leads, kept = self._leads(node, message, names)
        if leads:
            recorded = leads[0].message
            # The recorded message in place of an equal one, so that one of them is kept.
            node.heard = recorded if recorded == message else message
            node.heard_named = names
            node.heard_leads = leads
        return leads, kept

    def _leads(
        self, node: Node, message: Message, names: tuple[str, ...]
    ) -> tuple[tuple[Node, ...], Kept | None]:
        if message["role"] != "assistant":
            below = step(node, message)
            return ((below,) if below else ()), None
        turns, kept = answers_at(
            node, message, [self.turns[name] for name in names if name in self.turns]
        )
        if turns:
            return tuple(turn.node for turn in turns if turn.node is not None), None
        part = self.part(node, kept.cut.message) if kept else None
        if part is not None and part.node is not None:
            return (part.node,), None
        below = step(node, kept.cut.message if kept else self._recorded_form(message, names))
        return ((below,), None) if below else ((), kept)

    def _recorded_form(self, message: Message, names: Sequence[str]) -> Message:
        """An assistant's message as recorded, if it repeats an answer from another place."""
        turn = self.turn_of(message, names)
        if turn is None or turn.node is None or turn.node.message is None:
            return message
        found = compare(message, turn.node.message)
        if isinstance(found, Cut):
            return found.message
        return turn.node.message if found else message

    def _missing(self, messages: Iterable[tuple[Message, Sequence[str]]]) -> list[str]:
        said = ((*map(self.recognise, carried_ids(message)), *names) for message, names in messages)
        unknown = (turn for turns in said for turn in turns if turn and turn not in self.turns)
        return list(dict.fromkeys(unknown))


def _messages_of(event: Turn) -> tuple[list[Message], Message | None]:
    """The prompt's messages and the answer; logs hold what the processor will refuse, too."""
    answer = event.response_message
    try:
        return [_READ(text) for text in event.prompt_messages], _READ(answer) if answer else None
    except ValueError as error:
        detail = f"turn {event.turn_id}: a message is not readable: {error}"
        raise BadEvent("invalid_field", detail, turn_id=event.turn_id) from None


def _heard_before(node: Node, messages: Sequence[Message], named: Named) -> tuple[int, Node]:
    """How many of the messages the client said before, with one meaning, and where they lead."""
    walked = 0
    for message in messages:
        if node.heard != message or len(node.heard_leads) > 1:
            break
        if node.heard_named != named.get(walked, ()):
            break
        node = node.heard_leads[0]
        walked += 1
    return walked, node


def _best(ways: Sequence[Node], tools_digest: str | None, *, ended: bool) -> Node:
    """Of several places that a request may have reached, the one that saves it the most."""
    twins = [node for node in ways if ended and node.twin(tools_digest) is not None]
    if len(ways) == 1 or twins:
        return (*twins, *ways)[0]
    bases = [node.deepest_turn(tools_digest) for node in ways]
    lengths = [base.end if base is not None else 0 for base in bases]
    return ways[lengths.index(max(lengths))]


def _answers(node: Node) -> Answers:
    """The turns at a place, to add one: what the client said there may now lead elsewhere."""
    node.heard = None
    if node.answers is None:
        node.answers = Answers()
    return node.answers
