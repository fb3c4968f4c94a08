"""A history that the client replaced by a summary: answers in it are context, with their tokens."""

from tests.adapters.gateway.agent_loop import called, calling, loop
from tests.adapters.gateway.prompts.prompt_setting import (
    STOP,
    Session,
    call,
    extends,
    result,
    said,
    sampled,
    user,
)
from tests.drift.next_prompts import BASH, OPENING


def test_a_turn_kept_under_a_new_prompt_lends_its_tokens_and_is_no_base() -> None:
    session = Session(tools=(BASH,))
    loop(session, 3)
    kept = said("", "", call("t3.0", command="ls 3", timeout=None))
    request = [OPENING[0], user("Summary: ..."), kept, result("t3.0")]

    built = session.build(request)

    assert (built.built, built.base_turn_id) == ("render", None)
    assert (built.lent, built.foreign) == (("t3",), ())
    assert built.messages[2] == called(3)
    assert sampled(calling(3)) == _between_headers(built.ids.tolist())


def test_from_there_on_it_goes_on_under_the_new_prompt() -> None:
    session = Session(tools=(BASH,))
    loop(session, 3)
    kept = said("", "", call("t3.0", command="ls 3", timeout=None))
    request = [OPENING[0], user("Summary: ..."), kept, result("t3.0")]
    fourth = session.turn(request, calling(4), called(4))
    built = session.build([*request, called(4), result("t4.0")])
    assert extends(built, session, fourth)
    assert built.base_turn_id == "t4"


def test_an_answer_of_which_the_client_began_is_lent_as_a_message() -> None:
    """Its own tokens are only half of it: the other half was given."""
    session = Session(tools=(BASH,))
    session.turn([*OPENING, said("I look.")], calling(1), called(1))
    request = [OPENING[0], user("Summary: ..."), called(1), result("t1.0")]
    built = session.build(request)
    canonical = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls 1"}}\n</tool_call>'
    assert _between_headers(built.ids.tolist()) == sampled(canonical + STOP)


def test_the_request_for_a_summary_goes_on_from_the_turn_before_the_last() -> None:
    session = Session(tools=(BASH,))
    request = loop(session, 3)
    asked = {**request[5], "content": request[5]["content"] + "\nSummarise."}
    built = session.build([*request[:5], asked])
    assert extends(built, session, session.history.turns["t2"])
    assert built.suffix_messages == (asked,)


def test_without_tools_it_is_a_root_of_its_own() -> None:
    session = Session(tools=(BASH,))
    built = session.build([*loop(session, 3), user("Summarise.")], tools=())
    assert (built.built, built.base_turn_id, built.tools_digest) == ("render", None, None)
    ids = built.ids.tolist()
    for number in (1, 2, 3):
        output = sampled(calling(number))
        assert any(ids[at : at + len(output)] == output for at in range(len(ids)))


def _between_headers(ids: list[int]) -> list[int]:
    """What stands between the first assistant header and the next end token."""
    header = sampled("<|im_start|>assistant\n")
    start = next(at for at in range(len(ids)) if ids[at : at + 3] == header) + 3
    return ids[start : ids.index(sampled(STOP)[0], start) + 1]
