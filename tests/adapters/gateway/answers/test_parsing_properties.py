"""Whatever is sampled and however it is divided: one answer, and nothing is taken back.

The ids are markers in any order, calls whole and broken, words, halves of characters, and ids
drawn from the whole vocabulary and beyond it.
"""

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from streams.adapters.dialects.calls import Reasoning, Text, ToolCall
from streams.adapters.gateway.answers.grammar import usable
from tests.adapters.gateway.answers.drawn import (
    CALL,
    HEADER,
    THINKING_HEADER,
    Heard,
    Setting,
    backend,
    call,
    encode,
    heard,
    joined,
    loaded,
    one_by_one,
    reader_view,
    spelled,
)

BEYOND_THE_VOCABULARY = 152_000
HALF_A_CHARACTER = [123918]
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "<|endoftext|>"]
WORDS = ["a", " the", ".\n", "\n\n", " ", "STOP", "ST", "OP", "é", "🤝🏿", "{", '"name": "bash"']
CALLS = [
    CALL,
    '<tool_call>{"name":"bash","arguments":{"a":[1,2.5,null]}}</tool_call>',
    '<tool_call>{"name": "bash", "arguments": [1]}</tool_call>',
    "<tool_call>not JSON</tool_call>",
    '<tool_call>{"name": "bash"',
]

chunk = st.one_of(
    st.sampled_from(MARKS).map(encode),
    st.sampled_from(WORDS).map(encode),
    st.sampled_from(CALLS).map(encode),
    st.just(HALF_A_CHARACTER),
    st.integers(0, BEYOND_THE_VOCABULARY).map(lambda token: [token]),
    st.integers(100, 255).map(lambda token: [token]),
)
answers = st.lists(chunk, max_size=14).map(lambda chunks: list(itertools.chain(*chunks)))
prompts = st.sampled_from([HEADER, THINKING_HEADER, f"{THINKING_HEADER}\n</think>\n\n"])
stops = st.sampled_from([(), ("STOP",), ("\n\n", "TO"), ("<tool_call>",), (" the", "e", "\n")])


def said_once(answer: Heard) -> None:
    """What was given piece by piece is the final answer."""
    pieces = [*answer.given, *answer.parsed.pieces]
    thoughts = [piece.text for piece in pieces if isinstance(piece, Reasoning)]
    texts = [piece.text for piece in pieces if isinstance(piece, Text)]
    assert "".join(thoughts) == answer.parsed.reasoning
    assert "".join(texts) == answer.parsed.text
    assert tuple(p for p in pieces if isinstance(p, ToolCall)) == answer.parsed.tool_calls


@settings(max_examples=300, deadline=None)
@given(ids=answers, prompt=prompts, stop=stops, data=st.data())
def test_an_answer_is_the_same_however_it_is_divided(
    ids: list[int], prompt: str, stop: tuple[str, ...], data: st.DataObject
) -> None:
    setting = Setting(asked=call(stop=stop), prompt=prompt)
    cuts = data.draw(st.sets(st.integers(0, len(ids))))
    whole, single, divided = (
        heard(ids, setting),
        one_by_one(ids, setting),
        heard(ids, setting, cuts),
    )
    for answer in (whole, single, divided):
        said_once(answer)
        assert answer.parsed.response_message == whole.parsed.response_message
        assert answer.parsed.reasoning_tokens == whole.parsed.reasoning_tokens
        assert answer.parsed.ill_formed == whole.parsed.ill_formed
        assert answer.parsed.disagreed == whole.parsed.disagreed
        assert joined([*answer.given, *answer.parsed.pieces]) == joined(
            [*whole.given, *whole.parsed.pieces]
        )


@settings(max_examples=300, deadline=None)
@given(ids=answers, prompt=prompts)
@example(ids=encode(f"<think>a{CALL}b<think>c"), prompt=HEADER)
@example(ids=encode(f"a{CALL}b</think>{CALL}"), prompt=THINKING_HEADER)
def test_calls_and_reasoning_are_those_the_reader_sees(ids: list[int], prompt: str) -> None:
    parsed = one_by_one(ids, Setting(prompt=prompt)).parsed
    seen = reader_view(ids, prompt=prompt)
    calls = [usable(attempt) for attempt in seen.tool_calls]
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [
        (call.name, call.arguments) for call in calls if call
    ]
    assert parsed.reasoning == (seen.reasoning_content or "").strip()
    assert parsed.ill_formed == (None in calls)
    assert not parsed.disagreed


@settings(max_examples=300, deadline=None)
@given(ids=answers, prompt=prompts)
def test_text_is_the_readers_and_goes_on_where_the_reader_stops(
    ids: list[int], prompt: str
) -> None:
    parsed = one_by_one(ids, Setting(prompt=prompt)).parsed
    seen = reader_view(ids, prompt=prompt)
    assert parsed.text.startswith(seen.content)
    if not seen.tool_calls:
        assert parsed.text == seen.content


@settings(max_examples=300, deadline=None)
@given(ids=answers, prompt=prompts)
def test_the_end_never_shows(ids: list[int], prompt: str) -> None:
    parsed = one_by_one(ids, Setting(prompt=prompt)).parsed
    for end in ("<|im_end|>", "<|endoftext|>"):
        assert end not in parsed.text
        assert end not in parsed.reasoning


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=20) | st.text("STOP the\n", max_size=40), stop=stops.filter(bool))
def test_text_ends_before_the_first_stop_string(text: str, stop: tuple[str, ...]) -> None:
    ids = [token for token in spelled(text) if token < encode("<|endoftext|>")[0]]
    said = one_by_one(ids, Setting(asked=call(stop=stop))).parsed.text
    whole = loaded().decode(ids)
    ends = [whole.find(end) + len(end) for end in stop if end in whole]
    kept = whole[: min(ends)] if ends else whole
    cuts = [len(kept) - len(end) for end in stop if kept.endswith(end)] if ends else [len(kept)]
    assert said == kept[: min(cuts)].strip()


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, BEYOND_THE_VOCABULARY) | st.integers(94, 255), max_size=30))
def test_joined_text_is_what_the_tokenizer_decodes_at_once(ids: list[int]) -> None:
    decoder = Setting().by.vocabulary.stream()
    pieces = [decoder.push([token]) for token in ids]
    assert "".join(pieces) + decoder.flush() == backend().decode(ids, skip_special_tokens=False)
