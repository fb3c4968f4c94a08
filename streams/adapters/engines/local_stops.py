"""Where an answer ends: at a token, or at a text that its tokens spell.

Invariant: a text that is met ends the answer with the token that completes it.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

_SLACK = 8
"""Tokens beside those that can hold the text: the first ones may be parts of characters."""


class Stops:
    """The ends of one answer."""

    def __init__(
        self, ids: Iterable[int], texts: Sequence[str], tokenizer: Tokenizer | None
    ) -> None:
        """Without a tokenizer texts are not seen."""
        self._ids = frozenset(ids)
        self._texts = [text for text in texts if text] if tokenizer is not None else []
        self._tokenizer = tokenizer
        # A token spells a byte at least, so that many hold the longest text.
        longest = max((len(text.encode()) for text in self._texts), default=0)
        self._last: deque[int] = deque(maxlen=longest + _SLACK)

    def met(self, token: int) -> str | None:
        """What this token completes, if anything."""
        if token in self._ids:
            return str(token)
        if not self._texts or self._tokenizer is None:
            return None
        self._last.append(token)
        spelled = self._tokenizer.decode(list(self._last), skip_special_tokens=False)
        return next((text for text in self._texts if text in spelled), None)
