"""Requests that come twice, and requests that leave the way: who goes on from whom."""

from streams.adapters.dialects.calls import Message
from tests.adapters.gateway.agent_loop import NEXT, ONE, called, calling
from tests.adapters.gateway.prompts.prompt_setting import (
    STOP,
    Session,
    call,
    extends,
    result,
    said,
    stock,
    system,
    user,
)
from tests.drift.next_prompts import BASH, OPENING, READ


def test_the_first_request_again_is_the_same_prompt_without_rendering() -> None:
    session = Session()
    first = session.build(OPENING)
    session.answer(first, ONE, said("One."))
    again = session.build(OPENING)
    assert again.ids.tolist() == first.ids.tolist()
    assert (again.built, again.base_turn_id) == ("reuse", None)


def test_a_later_request_again_is_a_sibling_on_the_same_base() -> None:
    session = Session()
    session.turn(OPENING, ONE, said("One."))
    request = [*OPENING, said("One."), NEXT]
    first = session.build(request)
    session.answer(first, f"A.{STOP}", said("A."))
    again = session.build(request)
    assert (again.base_turn_id, again.kept_ids) == (first.base_turn_id, first.kept_ids)
    assert again.suffix_ids.tolist() == first.suffix_ids.tolist()
    assert again.suffix_messages == (NEXT,)
    assert again.built == "reuse"


def test_the_same_request_with_other_tools_is_no_retry() -> None:
    session = Session()
    first = session.build(OPENING, (BASH,))
    session.answer(first, ONE, said("One."))
    other = session.build(OPENING, ())
    assert other.built == "render"
    assert other.ids.tolist() != first.ids.tolist()


def test_the_twin_whose_ids_return_is_gone_on_from_and_the_one_before_it_is_superseded() -> None:
    for returned, left in (("t1", []), ("t2", ["t1"])):
        session = Session(tools=(BASH,))
        session.turn(OPENING, calling(1), called(1))
        session.turn(OPENING, calling(2), called(2))
        number = int(returned[1])
        built = session.build([*OPENING, called(number), result(f"{returned}.0")])
        turn = session.history.turns[returned]
        assert extends(built, session, turn)
        assert [twin.turn_id for twin in session.history.superseded(turn)] == left


def test_twins_that_were_asked_for_side_by_side_are_not_superseded() -> None:
    session = Session(tools=(BASH,))
    first = session.build(OPENING)
    turns = [session.answer(first, calling(n), called(n), prev=0) for n in (1, 2)]
    assert [session.history.superseded(turn) for turn in turns] == [[], []]


def test_twins_that_say_the_same_are_told_apart_by_what_they_thought() -> None:
    session = Session()
    for thought in ("A", "B"):
        output = f"<think>\n{thought}\n</think>\n\nYes.{STOP}"
        session.turn(OPENING, output, said("Yes.", thought))
    for thought, turn_id in (("A", "t1"), ("B", "t2"), ("", "t2")):
        built = session.build([*OPENING, said("Yes.", thought), NEXT])
        assert built.base_turn_id == turn_id


def test_an_answer_without_a_thought_is_rather_one_that_had_none() -> None:
    session = Session()
    session.turn(OPENING, f"Yes.{STOP}", said("Yes."))
    session.turn(OPENING, f"<think>\nA\n</think>\n\nYes.{STOP}", said("Yes.", "A"))
    assert session.build([*OPENING, said("Yes."), NEXT]).base_turn_id == "t1"


def test_twins_that_say_the_same_are_told_apart_by_what_follows_them() -> None:
    """Their client may mean either until it says more; each way is found again."""
    session = Session()
    ways: list[list[Message]] = []
    for number in range(1, 4):
        session.turn(OPENING, f"<think>{number}</think>Yes.{STOP}", said("Yes.", str(number)))
    for number in range(1, 4):
        asked = [*OPENING, said("Yes.", str(number)), NEXT]
        session.turn(asked, f"{number}.{STOP}", said(f"{number}."))
        ways.append([*OPENING, said("Yes."), NEXT, said(f"{number}."), user("So?")])
    for number, request in enumerate(ways, 1):
        built = session.build(request)
        assert extends(built, session, session.history.turns[f"t{number}"])
        assert built.base_turn_id == f"t{number + 3}"


def test_of_twins_under_two_tool_lists_the_one_with_the_request_s_own_is_gone_on_from() -> None:
    session = Session()
    lists: list[tuple[Message, ...]] = [(BASH,), (), (BASH, READ)]
    for tools in lists:
        session.turn(OPENING, ONE, said("One."), tools=tools)
    for number, tools in enumerate(lists, 1):
        built = session.build([*OPENING, said("One."), NEXT], tools)
        assert built.base_turn_id == f"t{number}"


def test_a_new_twin_does_not_hide_the_way_of_an_older_one() -> None:
    session = Session()
    session.turn(OPENING, ONE, said("One."))
    request = [*OPENING, said("One."), NEXT]
    session.turn(request, f"Two.{STOP}", said("Two."))
    session.build([*request, said("Two."), NEXT])
    session.turn(OPENING, ONE, said("One."))
    assert session.build([*request, said("Two."), NEXT]).base_turn_id == "t2"
    assert session.build([*OPENING, said("One."), user("Other.")]).base_turn_id == "t3"


def test_a_twin_that_was_extended_is_not_superseded() -> None:
    session = Session(tools=(BASH,))
    session.turn(OPENING, calling(1), called(1))
    session.turn(OPENING, calling(2), called(2))
    session.turn([*OPENING, called(1), result("t1.0")], ONE, said("One."))
    assert session.history.superseded(session.history.turns["t2"]) == []


def test_an_answer_that_is_dropped_stays_a_leaf() -> None:
    """An answer without a call is not kept: the old history comes back with a question."""
    session = Session(tools=(BASH,))
    first = session.turn(OPENING, calling(1), called(1))
    request = [*OPENING, called(1), result("t1.0")]
    session.turn(request, ONE, said("One."))
    built = session.build([*request, user("Call a tool.")])
    assert extends(built, session, first)
    assert built.base_turn_id == "t1"
    assert [message["role"] for message in built.suffix_messages] == ["tool", "user"]


def test_sub_agents_with_prompts_of_their_own_do_not_meet() -> None:
    session = Session(tools=(BASH,))
    requests = {name: [system(name), user("Work.")] for name in ("main", "sub a", "sub b")}
    newest: dict[str, str | None] = dict.fromkeys(requests)
    for _ in range(3):
        for name, request in requests.items():
            number = len(session.events) + 1
            built = session.build(request)
            assert built.base_turn_id == newest[name]
            newest[name] = session.answer(built, calling(number), called(number)).turn_id
            request += [called(number), result(f"t{number}.0")]


def test_a_rewritten_question_goes_on_from_the_turn_before_it() -> None:
    session = Session()
    first = session.turn(OPENING, ONE, said("One."))
    request = [*OPENING, said("One."), NEXT]
    session.turn(request, STOP, said(""))
    built = session.build([*request[:-1], user("Go on.\nPlease answer.")])
    assert extends(built, session, first)


def test_two_results_that_come_one_after_the_other_are_printed_together() -> None:
    session = Session(tools=(BASH,))
    answer = said("", "", call("t1.0"), call("t1.1"))
    session.turn(OPENING, calling(1), answer)
    request = [*OPENING, answer, result("t1.0", "first")]
    session.turn(request, ONE, said("One."))
    built = session.build([*request, result("t1.1", "second")])
    text = stock().decode(built.suffix_ids.tolist())
    assert text.startswith("\n<|im_start|>user\n<tool_response>\nfirst\n</tool_response>\n<tool")


def test_a_foreign_answer_behind_a_turn_is_rendered_there() -> None:
    session = Session()
    first = session.turn(OPENING, ONE, said("One."))
    built = session.build([*OPENING, said("One."), NEXT, said("Ok."), user("So?")])
    assert extends(built, session, first)
    assert (built.built, built.foreign) == ("suffix", (4,))
    expected = "\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\nOk.<|im_end|>\n"
    assert stock().decode(built.suffix_ids.tolist()).startswith(expected)


def test_a_foreign_answer_seen_before_is_passed_on_the_way_to_a_later_turn() -> None:
    session = Session()
    request = [*OPENING, said("Ok."), user("So?")]
    turn = session.turn(request, ONE, said("One."))
    built = session.build([*request, said("One."), NEXT])
    assert extends(built, session, turn)
    assert built.foreign == ()


def test_equal_for_python_is_not_equal_for_a_template() -> None:
    session = Session()
    ids = []
    for value in (1, 1.0, True):
        request = [*OPENING, said("", "", call("x", n=value)), result("x")]
        built = session.build(request)
        session.answer(built, ONE, said("One."))
        ids.append(tuple(built.ids.tolist()))
    assert len(set(ids)) == 3
