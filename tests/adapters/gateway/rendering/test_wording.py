"""Text encoded word by word has the ids that the tokenizer gives it."""

import itertools
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from streams.adapters.gateway.rendering.encoding import MARK, Encoder
from streams.adapters.gateway.rendering.wording import (
    WORD_CHARACTERS_MAX,
    WORDS_MAX,
    Words,
    find_words,
)
from tests.adapters.gateway.prompts.prompt_setting import renderer

ENCODER = Encoder(renderer().backend)
CONTROL = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</think>", "<|im_", "_end|>"]
SNIPPETS = [
    "def f(x):\n    return x\n",
    "it's WE'LL 'S",
    "  \n\n\t x",
    "1234.5e-6",
    "\r\n",
    "a" * 99,
]
TEXTS = st.lists(
    st.one_of(
        st.text(st.characters(max_codepoint=0x7F)),
        st.text(st.characters(exclude_characters=MARK, exclude_categories=["Cs"]), max_size=5),
        st.sampled_from(CONTROL + SNIPPETS),
    )
).map("".join)


def words() -> Words:
    tokenizer = Tokenizer(ENCODER.tokenizer.model)
    tokenizer.normalizer = ENCODER.tokenizer.normalizer
    tokenizer.pre_tokenizer = ENCODER.tokenizer.pre_tokenizer
    found = find_words(tokenizer)
    assert found is not None
    return found


@settings(max_examples=500)
@given(TEXTS)
def test_any_text_has_the_ids_that_the_tokenizer_gives_it(text: str) -> None:
    expected = ENCODER.tokenizer.encode(text, add_special_tokens=False).ids
    assert ENCODER.encode(text) == expected


def test_only_plain_text_is_read_by_words() -> None:
    assert words().encode("plain text,\n\tof 1 line") is not None
    assert [words().encode(text) for text in ("café", "\x1f", "\0", MARK)] == [None] * 4


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
BUILT_OTHERWISE = {
    "no pattern": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    "something between the words": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("[a-z]+"), "isolated"), BYTES]
    ),
    "a pattern that Python cannot read": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{Lu}+|\P{Lu}+"), "isolated"), BYTES]
    ),
    "a further cut": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\S+|\s+"), "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            BYTES,
        ]
    ),
}


@pytest.mark.parametrize("name", BUILT_OTHERWISE)
def test_a_tokenizer_that_is_built_otherwise_is_asked_itself(name: str) -> None:
    tokenizer = Tokenizer(ENCODER.tokenizer.model)
    tokenizer.pre_tokenizer = BUILT_OTHERWISE[name]
    assert find_words(tokenizer) is None


def test_another_model_is_asked_itself() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = ENCODER.tokenizer.pre_tokenizer
    assert find_words(tokenizer) is None


def test_what_is_kept_is_bounded() -> None:
    kept = words()
    kept.encode("x" * (WORD_CHARACTERS_MAX + 1))
    assert not any(len(word) > WORD_CHARACTERS_MAX for word in kept)
    letters = itertools.product(string.ascii_lowercase, repeat=4)
    text = "".join(" " + "".join(word) for word in itertools.islice(letters, WORDS_MAX + 10))
    assert kept.encode(text) == ENCODER.tokenizer.encode(text, add_special_tokens=False).ids
    assert len(kept) <= WORDS_MAX
