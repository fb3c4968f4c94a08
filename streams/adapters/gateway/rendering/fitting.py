"""Whether a call's text can fit into the window at all, told before any of it is rendered.

    characters for each token of the window
    up to 5      rendered, then counted: most text has three to five
    up to 16     counted piece by piece, in a thread
    more         refused: no text that says something has as few tokens

Rendering and encoding hold every stream up, and a body may carry a hundred windows.

Invariant: what is counted and refused would not have fitted: a cut through a text adds a few
tokens, and these are not counted.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

from streams.adapters.dialects.calls import Call
from streams.adapters.dialects.common import ContextOverflow

COUNTED_FROM = 5
REFUSED_FROM = 16
"""Characters for each token of the window."""
_USUAL = 4
"""Characters of a token, where nothing is counted."""
SHORT = 262_144
"""Characters that are rendered at once in any case: the exact count helps clients to compact."""
_PIECE = 65_536
_PIECE_MARGIN = 8
"""Tokens that a cut at either end may add."""
_TEXT_MARGIN = 2


class Fitting:
    """Counts with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Nothing is counted yet."""
        self._tokenizer = tokenizer

    async def check(self, call: Call, window_tokens: int) -> None:
        """Refuse a call that is far beyond the window.

        Raises:
            ContextOverflow: with a count near the real one, for clients that cut by it.
        """
        texts = list(_texts((call.messages, call.tools)))
        size = sum(map(len, texts))
        if size <= SHORT:
            return
        if size > window_tokens * REFUSED_FROM:
            raise ContextOverflow(size // _USUAL, window_tokens)
        if size > window_tokens * COUNTED_FROM:
            least = await asyncio.to_thread(self._least, texts)
            if least > window_tokens:
                raise ContextOverflow(least, window_tokens)

    def _least(self, texts: list[str]) -> int:
        """In a thread: how many tokens they are at least. Clients cut their history by it."""
        whole = "\n".join(texts)
        least = -_TEXT_MARGIN * len(texts)
        for start in range(0, len(whole), _PIECE):
            piece = whole[start : start + _PIECE]
            try:
                (found,) = self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)
            except (TypeError, UnicodeError):
                continue  # half a character; whoever renders it says so
            least += len(found) - _PIECE_MARGIN
        return least


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, Iterable):
        for item in value:
            yield from _texts(item)
