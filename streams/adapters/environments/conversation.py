"""Turn events of one episode: what is new since the turn they go on from.

    recorded turn   prompt p p p p   output r r       messages  u a
    this call       prompt p p p p r r t t            messages  u a u
    event           base_turn_id, kept_ids 6, t t     kept_messages 2, u

Messages become JSON text when they are told, so what an environment does to its own lists later
changes nothing. A turn goes on from one that the log is known to have, else it tells its whole
prompt.

Invariant: joined with its base, an event holds exactly the prompt that was given.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from schemas.bad_record import BadRecord
from schemas.events import Turn
from schemas.record import NOT_GIVEN, TOKEN_ID_MAX, Floats, Ids, Octets, json_text
from streams.adapters.environments.publisher import Handed
from streams.core.content import Message, message_from
from streams.core.delta import prompt_hash
from streams.core.plain_values import plain

_BASES_FEW, _BASES_MOST = 8, 1_000
"""Newest turns that a call may go on from: a few for agents that take turns, and many where the
log is behind, so that there is one that it has."""
_BASE_IDS_MOST = 1_000_000
"""Ids that are held for more than a few of them."""
_NO_IDS = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class Told:
    """A turn that was handed to the log."""

    turn_id: str
    path: list[msgspec.Raw]
    """Messages; only the first `length` are this turn's, the others came after it."""
    length: int
    ids: Ids
    handed: Handed

    @property
    def acknowledged(self) -> bool:
        """Whether the log is known to have it."""
        return self.handed.done() and self.handed.exception() is None

    @property
    def offset(self) -> int | None:
        """Where it stands."""
        return self.handed.result().offset if self.acknowledged else None


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a conversation."""

    path: tuple[msgspec.Raw, ...]
    seen: tuple[msgspec.Raw, ...]
    whole: bool
    told: Told | None
    """The newest turn before it."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A model call as the environment gave it, in the contract's types."""

    messages: list[msgspec.Raw]
    prompt_ids: Ids
    output_ids: Ids
    logprobs: Floats | None
    response: msgspec.Raw
    before: int = 0
    """So many messages stand before them, those of the present path: nobody need compare them."""


def drawn_from(
    prompt_messages: Iterable[Any],
    prompt_ids: Sequence[int] | Ids,
    output_ids: Sequence[int] | Ids,
    logprobs: Sequence[float] | Floats | None,
    response_message: Any,
) -> Drawn:
    """A model call, copied.

    Raises:
        BadRecord: no message, or ids that are none.
        NoMessage: a message that is none.
    """
    messages = [json_text(message_from(message, "user")) for message in prompt_messages]
    if not messages:
        raise BadRecord("invalid_field", "`prompt_messages` is empty")
    response = NOT_GIVEN
    if response_message is not None:
        response = json_text(message_from(response_message))
    return Drawn(
        messages=messages,
        prompt_ids=_ids(prompt_ids, "prompt_ids"),
        output_ids=_ids(output_ids, "output_ids"),
        logprobs=None if logprobs is None else np.array(logprobs, np.float32),
        response=response,
    )


class Conversation:
    """What was said on the present path of an episode, and which turns the log has of it."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.path: list[msgspec.Raw] = []
        """Only ever grown; another path is another list."""
        self.seen: list[msgspec.Raw] = []
        """An observation that no turn has in its prompt yet."""
        self.whole = False
        """Whether that is a whole prompt by itself, not what comes behind the path."""
        self.told: deque[Told] = deque()
        self._ids_held = 0
        self._tools: dict[str, Handed] = {}

    @property
    def messages(self) -> list[Message]:
        """Of the present path with what was seen last, read back."""
        before = [] if self.whole and self.seen else self.path
        return [msgspec.json.decode(text) for text in [*before, *self.seen]]

    @property
    def spoken(self) -> list[Message]:
        """Of the present path, as far as a model saw or said it."""
        return [msgspec.json.decode(text) for text in self.path]

    def place(self) -> "Place":
        """Where it stands."""
        told = self.told[-1] if self.told else None
        return Place(tuple(self.path), tuple(self.seen), self.whole, told)

    def go_back(self, place: "Place") -> None:
        """Another path from here on; the turn before it may still be gone on from."""
        self.path, self.seen, self.whole = list(place.path), list(place.seen), place.whole
        told = place.told
        if told is not None:
            self._hold(Told(told.turn_id, self.path, len(self.path), told.ids, told.handed))

    def step(self, action: Message) -> Drawn:
        """A step whose action no model call was told for: everything so far led to it."""
        before = 0 if self.whole else len(self.path)
        return Drawn(self.seen, _NO_IDS, _NO_IDS, None, json_text(action), before)

    def saw(self, messages: Iterable[Message], *, whole: bool) -> str:
        """A new observation; its JSON."""
        self.seen, self.whole = [json_text(message) for message in messages], whole
        return f"[{','.join(bytes(text).decode() for text in self.seen)}]"

    def event(self, session_id: str, turn_id: str, drawn: Drawn, fields: dict[str, Any]) -> Turn:
        """The turn, on the best base there is."""
        base, kept_messages, kept_ids = self._base(drawn)
        tools = fields.pop("tools", None)
        if tools is not None:
            text = json_text(plain(tools))
            digest = blake2b(bytes(text), digest_size=16).hexdigest()
            known = self._tools.get(digest)
            has_it = known is not None and known.done() and known.exception() is None
            fields |= {"tools_digest": digest, "tools": NOT_GIVEN if has_it else text}
        running = prompt_hash()
        running.update(drawn.prompt_ids.tobytes())
        newest = next((told for told in reversed(self.told) if told.acknowledged), None)
        return Turn(
            session_id=session_id,
            turn_id=turn_id,
            prompt_messages=tuple(self._behind(drawn, kept_messages)),
            prompt_ids=drawn.prompt_ids[kept_ids:],
            output_ids=drawn.output_ids,
            logprobs=drawn.logprobs,
            response_message=drawn.response,
            prev=None if newest is None else newest.offset,
            base_turn_id=None if base is None else base.turn_id,
            kept_messages=None if base is None else kept_messages,
            kept_ids=None if base is None else kept_ids,
            prompt_digest=Octets(running.digest()),
            **fields,
        )

    def handed(self, event: Turn, drawn: Drawn, handed: Handed) -> None:
        """The turn is on its way; what follows goes on from it."""
        whole = [*drawn.messages, drawn.response] if drawn.response else drawn.messages
        known = len(self.path) - drawn.before
        if whole[:known] == self.path[drawn.before :]:
            self.path += whole[known:]
        else:
            self.path = self.path[: drawn.before] + whole
        self.seen = []
        ids = np.concatenate([drawn.prompt_ids, drawn.output_ids])
        self._hold(Told(event.turn_id, self.path, len(self.path), ids, handed))
        if event.tools and event.tools_digest:
            self._tools[event.tools_digest] = handed

    def _hold(self, told: Told) -> None:
        self.told.append(told)
        self._ids_held += told.ids.size
        while len(self.told) > _BASES_FEW and (
            len(self.told) > _BASES_MOST or self._ids_held > _BASE_IDS_MOST
        ):
            self._ids_held -= self.told.popleft().ids.size

    def _base(self, drawn: Drawn) -> tuple[Told | None, int, int]:
        """The turn that shares most with the call, and how much of it."""
        best: tuple[Told | None, int, int] = (None, 0, 0)
        for told in reversed(self.told):
            if not told.acknowledged:
                continue
            kept = self._shared(told, drawn), _shared_ids(told.ids, drawn.prompt_ids)
            if kept[::-1] > (best[2], best[1]):
                best = told, *kept
            if kept == (told.length, told.ids.size):
                break  # all of it is there; no other has more that is worth it
        return best

    def _shared(self, told: Told, drawn: Drawn) -> int:
        """How many messages of a turn the call repeats."""
        start = min(told.length, drawn.before) if told.path is self.path else 0
        count = drawn.before + len(drawn.messages)
        if start < drawn.before:
            theirs = [*self.path[start : drawn.before], *drawn.messages]
        else:
            theirs = drawn.messages[start - drawn.before :]
        for at, (ours, other) in enumerate(
            zip(told.path[start : told.length], theirs, strict=False)
        ):
            if ours != other:
                return start + at
        return min(told.length, count)

    def _behind(self, drawn: Drawn, kept: int) -> list[msgspec.Raw]:
        """The call's messages without the first so many."""
        if kept >= drawn.before:
            return drawn.messages[kept - drawn.before :]
        return [*self.path[kept : drawn.before], *drawn.messages]


def _shared_ids(ours: Ids, theirs: Ids) -> int:
    most = min(ours.size, theirs.size)
    differ = ours[:most] != theirs[:most]
    return int(differ.argmax()) if differ.any() else most


def _ids(given: Sequence[int] | Ids, name: str) -> Ids:
    if len(given) == 0:
        return _NO_IDS
    wide = np.asarray(given)
    if wide.ndim != 1 or wide.dtype.kind not in "iu":
        raise BadRecord("invalid_field", f"`{name}` is no list of whole numbers")
    if wide.min() < 0 or wide.max() > TOKEN_ID_MAX:
        detail = f"`{name}` has ids from {wide.min()} to {wide.max()}; they go from 0 to 2^31 - 1"
        raise BadRecord("invalid_field", detail)
    return wide.astype(np.int32)  # a copy
