"""Families beside Qwen3: by their markers while they stream, whole where they have none."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from streams.adapters.gateway.rendering.detokenising import Vocabulary
from tests.adapters.gateway.answers.drawn import Heard, Setting, call, heard, one_by_one
from tests.adapters.gateway.rendering.families import (
    MARKERS,
    byte_tokenizer,
    encode,
    grammar,
    unknown,
)

LS = 'calls bash {"command": "ls"}'


@dataclass(frozen=True)
class Case:
    family: str
    sampled: str
    drawing: str
    ill_formed: bool = False
    disagreed: bool = False


XML = (
    "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
)
KEYS = "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>"
INVOKE = '<invoke name="bash"><parameter name="command">ls</parameter></invoke>'
BROKEN = '<invoke name="bash"><parameter name="n">no JSON</parameter></invoke>'
JSON = '{"name": "bash", "parameters": {"command": "ls"}}'

CASES = {
    "calls in tags": Case(
        "Qwen35",
        f"<think>\nhm.\n</think>\n\nLook.\n{XML}<|im_end|>",
        f'thinks "hm." says "Look." {LS}',
    ),
    "a call in tags without a function": Case(
        "Qwen35", "<tool_call>ls</tool_call>", 'says "<tool_call>ls</tool_call>"', True
    ),
    "a call that ends an open thought": Case("Qwen35", f"<think>hm{XML}", f'thinks "hm" {LS}'),
    "keys and values": Case(
        "GLM45", f"<think>hm</think>Look.{KEYS}<|user|>", f'thinks "hm" says "Look." {LS}'
    ),
    "a call that this family never takes for a draft": Case(
        "GLM45", f"<think>hm{KEYS}</think>", f'thinks "hm" {LS}'
    ),
    "two calls in one block": Case(
        "MiniMaxM2",
        f"<think>hm</think>Look.<minimax:tool_call>{INVOKE}\n{INVOKE}</minimax:tool_call>[e~[",
        f'thinks "hm" says "Look." {LS} {LS}',
    ),
    "a block of which one call is broken": Case(
        "MiniMaxM2",
        f"<minimax:tool_call>{INVOKE}{BROKEN}</minimax:tool_call>[e~[",
        f'says "<minimax:tool_call>{INVOKE}{BROKEN}</minimax:tool_call>"',
        ill_formed=True,
        disagreed=True,  # the reader would run the other one
    ),
    "a block without a call": Case(
        "MiniMaxM2",
        "<minimax:tool_call>ls</minimax:tool_call>[e~[",
        'says "<minimax:tool_call>ls</minimax:tool_call>"',
        True,
    ),
    "a call without markers": Case("Llama3", f"{JSON}<|eot_id|>", LS),
    "text without markers": Case("Llama3", "Look.<|eot_id|>more", 'says "Look."'),
}


def read(case: Case, *, whole: bool = False) -> Heard:
    setting = Setting(by=grammar(case.family), prompt="")
    ids = encode(case.family, case.sampled)
    return heard(ids, setting) if whole else one_by_one(ids, setting)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_family_is_read_as(case: Case) -> None:
    answer = read(case)
    assert answer.drawing == case.drawing
    assert answer.parsed.ill_formed == case.ill_formed
    assert answer.parsed.disagreed == case.disagreed
    assert read(case, whole=True).drawing == case.drawing


def test_a_family_without_markers_is_given_at_its_end() -> None:
    answer = read(CASES["text without markers"])
    assert answer.given == []
    assert len(answer.parsed.pieces) == 1


def test_a_family_with_markers_is_given_while_it_streams() -> None:
    answer = read(CASES["calls in tags"])
    assert answer.parsed.pieces == ()


def test_stop_strings_cut_an_answer_that_is_read_whole() -> None:
    setting = Setting(by=grammar("Llama3"), prompt="", asked=call(stop=("STOP",)))
    assert heard(encode("Llama3", "One. STOP two"), setting).drawing == 'says "One."'


def test_without_a_reader_thinking_is_told_apart_and_calls_are_text() -> None:
    markers = MARKERS["Qwen35"]
    ids = list(byte_tokenizer(markers).encode(f"<think>hm</think>a{XML}<|im_start|>b"))
    setting = Setting(by=unknown(markers), prompt="")
    assert one_by_one(ids, setting).drawing == f'thinks "hm" says "a{XML}"'


def test_without_a_reader_or_markers_everything_is_text() -> None:
    ids = list(byte_tokenizer("<end>").encode("<think>hm</think>a<end>b"))
    setting = Setting(by=unknown("<end>"), prompt="")
    assert one_by_one(ids, setting).drawing == 'says "<think>hm</think>a"'


LETTERS = ["▁", "▁Hello", "▁world", "lo", "é", "."]


def sentence_piece_like() -> Tokenizer:
    """A vocabulary whose words carry their blank, with a token for each byte besides."""
    words = [*LETTERS, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=[]))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return tokenizer


def byte_ids(text: str) -> list[int]:
    return [len(LETTERS) + byte for byte in text.encode()]


parts = st.sampled_from([[n] for n in range(len(LETTERS))] + [byte_ids(c) for c in "aé€🤝"])


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(parts, max_size=12).map(lambda chosen: [t for part in chosen for t in part]))
def test_a_vocabulary_whose_words_carry_blanks_is_read_as_it_decodes(ids: list[int]) -> None:
    tokenizer = sentence_piece_like()
    stream = Vocabulary(tokenizer).stream()
    pieces = [stream.push([token]) for token in ids]
    assert "".join(pieces) + stream.flush() == tokenizer.decode(ids, skip_special_tokens=False)


def test_half_a_character_in_byte_tokens_is_held_back() -> None:
    stream = Vocabulary(sentence_piece_like()).stream()
    first, *rest = byte_ids("€")
    assert stream.push([first]) == ""
    assert stream.push(rest) == "€"


def test_bytes_that_never_become_a_character_are_given_at_last() -> None:
    stream = Vocabulary(sentence_piece_like()).stream()
    assert "\ufffd" in stream.push(byte_ids("€")[:1] * 4)
