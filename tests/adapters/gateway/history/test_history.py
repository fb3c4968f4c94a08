"""What a history keeps: bases the log has, turns read from the log, every token once."""

from typing import Any

import msgspec
import pytest

from streams.adapters.dialects.calls import CallRefused
from streams.adapters.gateway.history.recorded import History
from streams.adapters.gateway.prompts.building import tools_digest
from streams.core.delta import Block
from streams.errors import BadEvent
from tests.adapters.gateway.agent_loop import NEXT, ONE, loop
from tests.adapters.gateway.prompts.prompt_setting import (
    STOP,
    Session,
    minted,
    said,
    sampled,
    turn_event,
    user,
)
from tests.drift.next_prompts import BASH, OPENING


def test_a_prompt_is_published_on_the_deepest_turn_that_the_log_has() -> None:
    session = Session(tools=(BASH,), acknowledges=False)
    request = loop(session, 4)
    built = session.build(request)
    assert built.base_turn_id == "t4"
    assert built.published().base is None
    for turn_id, position in (("t2", 12), ("t1", 11)):
        session.history.acknowledge(turn_id, position)
        published = session.build(request).published()
        turn = session.history.turns["t2"]
        assert published.base_turn_id == "t2"
        assert published.kept_ids == turn.end
        assert published.suffix_messages == tuple(request[5:])
        assert published.ids.tolist() == built.ids.tolist()


def test_a_turn_on_no_base_holds_everything() -> None:
    session = Session(tools=(BASH,), acknowledges=False)
    published = session.build(loop(session, 2)).published()
    assert published.suffix_ids.tolist() == published.ids.tolist()
    assert len(published.suffix_messages) == 6


def test_a_turn_twice_is_one_turn_and_keeps_its_place_in_the_log() -> None:
    session = Session()
    turn = session.turn(OPENING, ONE, said("One."))
    again = session.history.record(session.events[0])
    assert again is turn
    assert turn.position == 1
    assert session.history.record(session.events[0], position=7).position == 7


def test_a_base_that_is_not_known_is_named() -> None:
    session = Session()
    loop(session, 2)
    with pytest.raises(BadEvent, match="turn t2 hangs on turn t1, which is not known"):
        History().record(session.events[1])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more messages than there are": ({"kept_messages": 4}, "keeps 4 messages"),
    "more ids than there are": ({"kept_ids": 10_000}, "keeps 10000 ids"),
    "another prompt than its digest's": ({"kept_ids": 2}, "not the one its digest is of"),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED)
def test_a_turn_that_no_reader_takes_is_refused_and_leaves_nothing(
    fields: dict[str, Any], message: str
) -> None:
    session = Session()
    session.turn(OPENING, ONE, said("One."))
    request = [*OPENING, said("One."), NEXT]
    built = session.build(request)
    event = turn_event(built, "t2", sampled(ONE), said("Two."))
    with pytest.raises(BadEvent, match=message):
        session.history.record(msgspec.structs.replace(event, **fields))
    assert "t2" not in session.history.turns
    assert session.build([*request, said("Two."), NEXT]).base_turn_id == "t1"


def test_an_answer_that_gave_no_message_is_never_a_base() -> None:
    session = Session()
    session.turn(OPENING, ONE, None)
    built = session.build([*OPENING, said("One."), NEXT])
    assert (built.base_turn_id, built.foreign) == (None, (2,))


def test_a_history_read_from_the_log_builds_the_same_prompts() -> None:
    session = Session(tools=(BASH,))
    request = loop(session, 3)
    session.turn(request, ONE, said("One."))
    session.turn([*request[:4], user("Aside.")], ONE, said("One."))
    read = Session(tools=(BASH,))
    for position, event in enumerate(session.events, 1):
        read.history.record(event, position=position)
    for asked in (request, [*request, said("One."), NEXT], [*request[:4], user("Aside.")]):
        here, there = session.build(asked), read.build(asked)
        assert there.ids.tolist() == here.ids.tolist()
        assert there.base_turn_id == here.base_turn_id
        assert there.prompt_digest == here.prompt_digest


def test_only_the_new_messages_may_be_sent_behind_an_answer_that_is_named() -> None:
    session = Session(tools=(BASH,), history=History(recognise=minted))
    request = loop(session, 2)
    whole = session.build([*request, NEXT])
    built = session.build([request[-1], NEXT], previous_id="t2.7")
    assert built.ids.tolist() == whole.ids.tolist()
    assert built.messages == whole.messages


def test_an_answer_that_was_never_given_is_refused() -> None:
    for unknown in ("t9.0", "resp_foreign"):
        with pytest.raises(CallRefused, match="was not given in this session") as refused:
            Session().build([NEXT], previous_id=unknown)
        assert refused.value.code == "previous_response_not_found"


def test_ids_that_are_not_what_they_were_stop_the_call() -> None:
    session = Session()
    turn = session.turn(OPENING, ONE, said("One."))
    turn.block.pieces[0] = turn.block.pieces[0][::-1]
    with pytest.raises(AssertionError, match="the ids of turn t1 are not what they were"):
        session.build([*OPENING, said("One."), NEXT])


def test_every_token_is_stored_once() -> None:
    session = Session(tools=(BASH,))
    request = loop(session, 20)
    session.turn(request, ONE, said("One."))
    session.turn(request, ONE, said("One."))
    turns = session.history.turns.values()
    # The second twin's block holds what it does not share: its suffix and its output.
    twin = session.history.turns["t22"]
    new = twin.end - twin.kept_ids
    longest = max(turn.end for turn in turns)
    assert _stored([turn.block for turn in turns]) == longest + new


def test_a_deep_session_and_a_wide_place_are_walked_without_recursion() -> None:
    session = Session()
    request = list(OPENING)
    session.turn(request, ONE, said("One."))
    for number in range(1500):
        request += [said(f"Context {number}."), user(f"Question {number}?")]
    deep = session.turn(request, ONE, said("One."))
    for number in range(300):
        session.turn(OPENING, f"{number}.{STOP}", said(f"{number}."))
    assert session.build([*request, said("One."), NEXT]).base is deep
    assert session.build([*OPENING, said("299."), NEXT]).base_turn_id == "t302"


def test_tools_are_the_same_in_any_spelling_and_in_one_order() -> None:
    other = {"type": "function", "function": {"parameters": {}, "name": "f"}}
    same = {"function": {"name": "f", "parameters": {}}, "type": "function"}
    assert tools_digest([BASH, other]) == tools_digest([BASH, same])
    assert tools_digest([BASH, other]) != tools_digest([other, BASH])
    assert tools_digest([]) is None


def _stored(blocks: list[Block]) -> int:
    seen: dict[int, Block] = {}
    for block in blocks:
        parent: Block | None = block
        while parent is not None:
            seen[id(parent)] = parent
            parent = parent.parent
    return sum(len(piece) for block in seen.values() for piece in block.pieces) // 4
