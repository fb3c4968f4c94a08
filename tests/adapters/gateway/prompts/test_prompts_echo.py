"""Whatever a client does to an answer, the next prompt goes on from the tokens that were sampled.

Beside it stands what a gateway loses that renders the returned messages anew.
"""

import pytest

from streams.adapters.gateway.history.recorded import History
from tests.adapters.gateway.echoes import EXTENDED, FOREIGN, Echo
from tests.adapters.gateway.prompts.prompt_setting import (
    STOP,
    Session,
    extends,
    minted,
    rerendered_loss,
    said,
    stock,
    user,
)
from tests.drift.next_prompts import BASH, OPENING

EVERY = {**EXTENDED, **FOREIGN}


def answered(echo: Echo) -> Session:
    session = Session(tools=(BASH,))
    session.turn(OPENING, echo.sampled, echo.recorded)
    return session


@pytest.mark.parametrize("echo", EXTENDED.values(), ids=EXTENDED)
def test_an_echo_goes_on_from_the_sampled_tokens(echo: Echo) -> None:
    session = answered(echo)
    turn = session.history.turns["t1"]

    built = session.build([*OPENING, echo.returned, *echo.then])

    assert extends(built, session, turn)
    assert (built.base_turn_id, built.kept_ids) == ("t1", turn.end)
    assert built.messages == (*OPENING, echo.recorded, *echo.then)
    assert (built.foreign, built.missing, built.lent) == ((), (), ())


@pytest.mark.parametrize("echo", EXTENDED.values(), ids=EXTENDED)
def test_it_still_does_when_it_comes_back_changed_once_more(echo: Echo) -> None:
    session = answered(echo)
    request = [*OPENING, echo.returned, *echo.then]
    second = session.turn(request, f"Good.{STOP}", said("Good."))
    for returned in (echo.returned, echo.recorded, echo.returned):
        built = session.build([*OPENING, returned, *echo.then, said("Good."), user("Thanks.")])
        assert extends(built, session, second)
        assert built.base_turn_id == "t2"


@pytest.mark.parametrize("echo", FOREIGN.values(), ids=FOREIGN)
def test_what_is_no_echo_is_context_and_leaves_the_answer_a_leaf(echo: Echo) -> None:
    session = answered(echo)
    turn = session.history.turns["t1"]

    built = session.build([*OPENING, echo.returned, *echo.then])

    assert not extends(built, session, turn)
    assert built.messages == (*OPENING, echo.returned, *echo.then)
    assert built.built == "render"


@pytest.mark.parametrize("echo", EVERY.values(), ids=EVERY)
def test_a_gateway_that_renders_anew_loses_this_many_sampled_tokens(echo: Echo) -> None:
    session = answered(echo)
    anew = stock().render([*OPENING, echo.returned, *echo.then], [BASH])
    assert rerendered_loss(session, session.history.turns["t1"], anew) == echo.lost


def test_a_gateway_that_did_not_see_the_turn_names_it() -> None:
    echo = EXTENDED["Codex: verbatim"]
    session = Session(tools=(BASH,), history=History(recognise=minted))
    built = session.build([*OPENING, echo.returned, *echo.then])
    assert (built.foreign, built.missing) == ((2,), ("t1",))


def test_an_answer_without_ids_that_is_not_known_is_foreign() -> None:
    session = Session()
    built = session.build([*OPENING, said("Hello."), user("Yes?")])
    assert (built.foreign, built.missing) == ((2,), ())
