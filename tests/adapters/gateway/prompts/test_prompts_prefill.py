"""A conversation that ends with an answer: the model goes on in it, or begins another."""

from tests.adapters.gateway.prompts.prompt_setting import (
    STOP,
    Session,
    call,
    extends,
    renderer,
    said,
    sampled,
    stock,
    system,
    user,
)
from tests.drift.next_prompts import BASH, OPENING

HEADER = "<|im_start|>assistant\n"
NEXT = user("Go on.")


def test_a_prompt_ends_inside_an_answer_that_the_client_began() -> None:
    built = Session(tools=(BASH,)).build([*OPENING, said("The size is")])
    assert stock().decode(built.ids.tolist()).endswith(f"{HEADER}The size is")
    assert (built.prefill, built.built) == ("continued", "render")


def test_the_same_behind_a_recorded_turn() -> None:
    session = Session()
    turn = session.turn(OPENING, f"One.{STOP}", said("One."))
    built = session.build([*OPENING, said("One."), NEXT, said("The size is")])
    assert extends(built, session, turn)
    assert stock().decode(built.suffix_ids.tolist()).endswith(f"Go on.{STOP}\n{HEADER}The size is")
    assert (built.prefill, built.built) == ("continued", "suffix")


def test_a_thought_that_the_client_began_is_closed_before_its_text() -> None:
    built = Session().build([*OPENING, said("So", "Easy.")])
    tail = f"{HEADER}<think>\nEasy.\n</think>\n\nSo"
    assert stock().decode(built.ids.tolist()).endswith(tail)


def test_calls_that_the_client_began_with_stand_before_what_comes() -> None:
    built = Session(tools=(BASH,)).build([*OPENING, said("", "", call("x", command="ls"))])
    assert stock().decode(built.ids.tolist()).endswith('{"command": "ls"}}\n</tool_call>')


def test_thinking_switched_off_stays_off_in_an_answer_that_is_gone_on_with() -> None:
    session = Session(renderer(thinking=False))
    built = session.build([*OPENING, said("The size is")])
    tail = f"{HEADER}<think>\n\n</think>\n\nThe size is"
    assert stock().decode(built.ids.tolist()).endswith(tail)


def test_an_answer_cut_by_length_is_gone_on_with_as_it_is() -> None:
    session = Session()
    turn = session.turn(OPENING, "The size is", said("The size is"))
    built = session.build([*OPENING, said("The size is")])
    assert built.ids.tolist() == session.said_by(turn)
    assert (built.prefill, built.built, built.base_turn_id) == ("continued", "reuse", "t1")


def test_the_beginning_of_a_recorded_answer_is_gone_on_with() -> None:
    session = Session()
    turn = session.turn(OPENING, f"The size is 148M.{STOP}", said("The size is 148M."))
    built = session.build([*OPENING, said("The size is")])
    assert built.ids.tolist() == session.said_by(turn)[: turn.prompt_len + 3]
    assert (built.prefill, built.built, built.kept_messages) == ("continued", "reuse", 2)


def test_behind_an_answer_that_came_to_its_end_another_begins() -> None:
    session = Session()
    turn = session.turn(OPENING, f"One.{STOP}", said("One."))
    built = session.build([*OPENING, said("One.")])
    assert extends(built, session, turn)
    assert stock().decode(built.suffix_ids.tolist()) == f"\n{HEADER}"
    assert built.prefill == "closed"


def test_two_answers_in_a_row_that_nobody_here_gave_are_printed_in_a_row() -> None:
    built = Session().build([*OPENING, said("Ok."), said("Fine."), NEXT])
    text = stock().decode(built.ids.tolist())
    assert f"{HEADER}Ok.{STOP}\n{HEADER}Fine.{STOP}\n<|im_start|>user\nGo on." in text


def test_what_the_client_began_and_the_model_ended_comes_back_as_one_message() -> None:
    session = Session()
    turn = session.turn([*OPENING, said("The size is")], f" 148M.{STOP}", said(" 148M."))
    built = session.build([*OPENING, said("The size is 148M."), NEXT])
    assert extends(built, session, turn)
    assert built.messages == (*OPENING, said("The size is"), said(" 148M."), NEXT)
    assert built.suffix_messages == (NEXT,)


def test_or_as_two() -> None:
    session = Session()
    turn = session.turn([*OPENING, said("The size is")], f" 148M.{STOP}", said(" 148M."))
    built = session.build([*OPENING, said("The size is"), said(" 148M."), NEXT])
    assert extends(built, session, turn)


def test_or_by_the_ids_of_its_calls() -> None:
    session = Session(tools=(BASH,))
    output = f'<tool_call>\n{{"name": "bash", "arguments": {{}}}}\n</tool_call>{STOP}'
    turn = session.turn([*OPENING, said("I look.")], output, said("", "", call("t1.0")))
    built = session.build([*OPENING, said("I look. ", "", call("t1.0", x=1)), NEXT])
    assert extends(built, session, turn)


def test_asked_again_it_is_the_same_prompt_and_the_same_form() -> None:
    for begun, form in (("The size is", "continued"), ("One.", "closed")):
        session = Session()
        session.turn(OPENING, f"One.{STOP}", said("One."))
        request = [*OPENING, said(begun)]
        first = session.build(request)
        session.answer(first, f" 148M.{STOP}", said(" 148M."))
        again = session.build(request)
        assert again.ids.tolist() == first.ids.tolist()
        assert (again.built, again.prefill, first.prefill) == ("reuse", form, form)


def test_a_conversation_may_begin_with_an_answer() -> None:
    built = Session().build([said("Welcome."), user("Hello.")])
    text = f"{HEADER}Welcome.{STOP}\n<|im_start|>user\nHello.{STOP}\n{HEADER}"
    assert built.ids.tolist() == sampled(text)


def test_or_consist_of_a_system_message_alone() -> None:
    built = Session().build([system("Begin.")])
    assert built.ids.tolist() == sampled(f"<|im_start|>system\nBegin.{STOP}\n{HEADER}")
