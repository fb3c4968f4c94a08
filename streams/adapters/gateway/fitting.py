"""Whether a call's text can fit into the window at all, told before any of it is rendered.

    short        fewer characters than even plain prose has in a window: rendered, then counted
    too long     more than the window holds if every token were the longest there is: refused
    between      counted piece by piece, in a thread, up to the window and no further

Rendering and encoding hold every stream up, and a body may carry a hundred windows.

Invariant: what is refused here would not have fitted; a cut through a text adds a few tokens,
and these are not counted.
"""

import asyncio
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

from streams.adapters.dialects.calls import Call
from streams.adapters.dialects.common import ContextOverflow

CHARACTERS_EACH = 8
"""In a token, of text that is long for its tokens; most has three to five."""
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
            ContextOverflow: with a count that it has at least.
        """
        texts = list(_texts((call.messages, call.tools)))
        size = sum(map(len, texts))
        if size > window_tokens * CHARACTERS_EACH:
            least = await asyncio.to_thread(self._least, texts, size, window_tokens)
            if least > window_tokens:
                raise ContextOverflow(least, window_tokens)

    @functools.cached_property
    def _longest(self) -> int:
        """Characters of the longest token; a byte counts as one where tokens are bytes."""
        return max(map(len, self._tokenizer.get_vocab()), default=1)

    def _least(self, texts: list[str], size: int, window_tokens: int) -> int:
        """In a thread: how many tokens they are at least, counted as far as it matters."""
        if size > window_tokens * self._longest:
            return size // self._longest
        whole = "\n".join(texts)
        least = -_TEXT_MARGIN * len(texts)
        for start in range(0, len(whole), _PIECE):
            piece = whole[start : start + _PIECE]
            try:
                (found,) = self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)
            except (TypeError, UnicodeError):
                continue  # half a character; whoever renders it says so
            least += len(found) - _PIECE_MARGIN
            if least > window_tokens:
                break
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
