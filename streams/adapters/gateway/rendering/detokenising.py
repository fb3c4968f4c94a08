"""Sampled ids become text, a few at a time, and never half a character.

    ids      123918         |  ...      the first bytes of a character, the rest comes later
    text     (nothing yet)  |  the whole character

Byte-level vocabularies, which most models have, give each token its bytes, so that the text is
those bytes read as UTF-8. Any other tokenizer is asked to decode a short window of ids twice,
with and without the newest, since there a token's text depends on its neighbours.

Invariant: what a stream gives, joined, is what the tokenizer decodes from the same ids at once,
whatever the ids and however they were divided. Every token has its text, the special ones too:
what they mean is decided elsewhere.
"""

import codecs
from collections.abc import Iterable
from typing import Protocol

from tokenizers import Tokenizer, decoders

REPLACEMENT = "\ufffd"
CHARACTER_TOKENS_MAX = 4
"""A character has at most four bytes, so what is still broken after four tokens stays broken."""


class TextStream(Protocol):
    """The text of one run of ids."""

    def push(self, ids: Iterable[int]) -> str:
        """What is certain after these ids as well."""
        ...

    def flush(self) -> str:
        """The rest: nothing, or a sign for bytes that are no character. Then a new run begins."""
        ...


class Vocabulary:
    """The text of a tokenizer's tokens; one for all answers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Nothing is read before a token is met."""
        self._tokenizer = tokenizer
        self._bytes = _TokenBytes(tokenizer)
        self._byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)

    def stream(self) -> TextStream:
        return _ByteStream(self._bytes) if self._byte_level else _WindowStream(self._tokenizer)

    def text(self, ids: Iterable[int]) -> str:
        """The text of whole ids."""
        if self._byte_level:
            return b"".join(map(self._bytes.__getitem__, ids)).decode(errors="replace")
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def id_of(self, token: str) -> int | None:
        """The id of a token; None if there is none that is spelled so."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found


class _ByteStream:
    def __init__(self, table: "_TokenBytes") -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        return self._utf8.decode(b"".join(map(self._table.__getitem__, ids)))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _TokenBytes(dict[int, bytes]):
    """The bytes of each token met so far; what the vocabulary does not know has none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> bytes:
        spelled = self._tokenizer.id_to_token(token)
        found = b"" if spelled is None else _bytes_of(spelled)
        self[token] = found
        return found


def _bytes_of(spelled: str) -> bytes:
    """A token's own bytes; an added token with other letters stands for itself."""
    try:
        return bytes(_BYTE_OF[letter] for letter in spelled)
    except KeyError:
        return spelled.encode()


def _byte_letters() -> dict[str, int]:
    """The letter that byte-level vocabularies write for each byte.

    Bytes that print as Latin-1 are themselves; the others follow from 256 on, in their order.
    """
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printed]
    letters = {chr(byte): byte for byte in printed}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_letters()


class _WindowStream:
    """Decodes a few ids at a time, with the ones before them for their neighbours' sake."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._given = 0
        """How many ids of the window have given their text."""

    def push(self, ids: Iterable[int]) -> str:
        return "".join([self._step(token) for token in ids])

    def flush(self) -> str:
        rest = self._newest()
        self._window, self._given = [], 0
        return rest

    def _step(self, token: int) -> str:
        self._window.append(token)
        text = self._newest()
        waiting = len(self._window) - self._given
        if text.endswith(REPLACEMENT) and waiting < CHARACTER_TOKENS_MAX:
            return ""
        del self._window[: self._given]
        self._given = len(self._window)
        return text

    def _newest(self) -> str:
        before = self._decode(self._window[: self._given])
        return self._decode(self._window)[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)) if ids else ""
