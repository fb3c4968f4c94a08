"""A client may keep only the beginning of an answer: its tokens up to the cut are context."""

from collections.abc import Callable

import pytest

from tests.adapters.gateway.echoes import calling, thinking
from tests.adapters.gateway.prompts.prompt_setting import (
    IM_END,
    STOP,
    Session,
    call,
    extends,
    renderer,
    result,
    said,
    sampled,
    stock,
    user,
)
from tests.drift.next_prompts import BASH, OPENING

THOUGHT = "I should measure it."
TEXT = "The répo is about\n\n148M, 😀 🪿 roughly."
NEXT = user("Go on.")
FOLLOWED = f"{STOP}\n<|im_start|>user\nGo on.{STOP}\n<|im_start|>assistant\n"
TWO = thinking("Two.\n" + calling("{}", '{"a": 1}'))
TWO_SAID = said("Two.", THOUGHT, call("t1.0"), call("t1.1", a=1))


def odd_ids(text: str) -> list[int]:
    """Ids for a text that no tokenizer gives: one letter a token, as a model may sample it."""
    return [token for letter in text for token in sampled(letter)]


@pytest.mark.parametrize("ids", [sampled, odd_ids], ids=["words", "letters"])
@pytest.mark.parametrize("length", range(1, len(TEXT)))
def test_a_text_cut_anywhere_keeps_every_token_before_the_cut(
    length: int, ids: Callable[[str], list[int]]
) -> None:
    session = Session()
    output = [*sampled(f"<think>\n{THOUGHT}\n</think>\n\n"), *ids(TEXT), IM_END]
    turn = session.turn(OPENING, output, said(TEXT, THOUGHT))
    kept_text = TEXT[:length].rstrip()

    built = session.build([*OPENING, said(TEXT[:length], THOUGHT), NEXT])

    text = stock().decode(built.ids.tolist())
    assert text.endswith(f"assistant\n<think>\n{THOUGHT}\n</think>\n\n{kept_text}{FOLLOWED}")
    kept = built.kept_ids - turn.prompt_len
    assert (built.base_turn_id, built.kept_messages) == ("t1", 2)
    assert built.ids[turn.prompt_len : built.kept_ids].tolist() == output[:kept]
    one_more = stock().decode(output[: kept + 1]).rpartition("</think>\n\n")[2]
    assert not kept_text.startswith(one_more.rstrip("\ufffd"))
    assert built.messages == (*OPENING, said(kept_text, THOUGHT), NEXT)


def test_a_cut_on_the_edge_of_a_token_renders_nothing_of_the_answer() -> None:
    session = Session()
    turn = session.turn(OPENING, f"The repo is big.{STOP}", said("The repo is big."))
    built = session.build([*OPENING, said("The repo is"), NEXT])
    assert built.kept_ids == turn.prompt_len + 3
    assert built.suffix_ids.tolist() == sampled(FOLLOWED)
    assert (built.built, built.foreign) == ("bridge", ())


def test_a_cut_inside_a_token_encodes_what_is_left_of_it() -> None:
    session = Session()
    turn = session.turn(OPENING, f"The repo is big.{STOP}", said("The repo is big."))
    built = session.build([*OPENING, said("The repo is b"), NEXT])
    assert built.kept_ids == turn.prompt_len + 3
    assert built.suffix_ids.tolist() == [*sampled(" b"), *sampled(FOLLOWED)]


def test_a_cut_answer_that_is_gone_on_with_is_rendered_only_where_it_was_cut() -> None:
    session = Session()
    session.turn(OPENING, f"The repo is big.{STOP}", said("The repo is big."))
    forms = {text: session.build([*OPENING, said(text)]) for text in ("The repo", "The repo is b")}
    assert [built.built for built in forms.values()] == ["reuse", "suffix"]
    assert [built.prefill for built in forms.values()] == ["continued", "continued"]


def test_an_answer_cut_under_other_tools_lends_its_tokens_up_to_the_cut() -> None:
    session = Session(tools=(BASH,))
    session.turn(OPENING, [*odd_ids("The repo is big."), IM_END], said("The repo is big."))
    built = session.build([*OPENING, said("The repo is"), NEXT], tools=())
    assert (built.built, built.base_turn_id, built.foreign) == ("render", None, ())
    lent = odd_ids("The repo is")
    ids = built.ids.tolist()
    assert any(ids[at : at + len(lent)] == lent for at in range(len(ids)))


def test_reasoning_that_the_client_dropped_with_the_rest_stays_before_the_cut() -> None:
    session = Session()
    session.turn(OPENING, thinking("It is big."), said("It is big.", THOUGHT))
    built = session.build([*OPENING, said("It is"), NEXT])
    assert f"<think>\n{THOUGHT}\n</think>\n\nIt is{STOP}" in stock().decode(built.ids.tolist())
    assert built.messages[2] == said("It is", THOUGHT)


def test_of_two_calls_the_first_may_be_all_that_is_kept() -> None:
    session = Session(tools=(BASH,))
    turn = session.turn(OPENING, TWO, TWO_SAID)
    echo = said("Two.", THOUGHT, call("t1.0", x=1))

    built = session.build([*OPENING, echo, result("t1.0")])

    first = sampled(thinking("Two.\n" + calling("{}")))[:-1]
    assert built.ids[turn.prompt_len : built.kept_ids].tolist() == first
    assert built.suffix_ids[0] == IM_END
    assert built.messages[2] == said("Two.", THOUGHT, call("t1.0"))


def test_calls_may_be_dropped_behind_the_text() -> None:
    session = Session(tools=(BASH,))
    turn = session.turn(OPENING, TWO, TWO_SAID)
    built = session.build([*OPENING, said("Two.", THOUGHT), NEXT])
    kept = stock().decode(built.ids[turn.prompt_len : built.kept_ids].tolist())
    # The model sampled `.` and the newline before the call as one token.
    assert kept == f"<think>\n{THOUGHT}\n</think>\n\nTwo.\n"
    assert stock().decode(built.suffix_ids.tolist()) == FOLLOWED


def test_an_answer_may_be_broken_off_in_its_thought() -> None:
    session = Session()
    turn = session.turn(OPENING, thinking("It is big."), said("It is big.", THOUGHT))
    built = session.build([*OPENING, said("", "I should"), NEXT])
    kept = stock().decode(built.ids[turn.prompt_len : built.kept_ids].tolist())
    assert kept == "<think>\nI should"
    assert stock().decode(built.suffix_ids.tolist()) == f"</think>{FOLLOWED}"


def test_what_follows_a_cut_answer_goes_on_like_any_other_turn() -> None:
    session = Session(tools=(BASH,))
    session.turn(OPENING, TWO, TWO_SAID)
    cut = said("Two.", "", call("t1.0"))
    request = [*OPENING, cut, result("t1.0")]
    second = session.turn(request, f"One.{STOP}", said("One."))

    built = session.build([*request, said("One."), NEXT])

    assert extends(built, session, second)
    assert (built.base_turn_id, built.suffix_messages) == ("t2", (NEXT,))


def test_the_whole_answer_still_goes_on_beside_its_beginning() -> None:
    session = Session(tools=(BASH,))
    first = session.turn(OPENING, TWO, TWO_SAID)
    cut = [*OPENING, said("Two.", "", call("t1.0")), result("t1.0")]
    session.turn(cut, f"One.{STOP}", said("One."))
    built = session.build([*OPENING, TWO_SAID, result("t1.0"), result("t1.1")])
    assert extends(built, session, first)


def test_without_a_reader_for_calls_the_beginning_is_rendered() -> None:
    session = Session(renderer(family="none"), tools=(BASH,))
    session.turn(OPENING, TWO, TWO_SAID)
    built = session.build([*OPENING, said("Two.", THOUGHT, call("t1.0")), result("t1.0")])
    text = stock().decode(built.ids.tolist())
    assert text.count("<tool_call>\n{") == 2  # one in the head, where the template explains it
    assert text.count("<tool_response>") == 1
    assert built.built == "render"
