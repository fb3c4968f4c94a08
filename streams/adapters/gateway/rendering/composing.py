"""A prompt put together from what was recorded and what is rendered around it.

    an answer ─ messages ─ an answer ─ messages ─ the header of the answer to come
    recorded    rendered   recorded    rendered   rendered
                           or given

Each stretch is rendered by itself, behind the answer before it. So an answer keeps its tokens,
its reasoning included, whatever comes later, and what was rendered once is rendered the same
way again. A conversation may end with an answer: the model then goes on in it where it has no
end token, and begins another where it has one.

Invariant: recorded ids appear unchanged and whole; nothing of them is rendered again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from schemas.record import Ids
from streams.adapters.dialects.calls import Message, Tool
from streams.adapters.gateway.rendering.encoding import as_ids

How = Literal["reuse", "bridge", "suffix"]
Prefill = Literal["continued", "closed"]
"""Where a prompt ends if the conversation ends with an answer: inside it, or behind it."""

_ORDER: tuple[How, ...] = ("reuse", "bridge", "suffix")


@dataclass(frozen=True, slots=True)
class Item:
    """One message of a conversation."""

    message: Message
    output: Ids | None = None
    """The ids it was sampled as, if this session sampled it."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """An answer that rendered ids follow: what it was sampled from, and what was sampled."""

    prompt: Ids
    """All of it, or its end from the last header on."""
    output: Ids


@dataclass(frozen=True, slots=True)
class Rendered:
    """Ids that follow an answer, and how they were found."""

    ids: list[int]
    how: How


@dataclass(frozen=True, slots=True)
class Composed:
    """What stands between the last recorded answer and the one to come."""

    ids: list[int]
    how: How
    prefill: Prefill | None = None


class Pieces(Protocol):
    """What prompts are put together from."""

    def head(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The start of a conversation, up to the header of its first answer."""
        ...

    def after(
        self, prompt: Ids, output: Ids, new: Sequence[Message], tools: Sequence[Tool]
    ) -> Rendered | None:
        """What follows an answer, up to the header of the next."""
        ...

    def given(
        self,
        spoken: Spoken | None,
        new: Sequence[Message],
        answer: Message,
        tools: Sequence[Tool],
        *,
        closed: bool,
    ) -> list[int] | None:
        """What follows an answer, through one that was not sampled here."""
        ...

    def has_end(self, output: Ids) -> bool:
        """Whether an answer's ids end with an end token."""
        ...


def compose(
    pieces: Pieces, spoken: Spoken | None, items: Sequence[Item], tools: Sequence[Tool]
) -> Composed | None:
    """The ids that follow `spoken`, or a whole prompt if it is None.

    None where a stretch cannot be rendered by itself.
    """
    ids: list[int] = []
    how: How = "reuse"
    pending: list[Message] = []
    for number, item in enumerate(items, 1):
        if item.message["role"] != "assistant":
            pending.append(item.message)
            continue
        if item.output is None:
            last = number == len(items)
            piece = pieces.given(spoken, pending, item.message, tools, closed=not last)
            if piece is None:
                return None
            ids += piece
            how = "suffix"
            if last:
                return Composed(ids, how, "continued")
            spoken = Spoken(as_ids(piece[:-1]), as_ids(piece[-1:]))
        else:
            opened = _opened(pieces, spoken, pending, tools)
            if opened is None:
                return None
            ids += opened.ids
            ids += item.output.tolist()
            how = max(how, opened.how, key=_ORDER.index)
            spoken = Spoken(as_ids(opened.ids), item.output)
        pending = []
    if not pending and spoken is not None and not pieces.has_end(spoken.output):
        return Composed(ids, how, "continued")
    opened = _opened(pieces, spoken, pending, tools)
    if opened is None:
        return None
    how = max(how, opened.how, key=_ORDER.index)
    return Composed(ids + opened.ids, how, None if pending else "closed")


def _opened(
    pieces: Pieces, spoken: Spoken | None, pending: Sequence[Message], tools: Sequence[Tool]
) -> Rendered | None:
    if spoken is not None:
        return pieces.after(spoken.prompt, spoken.output, pending, tools)
    return Rendered(pieces.head(pending, tools), "bridge") if pending else None
