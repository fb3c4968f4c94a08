r"""Text becomes ids, and what a client spells never becomes a control token.

A chat template writes `<|im_end|>` to close a message; a user may write the same characters in
one. Text that comes from a client is therefore guarded before it is rendered: a mark stands
inside every spelling of a control token. Encoding splits at the spellings that are left, which
are the template's, and takes the marks out of what lies between them.

    user writes   say <|im_end|> twice
    guarded       say <#|im_end|> twice         # is the mark, U+FDD0, which is no character
    rendered      <|im_start|>user\nsay <#|im_end|> twice<|im_end|>
    ids           151644 ... 27 91 318 6213 91 29 ... 151645

Text that spells nothing is encoded by the tokenizer as it is.

A text may be a thousand times what a model can read, and its ids take fifty times its memory.
`encoding_at_most` says how many ids have room; a text of more is counted and refused.

Invariant: without marks, `encode` gives what the tokenizer gives. With them, control tokens stand
only where the template wrote them, and the rest decodes to what the client wrote. Threads may
encode at the same time.
"""

import contextlib
import functools
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
from tokenizers import Tokenizer

from schemas.record import Ids
from streams.adapters.gateway.rendering.counting import is_long, least_ids
from streams.adapters.gateway.rendering.detokenising import Vocabulary
from streams.adapters.gateway.rendering.wording import Words, find_words
from streams.errors import TurnstreamError

MARK = "\ufdd0"
_MARKED = re.compile(f"{MARK}({MARK}?)")
_Given = TypeVar("_Given")
ONCE_MAX = 16_384
"""Hashes of texts that came once."""
OFTEN_CHARACTERS_MAX = 8 << 20
"""Of all texts together that came again and whose ids are kept; one has a fortieth at most."""


class RenderFailed(TurnstreamError):
    """These messages cannot be printed; the text says why."""


class BeyondLimit(TurnstreamError):
    """A text has far more ids than have room."""

    def __init__(self, tokens: int, limit: int) -> None:
        """`tokens` are at least so many, or estimated."""
        super().__init__(f"{tokens} tokens where {limit} have room")
        self.tokens, self.limit = tokens, limit


_LIMIT: ContextVar[int | None] = ContextVar("how many ids a text may have", default=None)


@contextlib.contextmanager
def encoding_at_most(limit: int | None) -> Iterator[None]:
    """Within the block `BeyondLimit` is raised for long text that has more ids; None: never."""
    token = _LIMIT.set(limit)
    try:
        yield
    finally:
        _LIMIT.reset(token)


class Encoder:
    """One tokenizer; what comes often is encoded once, which changes no id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Look up the control tokens."""
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._control = {token.content: number for number, token in added.items()}
        # The longest first: where one spelling begins another, the tokenizer takes the longer.
        spellings = sorted(self._control, key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, spellings)) or "(?!)")
        self._special = {token.content for token in added.values() if token.special}
        # Tokens that swallow blanks around them or stand only at a word's edge are not split
        # the way it is done here; then the text stays as it came.
        self.guards = not any(
            token.lstrip
            or token.rstrip
            or token.single_word
            or (token.normalized and tokenizer.normalizer is not None)
            for token in added.values()
        )
        self._vocabulary = Vocabulary(tokenizer)
        self._often: dict[str, Ids] = {}
        self._often_characters = 0
        self._once: dict[int, None] = {}
        self._noticing = threading.Lock()
        self._ordinary = Tokenizer(tokenizer.model)
        if tokenizer.normalizer is not None:
            self._ordinary.normalizer = tokenizer.normalizer
        if tokenizer.pre_tokenizer is not None:
            self._ordinary.pre_tokenizer = tokenizer.pre_tokenizer
        self._words: Words | None = None
        if self.guards and not any(token.normalized for token in added.values()):
            self._words = find_words(self._ordinary)

    def encode(self, text: str) -> list[int]:
        """The ids of rendered text."""
        kept = self._often.get(text)
        if kept is not None:
            return list[int](kept.tolist())
        self._check_limit(text)
        ids = self._encode(text)
        with self._noticing:
            self._notice(text, ids)
        return ids

    def _check_limit(self, text: str) -> None:
        limit = _LIMIT.get()
        if limit is None or not is_long(len(text.encode(errors="replace")), limit):
            return
        plain = _MARKED.sub(r"\1", text)
        least = least_ids(functools.partial(countable, self.tokenizer), [plain], len(plain), limit)
        if least > limit:
            raise BeyondLimit(least, limit)

    def _notice(self, text: str, ids: list[int]) -> None:
        """Keep what comes a second time: a system prompt with its tools, a task of a group.

        What comes once, as most tool results do, leaves only its hash.
        """
        seen = hash(text)
        if seen not in self._once:
            self._once[seen] = None
            if len(self._once) > ONCE_MAX:
                self._once.pop(next(iter(self._once)), None)
        elif len(text) <= OFTEN_CHARACTERS_MAX // 40:
            self._often[text] = as_ids(ids)
            self._often_characters += len(text)
            while self._often_characters > OFTEN_CHARACTERS_MAX:
                oldest = next(iter(self._often))
                del self._often[oldest]
                self._often_characters -= len(oldest)

    def _encode(self, text: str) -> list[int]:
        if not self.guards or (self._words is None and MARK not in text):
            return _ids(self.tokenizer, text)
        ids: list[int] = []
        start = 0
        for control in self._spelled.finditer(text):
            ids += self._encode_ordinary(text[start : control.start()])
            ids.append(self._control[control[0]])
            start = control.end()
        return ids + self._encode_ordinary(text[start:])

    def _encode_ordinary(self, text: str) -> list[int]:
        text = _MARKED.sub(r"\1", text)
        ids = None if self._words is None else self._words.encode(text)
        return _ids(self._ordinary, text) if ids is None else ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, control tokens included."""
        return self._vocabulary.text(map(int, ids))

    def control_id(self, spelling: str) -> int | None:
        """The id of a control token."""
        return self._control.get(spelling)

    def first_special(self, text: str) -> str | None:
        """The first special token that the text spells."""
        found = (match[0] for match in self._spelled.finditer(text))
        return next((spelling for spelling in found if spelling in self._special), None)

    def guard(self, value: _Given) -> _Given:
        """The same JSON value with marks in its strings; itself if nothing is spelled."""
        return self._guarded(value) if self.guards else value

    def _guarded(self, value: Any) -> Any:
        if isinstance(value, str):
            if MARK not in value and self._spelled.search(value) is None:
                return value
            value = value.replace(MARK, MARK * 2)
            return self._spelled.sub(lambda match: match[0][0] + MARK + match[0][1:], value)
        if isinstance(value, Mapping):
            keys = [self._guarded(key) for key in value]
            items = [self._guarded(item) for item in value.values()]
            if _same(keys, value) and _same(items, value.values()):
                return value
            return dict(zip(keys, items, strict=True))
        if isinstance(value, Sequence):
            items = [self._guarded(item) for item in value]
            return value if _same(items, value) else items
        return value


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        # The fast form leaves out offsets, which nobody reads; the ids are the same.
        ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    except (TypeError, UnicodeError) as error:
        raise RenderFailed("a message holds half a surrogate pair, which is no text") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        # Its regular expressions give up on runs of millions of blanks; that is no `Exception`.
        raise RenderFailed(f"a message cannot be encoded: {error}") from error
    return ids


def countable(tokenizer: Tokenizer, text: str) -> Sized | None:
    """Something as long as the ids of a text; None if it has none."""
    try:
        return _ids(tokenizer, text)
    except RenderFailed:
        return None  # half a character, mostly; whoever renders it says so


def _same(left: Iterable[Any], right: Iterable[Any]) -> bool:
    return all(one is other for one, other in zip(left, right, strict=True))


def as_ids(ids: Iterable[int]) -> Ids:
    """Ids as a read-only array."""
    array = np.fromiter(ids, np.int32)
    array.flags.writeable = False
    return array
