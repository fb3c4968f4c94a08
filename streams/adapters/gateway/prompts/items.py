"""The messages of a request in their recorded form, with the tokens that are known of them.

An answer that this session gave brings the ids it was sampled as, wherever it stands: behind the
prompt it was sampled from, under a tool list that has changed since, or in a history that was
compacted. Only at the first of these it is the answer; at the others it is context.

Invariant: a message that some turn gave stands here as it was recorded, and as much of it as the
client kept.
"""

from collections.abc import Sequence

import numpy as np

from schemas.record import Ids
from streams.adapters.dialects.calls import Message, Tool
from streams.adapters.gateway.history.matching import Cut, compare
from streams.adapters.gateway.history.recorded import History, Match
from streams.adapters.gateway.history.tree import Node, RecordedTurn
from streams.adapters.gateway.prompts.cutting import kept_tokens
from streams.adapters.gateway.rendering.composing import Item
from streams.adapters.gateway.rendering.encoding import as_ids
from streams.adapters.gateway.rendering.renderer import Renderer


class Items:
    """One request's messages."""

    def __init__(
        self, match: Match, history: History, renderer: Renderer, tools: Sequence[Tool]
    ) -> None:
        """Look up what follows the path; the path itself only when it is asked for."""
        self._match = match
        self._history = history
        self._renderer = renderer
        self._tools = tools
        self.lent: list[str] = []
        """Turns whose ids stand at another place than they were sampled at."""
        self.cut: tuple[int, list[int]] | None = None
        """Where in the ids of its turn the cut falls, and what is left of the next one."""
        self._rest = [self._found(at, message) for at, message in enumerate(match.rest)]

    @property
    def rest(self) -> tuple[Message, ...]:
        """What follows the place that the request reaches."""
        return tuple(item.message for item in self._rest)

    def after(self, said: int) -> list[Item]:
        """What follows the first `said` messages."""
        reached = self._match.node
        items = [self._at(node) for node in reached.path(said)]
        return items + self._rest[max(0, said - reached.depth) :]

    def _at(self, node: Node) -> Item:
        message = node.message or {}
        if message.get("role") != "assistant":
            return Item(message)
        if node.turn is not None:
            return Item(message, self._output(node.turn))
        return self._elsewhere(message)

    def _found(self, at: int, message: Message) -> Item:
        if message["role"] != "assistant":
            return Item(message)
        kept = self._match.kept
        if at == 0 and kept is not None:
            return self._beginning(kept.turn, kept.cut)
        return self._elsewhere(message, self._match.named.get(at, ()))

    def _elsewhere(self, message: Message, names: Sequence[str] = ()) -> Item:
        """A message that may repeat an answer given at another place."""
        turn = self._history.turn_of(message, names)
        if turn is None or turn.node is None or turn.node.message is None:
            return Item(message)
        found = compare(message, turn.node.message)
        if found is None:
            return Item(message)
        self.lent.append(turn.turn_id)
        if isinstance(found, Cut):
            return self._beginning(turn, found)
        return Item(turn.node.message, self._output(turn))

    def _beginning(self, turn: RecordedTurn, cut: Cut) -> Item:
        output = self._output(turn)
        if output is None:
            return Item(cut.message)
        kept = kept_tokens(self._renderer, output, cut, self._tools)
        if kept is None:
            return Item(cut.message)
        if self._match.kept is not None and cut is self._match.kept.cut:
            self.cut = kept
        return Item(cut.message, np.concatenate([output[: kept[0]], as_ids(kept[1])]))

    def _output(self, turn: RecordedTurn) -> Ids | None:
        """The ids of a whole answer; None if its beginning is not in them."""
        return None if turn.goes_on or turn.end == turn.prompt_len else self._history.output(turn)
