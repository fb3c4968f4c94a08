"""The table of next prompts that drift, built instead of re-rendered: none of them does.

The rows are those of `tests/drift`, where the stock template renders every request anew and the
new prompt leaves the recorded sequence. Here the same answers come back to `build`.
"""

import pytest

from streams.adapters.dialects.calls import Message
from tests.adapters.gateway.prompts.prompt_setting import (
    IM_END,
    Session,
    call,
    extends,
    renderer,
    rerendered_loss,
    result,
    said,
    sampled,
    stock,
    user,
)
from tests.drift import qwen3
from tests.drift.next_prompts import BASH, OPENING, READ, ROWS, Row

LOST = {
    "control: the canonical call extends": 0,
    "1: the model wrote compact JSON": 14,
    "2: the model wrote arguments before name": 19,
    "3: the model escaped a letter": 9,
    "4: the model wrote 1e3": 5,
    "5: no newline inside the tool call": 20,
    "6: canonical text before a canonical call": 23,
    "7: the harness does not send the reasoning back": 31,
    "8: a new user message arrives": 17,
    "9: thinking is switched off": 26,
    "10: the model sampled an empty think block": 26,
    "18: cut by length, no stop token": 0,
}
"""How many tokens of the turn a re-rendered prompt leaves behind; all of them sampled but in 9."""


def answered(row: Row) -> tuple[Session, list[Message]]:
    """A session after its first turn, and the next request."""
    session = Session(renderer(thinking=row.thinking))
    answer = qwen3.parse(row.sampled)
    session.turn(OPENING, row.sampled, answer, tools=row.tools)
    echo = {name: value for name, value in answer.items() if name != row.unsent}
    return session, [*OPENING, echo, row.then]


@pytest.mark.parametrize("name", LOST)
def test_the_next_prompt_goes_on_from_the_sampled_ids(name: str) -> None:
    row = ROWS[name]
    session, request = answered(row)
    turn = session.history.turns["t1"]
    assert (turn.prompt_len, turn.end - turn.prompt_len) == row.sizes[:2]

    built = session.build(request, row.tools_later)

    assert extends(built, session, turn)
    assert (built.base_turn_id, built.kept_ids, built.built) == ("t1", turn.end, "bridge")
    assert built.messages[2] == qwen3.parse(row.sampled)
    assert built.suffix_messages == (row.then,)


@pytest.mark.parametrize("name", LOST)
def test_a_prompt_rendered_anew_would_have_lost_this_many_tokens(name: str) -> None:
    row = ROWS[name]
    session, request = answered(row)
    turn = session.history.turns["t1"]
    anew = stock().render(request, row.tools_later, thinking=row.thinking)
    assert rerendered_loss(session, turn, anew) == LOST[name]


def test_a_cut_answer_is_closed_with_a_token_that_nobody_sampled() -> None:
    session, request = answered(ROWS["18: cut by length, no stop token"])
    built = session.build(request, (BASH,))
    assert built.suffix_ids[0] == IM_END


@pytest.mark.parametrize(
    "ids",
    [
        [11338, 385],
        [198, 198],
        [1, 92, 92],
        [256, 256, 689],
        [68796, 68, 53839],
        [147485],
        [123918],
        [27, 91, 318, 6213, 91, 29],
        [522, 26865, 29],
    ],
)
def test_ids_that_decode_to_what_encodes_otherwise_stay(ids: list[int]) -> None:
    text = stock().decode(ids)
    assert stock().encode(text) != ids
    session = Session()
    turn = session.turn([user("?")], [*ids, IM_END], said(text.strip()))

    built = session.build([user("?"), said(text.strip()), user("Go on.")])

    assert extends(built, session, turn)


@pytest.mark.parametrize("later", [(BASH, READ), (READ,), ()], ids=["grown", "swapped", "gone"])
def test_another_tool_list_is_another_prompt_around_the_same_sampled_tokens(
    later: tuple[Message, ...],
) -> None:
    """Row 11: the head differs, so nothing goes on; the answer inside keeps its tokens."""
    session = Session()
    text = (
        '<think>\nhm\n</think>\n\n<tool_call>{"name":"bash","arguments":{}}</tool_call><|im_end|>'
    )
    answer = said("", "hm", call("t1.0"))
    first = session.turn(OPENING, text, answer, tools=(BASH,))

    built = session.build(
        [*OPENING, said("", "", call("t1.0", command="x")), result("t1.0")], later
    )

    assert (built.built, built.base_turn_id) == ("render", None)
    assert built.messages[2] == answer
    ids, output = built.ids.tolist(), sampled(text)
    at = ids.index(output[0])
    assert ids[at : at + len(output)] == output
    assert not extends(built, session, first)


def test_the_old_tool_list_again_goes_on_from_the_last_turn_that_had_it() -> None:
    session = Session()
    first = session.turn(OPENING, "One.<|im_end|>", said("One."), tools=(BASH,))
    request = [*OPENING, said("One."), user("Two?")]
    session.turn(request, "Two.<|im_end|>", said("Two."), tools=(BASH, READ))

    built = session.build([*request, said("Two."), user("Three?")], (BASH,))

    assert extends(built, session, first)
    assert (built.base_turn_id, built.built) == ("t1", "bridge")
    assert [message["content"] for message in built.suffix_messages] == ["Two?", "Two.", "Three?"]
    tail = "<|im_start|>assistant\nTwo.<|im_end|>\n<|im_start|>user\nThree?<|im_end|>\n"
    assert stock().decode(built.ids.tolist()).endswith(f"{tail}<|im_start|>assistant\n")
