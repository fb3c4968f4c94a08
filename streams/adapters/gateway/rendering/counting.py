"""How much there is to render and to encode, found out before it is done.

    a JSON value   its texts: strings, names of fields, numbers     `texts`, `exceeds`
    a text         how many ids it has at least, piece by piece     `least_ids`

How many characters a token has at most says little: one token of Qwen3 is 128 blanks, while prose
has four characters for each. So a long text is counted before it is refused: to its end where it
may be the whole of an agent's history, because clients cut by the number, and else until it is
sure that it does not fit.

Invariant: no text has fewer ids than `least_ids` found in what it encoded; a cut through a text
adds a few, and these are left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

COUNTED_FROM = 5
ESTIMATED_FROM = 16
"""Characters for each token of the window; text that says something has fewer than these."""
SHORT = 262_144
"""Characters that are rendered and encoded at once in any case."""
PIECE = 65_536
_CUT_MARGIN = 8
"""Ids that a cut at either end of a piece may add."""
_TEXT_MARGIN = 2
"""Ids that two texts may have less where they are one."""

Encode = Callable[[str], Sized | None]
"""The ids of a text; None where they cannot be told."""


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, and an empty one for each list and object."""
    open_values: list[Iterator[Any]] = [iter((value,))]
    while open_values:
        for item in open_values[-1]:
            if isinstance(item, str):
                yield item
            elif isinstance(item, Mapping):
                yield ""
                yield from item
                open_values.append(iter(item.values()))
                break
            elif isinstance(item, Iterable):
                yield ""
                open_values.append(iter(item))
                break
            elif isinstance(item, int | float) and not isinstance(item, bool):
                yield str(item)
        else:
            open_values.pop()


def exceeds(value: Any, most: int, *, each: int) -> bool:
    """Whether the texts of a JSON value are longer together, if each counts for `each` more."""
    size = 0
    for text in texts(value):
        size += len(text) + each
        if size > most:
            return True
    return size > most


def is_long(size: int, limit: int) -> bool:
    """Whether text of this size is counted before anything else, where `limit` ids have room."""
    return size > max(SHORT, limit * COUNTED_FROM)


def least_ids(encode: Encode, parts: Iterable[str], size: int, limit: int) -> int:
    """How many ids some texts of this size have together, at least.

    If they are too long to be counted to the end, the rest of those beyond `limit` is estimated.
    """
    to_the_end = size <= limit * ESTIMATED_FROM
    least = counted = 0
    for piece, number in _pieces(parts):
        counted += len(piece)
        found = encode(piece)
        if found is not None:
            least += max(0, len(found) - _CUT_MARGIN - _TEXT_MARGIN * number)
        if least > limit and not to_the_end:
            return least * size // counted
    return least


def _pieces(parts: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The texts in pieces of nearly one length, and of how many texts each is."""
    waiting: list[str] = []
    room = PIECE
    for text in parts:
        for start in range(0, len(text), PIECE):
            part = text[start : start + PIECE]
            if len(part) > room:
                yield "\n".join(waiting), len(waiting)
                waiting, room = [], PIECE
            waiting.append(part)
            room -= len(part)
    yield "\n".join(waiting), len(waiting)
