r"""Plain text becomes ids word by word, and each word is encoded once.

A byte-level tokenizer cuts text into words by a pattern and encodes every word by itself, so
equal words have equal ids wherever they stand. Its own walk keeps, for each character, where it
came from, which nobody reads here and which costs more than everything else.

    def main():\n     ─►   def | Ġmain | ():Ċ     ─►   750 1887 3932

Only printable ASCII with its blanks is taken: it is the same in every normal form, and what is a
letter, a digit or a blank in it is the same for every reader of a pattern.

Invariant: what `encode` gives is what the tokenizer gives. A tokenizer that is not built so, or
gives other ids for the text that is tried at the start, has no such reader.
"""

import itertools
import json
import re

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC, NFKC

WORDS_MAX = 100_000
WORD_CHARACTERS_MAX = 40
"""Longer ones seldom come again."""
TEXT_CHARACTERS_MAX = 524_288
"""Longer texts are left to the tokenizer: it lets other threads run, and a pattern does not."""
_PLAIN = re.compile(r"[\t\n\r -~]*").fullmatch
_LETTERS = str.maketrans({"\t": "\u0109", "\n": "\u010a", "\r": "\u010d", " ": "\u0120"})
"""How byte-level vocabularies spell the bytes that do not print; the others are themselves."""
_ALL = "\t\n\r" + "".join(map(chr, range(0x20, 0x7F)))
_KINDS = "aStZ09_.' \n\r\t"
"""Of each kind of character some; all runs of three are tried."""


class Words(dict[str, tuple[int, ...]]):
    """The ids of words met so far."""

    def __init__(self, tokenizer: Tokenizer, pattern: str) -> None:
        """`pattern` cuts text into words."""
        super().__init__()
        self._model = tokenizer.model
        self._cut = re.compile(_ascii(pattern)).findall

    def encode(self, text: str) -> list[int] | None:
        """The ids of a text without control tokens; None if it is not plain, or very long."""
        if len(text) > TEXT_CHARACTERS_MAX or _PLAIN(text) is None:
            return None
        words = self._cut(text)
        if sum(map(len, words)) != len(text):
            return None  # something stands between the words
        return list(itertools.chain.from_iterable(map(self.__getitem__, words)))

    def __missing__(self, word: str) -> tuple[int, ...]:
        """Encode a word, and keep it if it is short."""
        ids = tuple(token.id for token in self._model.tokenize(word.translate(_LETTERS)))
        if len(word) <= WORD_CHARACTERS_MAX:
            if len(self) >= WORDS_MAX:
                self.clear()
            self[word] = ids
        return ids


def find_words(tokenizer: Tokenizer) -> Words | None:
    """The words of a tokenizer that knows no control tokens; None if it is built otherwise."""
    pattern = _pattern(tokenizer)
    if pattern is None:
        return None
    try:
        words = Words(tokenizer, pattern)
    except re.error:
        return None
    runs = (itertools.product(_ALL, repeat=2), itertools.product(_KINDS, repeat=3))
    text = "".join(itertools.chain.from_iterable(itertools.chain.from_iterable(runs)))
    tried: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return words if words.encode(text) == tried else None


def _ascii(pattern: str) -> str:
    r"""A pattern of tokenizers for Python, which does not know `\p`, and for ASCII text."""

    def spelled(found: re.Match[str]) -> str:
        form = "{}" if found[0].startswith("[") else "[{}]"
        text = found[0].replace(r"\p{L}", form.format("A-Za-z"))
        return text.replace(r"\p{N}", form.format("0-9"))

    return re.sub(r"\[(?:\\.|[^\]\\])*\]|\\p\{[LN]\}", spelled, pattern)


def _pattern(tokenizer: Tokenizer) -> str | None:
    """How text is cut, if that and the spelling of its bytes is all that is done to it."""
    normal = tokenizer.normalizer is None or isinstance(tokenizer.normalizer, NFC | NFKC)
    if not normal or not isinstance(tokenizer.model, BPE) or tokenizer.model.dropout:
        return None
    if tokenizer.pre_tokenizer is None:
        return None
    match json.loads(tokenizer.pre_tokenizer.__getstate__()).get("pretokenizers"):
        case [
            {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated"} as cut,
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if not cut["invert"]:
            return pattern
    return None
