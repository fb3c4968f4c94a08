"""What is published of built prompts, read by the processor's own core: nothing is lost in it."""

import json
from typing import Any

import pytest

from schemas import codec
from tests.adapters.gateway.agent_loop import NEXT, ONE, called, calling, loop
from tests.adapters.gateway.echoes import EXTENDED, Echo
from tests.adapters.gateway.prompts.prompt_setting import STOP, Session, call, result, said, user
from tests.drift.next_prompts import BASH, OPENING, READ
from tests.harness import Linearized, linearized

END: dict[str, Any] = {
    "type": "session_ended",
    "session_id": "s",
    "end_status": "completed",
    "reward": 1.0,
}


def read(session: Session, profile: str = "seed") -> Linearized:
    events = [json.loads(codec.to_json(event)) for event in session.events]
    run = linearized([*events, END], profile=profile)
    assert run.dead_letters == []
    return run


def attached(run: Linearized) -> list[str]:
    return [row["attach"] for row in run.ledger]


def untrained(run: Linearized) -> int:
    return sum(row["generated"] - row["trained"] for row in run.ledger)


@pytest.mark.parametrize("profile", ["seed", "slime", "lossless"])
@pytest.mark.parametrize("echo", EXTENDED.values(), ids=EXTENDED)
def test_whatever_the_client_returns_every_sampled_token_trains_in_one_sample(
    echo: Echo, profile: str
) -> None:
    session = Session(tools=(BASH,))
    session.turn(OPENING, echo.sampled, echo.recorded)
    request = [*OPENING, echo.returned, *echo.then]
    session.turn(request, ONE, said("One."))
    session.turn([*request, said("One."), NEXT], f"Two.{STOP}", said("Two."))

    run = read(session, profile)

    assert attached(run) == ["root", "extend", "extend"]
    assert untrained(run) == 0
    assert len(run.samples) == 1


def test_a_loop_is_one_sample_and_its_events_hold_only_what_is_new() -> None:
    session = Session(tools=(BASH,))
    request = loop(session, 6)
    session.turn(request, ONE, said("One."))
    run = read(session)
    assert attached(run) == ["root"] + ["extend"] * 6
    assert (untrained(run), len(run.samples)) == (0, 1)
    assert all(len(event.prompt_messages) == 1 for event in session.events[1:])
    assert max(len(event.prompt_ids) for event in session.events[1:]) < 30


def test_the_same_without_any_acknowledgement_holds_everything_each_time() -> None:
    sessions = [Session(tools=(BASH,), acknowledges=known) for known in (True, False)]
    for session in sessions:
        loop(session, 4)
    known, unknown = (read(session) for session in sessions)
    assert unknown.samples[0]["tokens"] == known.samples[0]["tokens"]
    assert all(event.base_turn_id is None for event in sessions[1].events)


def test_a_retry_is_a_branch_and_both_answers_train() -> None:
    session = Session(tools=(BASH,))
    session.turn(OPENING, calling(1), called(1))
    session.turn(OPENING, calling(2), called(2))
    session.turn([*OPENING, called(2), result("t2.0")], ONE, said("One."))
    run = read(session)
    assert attached(run) == ["root", "root", "extend"]
    assert (untrained(run), len(run.samples)) == (0, 2)


def test_after_a_compaction_a_kept_answer_trains_where_it_was_sampled() -> None:
    session = Session(tools=(BASH,))
    loop(session, 3)
    request = [OPENING[0], user("Summary: ..."), called(3), result("t3.0")]
    session.turn(request, ONE, said("One."))
    run = read(session)
    assert attached(run) == ["root", "extend", "extend", "root"]
    assert (untrained(run), len(run.samples)) == (0, 2)


@pytest.mark.parametrize("profile", ["seed", "slime", "lossless"])
def test_another_tool_list_forks_and_nothing_is_lost(profile: str) -> None:
    session = Session()
    session.turn(OPENING, calling(1), called(1), tools=(BASH,))
    request = [*OPENING, called(1), result("t1.0")]
    session.turn(request, calling(2), called(2), tools=(BASH, READ))
    session.turn([*request, called(2), result("t2.0")], ONE, said("One."), tools=(BASH, READ))
    run = read(session, profile)
    assert attached(run) == ["root", "fork", "extend"]
    assert untrained(run) == 0


def test_what_was_cut_off_is_no_context_of_what_follows() -> None:
    session = Session(tools=(BASH,))
    answer = said("Two.", "", call("t1.0"), call("t1.1"))
    output = calling(1).replace(STOP, "")
    session.turn(OPENING, f"Two.\n{output}\n{calling(2)}", answer)
    session.turn([*OPENING, said("Two.", "", call("t1.0")), result("t1.0")], ONE, said("One."))
    run = read(session, "lossless")
    assert (untrained(run), len(run.samples)) == (0, 2)
    whole, kept = (sample["tokens"] for sample in run.samples)
    text = session.renderer.decode(kept)
    assert ("ls 1" in text, "ls 2" in text) == (True, False)
    assert "ls 2" in session.renderer.decode(whole)


def test_a_message_that_the_client_began_is_followed_by_the_model_s_own() -> None:
    session = Session()
    session.turn([*OPENING, said("The size is")], f" 148M.{STOP}", said(" 148M."))
    session.turn([*OPENING, said("The size is 148M."), NEXT], ONE, said("One."))
    run = read(session)
    assert attached(run) == ["root", "extend"]
    assert (untrained(run), len(run.samples)) == (0, 1)
