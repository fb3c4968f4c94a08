"""Decode then encode is not the identity: ten ways in which real Qwen3 ids do not come back.

A model samples ids; a harness keeps their text; the next prompt holds whatever the tokenizer
makes of that text. The messages are equal all along, so the next turn hangs below the first one
and only token ids disagree, inside the response:

    t1   prompt | <think> ... </think>  11338 385  <|im_end|>
    t2   prompt | <think> ... </think>  23811      <|im_end|>  ...next question...
                                        ^ the prefix breaks here

`seed` and `slime` realign: t1 becomes context, and its head that did match is untrained too.
`lossless` forks: both turns stay trained, as sampled.
"""

from dataclasses import dataclass, replace

import pytest

from tests.drift.qwen3 import STOP, Message, Qwen3
from tests.drift.sessions import (
    PROFILES,
    Call,
    first_difference,
    run,
    sampled_ids,
    story,
    trained_ids,
)

QUESTION: Message = {"role": "user", "content": "Say something."}
FOLLOW_UP: Message = {"role": "user", "content": "Again."}
THOUGHT = "<think>\nSure.\n</think>"
ANSWER = f"No.{STOP}"

# Of every row: `<|im_start|>user\nSay something.<|im_end|>\n<|im_start|>assistant\n`, the
# thought before the ids in question, and the answer of the second turn.
PROMPT_LEN = 11
THOUGHT_LEN = 5
ANSWER_LEN = 3


@dataclass(frozen=True, kw_only=True)
class Row:
    sampled: list[int]
    text: str
    encoded: list[int]
    cut: bool = False
    """The response ended by length: the model never sampled the stop token."""


ROWS = {
    "the model took a split that is not the greedy one": Row(
        sampled=[11338, 385], text=" hello", encoded=[23811]
    ),
    "two newlines, one by one": Row(sampled=[198, 198], text="\n\n", encoded=[271]),
    "the tail of a JSON object": Row(sampled=[1, 92, 92], text='"}}', encoded=[30975]),
    "the head of a JSON object": Row(
        sampled=[90, 1, 606, 788, 330], text='{"name": "', encoded=[4913, 606, 788, 330]
    ),
    "the last space of an indentation joins the word": Row(
        sampled=[256, 256, 689], text="    return", encoded=[262, 470]
    ),
    "the tokenizer composes an accent (NFC)": Row(
        sampled=[68796, 68, 53839], text="cafe\u0301", encoded=[924, 58858]
    ),
    "NFC turns the angstrom sign into a letter": Row(
        sampled=[147485], text="\u212b", encoded=[144044]
    ),
    "half an emoji decodes to the replacement character": Row(
        sampled=[123918], text="\ufffd", encoded=[5691], cut=True
    ),
    "a stop token spelled out becomes one": Row(
        sampled=[27, 91, 318, 6213, 91, 29], text="<|im_end|>", encoded=[151645]
    ),
    "a closing think tag spelled out becomes one": Row(
        sampled=[522, 26865, 29], text="</think>", encoded=[151668]
    ),
}


def given(row: Row) -> str:
    """What the template puts between the two responses; the stop token too, if none was sampled."""
    stop = STOP if row.cut else ""
    return f"{stop}\n<|im_start|>user\nAgain.{STOP}\n<|im_start|>assistant\n"


each_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
each_profile = pytest.mark.parametrize("profile", PROFILES)


def session(qwen3: Qwen3, row: Row) -> list[Call]:
    """Two turns; the second prompt is the text of everything so far, encoded again."""
    prompt = qwen3.render([QUESTION], [])
    sampled = qwen3.encode(THOUGHT) + row.sampled + ([] if row.cut else qwen3.encode(STOP))
    response: Message = {
        "role": "assistant",
        "reasoning_content": "Sure.",
        "content": row.text,
    }
    first = Call(
        messages=[QUESTION],
        prompt=prompt,
        sampled=sampled,
        response=response,
        finish="length" if row.cut else "stop",
    )
    second = Call(
        messages=[QUESTION, response, FOLLOW_UP],
        prompt=qwen3.encode(qwen3.decode(first.held) + given(row)),
        sampled=qwen3.encode(ANSWER),
        response={"role": "assistant", "content": "No."},
    )
    return [first, second]


@each_row
def test_sampled_ids_come_back_as_other_ids(qwen3: Qwen3, row: Row) -> None:
    assert qwen3.decode(row.sampled) == row.text
    assert qwen3.encode(row.text) == row.encoded


@each_row
def test_the_next_prompt_breaks_where_the_ids_begin(qwen3: Qwen3, row: Row) -> None:
    first, second = session(qwen3, row)
    place = PROMPT_LEN + THOUGHT_LEN

    assert len(first.prompt) == PROMPT_LEN
    assert first_difference(first.held, second.prompt) == place
    assert first.held[place : place + len(row.sampled)] == row.sampled
    assert second.prompt[place : place + len(row.encoded)] == row.encoded


@each_row
@pytest.mark.parametrize("profile", ["seed", "slime"])
def test_seed_and_slime_realign_and_untrain_the_whole_response(
    qwen3: Qwen3, row: Row, profile: str
) -> None:
    calls = session(qwen3, row)
    result = run(calls, profile=profile)
    lost = THOUGHT_LEN + len(row.sampled) + (not row.cut)

    assert story(calls, result) == (
        f"t2 realign: given [t2]; {ANSWER_LEN} of {lost + ANSWER_LEN} trained, {lost} realigned"
    )
    assert [sample["tokens"] for sample in result.samples] == [calls[1].held]


@each_row
def test_lossless_forks_and_trains_every_sampled_id_once(qwen3: Qwen3, row: Row) -> None:
    calls = session(qwen3, row)
    result = run(calls, profile="lossless")
    total = THOUGHT_LEN + len(row.sampled) + (not row.cut) + ANSWER_LEN

    assert story(calls, result) == f"t2 fork: given [t1] / given [t2]; {total} of {total} trained"
    assert [sample["tokens"] for sample in result.samples] == [call.held for call in calls]
    assert trained_ids(result).total() == total
    assert trained_ids(result) == sampled_ids(calls)


@each_row
@each_profile
def test_reusing_the_sampled_ids_extends_under_every_profile(
    qwen3: Qwen3, row: Row, profile: str
) -> None:
    first, drifted = session(qwen3, row)
    reused = replace(drifted, prompt=first.held + qwen3.encode(given(row)))
    result = run([first, reused], profile=profile)
    total = THOUGHT_LEN + len(row.sampled) + (not row.cut) + ANSWER_LEN

    assert story([first, reused], result) == (
        f"t2 extend: given [t1] given [t2]; {total} of {total} trained"
    )
