"""Templates that no family's renderer knows: tried at the start, trusted as far as they held."""

from pathlib import Path

import pytest

from streams.adapters.gateway.rendering.renderer import Renderer
from tests.adapters.gateway.prompts.prompt_setting import (
    STOP,
    Session,
    call,
    extends,
    result,
    said,
    sampled,
    stock,
    system,
    user,
    with_template,
)
from tests.drift.next_prompts import BASH, OPENING

OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
EACH = "{% for m in messages %}"
PRINT = (
    "<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n"
)
PLAIN = f"{EACH}{PRINT}{{% endfor %}}{OPEN}"
DATED = f"<|im_start|>system\nToday: {{{{ strftime_now('%s%f') }}}}<|im_end|>\n{PLAIN}"
TOOLS_FIRST = f"<|im_start|>system\n{{{{ tools | tojson }}}}<|im_end|>\n{PLAIN}"
NO_MIDDLE = (
    f"{EACH}{{% if m.role == 'system' and not loop.first %}}"
    "{{ raise_exception('system has to be first') }}{% endif %}"
    f"{PRINT}{{% endfor %}}{OPEN}"
)
HOISTING = (
    "{% for m in messages if m.role == 'system' %}"
    f"{PRINT}{{% endfor %}}{{% for m in messages if m.role != 'system' %}}{PRINT}{{% endfor %}}"
    f"{OPEN}"
)
NUMBERED = f"{EACH}{{{{ loop.index }}}}{PRINT}{{% endfor %}}{OPEN}"
TOOLS_LAST = (
    f"{EACH}{{% if loop.last and tools %}}<|im_start|>system\n"
    f"{{{{ tools | tojson }}}}<|im_end|>\n{{% endif %}}{PRINT}{{% endfor %}}{OPEN}"
)
NO_END = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ALTERNATING = (
    f"{EACH}{{% if m.role == 'tool' %}}{{{{ raise_exception('no tools here') }}}}{{% endif %}}"
    f"{PRINT}{{% endfor %}}{OPEN}"
)

TRUSTED = {
    "plain": PLAIN,
    "dated": DATED,
    "tools first": TOOLS_FIRST,
    "no system message in the middle": NO_MIDDLE,
    "no results": ALTERNATING,
    "tools before the last message": TOOLS_LAST,
}
NOT_TRUSTED = {
    "messages are numbered": (NUMBERED, "is printed otherwise after a longer history"),
    "no token ends an answer": (NO_END, "no token ends an answer"),
}


@pytest.fixture
def prints(tmp_path: Path, request: pytest.FixtureRequest) -> Renderer:
    return with_template(tmp_path / "t.jinja", request.param)


def two_turns(session: Session) -> bool:
    """Whether a second turn goes on from the tokens of the first, odd ones."""
    output = [token for letter in "Big." for token in sampled(letter)] + sampled(STOP)
    turn = session.turn(OPENING, output, said("Big."))
    built = session.build([*OPENING, said("Big."), user("How big?")])
    assert (built.built == "suffix") == extends(built, session, turn)
    return extends(built, session, turn)


@pytest.mark.parametrize("prints", TRUSTED.values(), ids=TRUSTED, indirect=True)
def test_a_template_that_only_appends_gets_a_suffix(prints: Renderer) -> None:
    assert (prints.suffix_tested, prints.appends) == ("tested", True)
    assert two_turns(Session(prints, tools=(BASH,)))


@pytest.mark.parametrize(("template", "why"), NOT_TRUSTED.values(), ids=NOT_TRUSTED)
def test_one_that_looks_back_gets_none_and_says_why(
    template: str, why: str, tmp_path: Path
) -> None:
    prints = with_template(tmp_path / "t.jinja", template)
    assert why in prints.suffix_tested
    assert not prints.appends
    assert not two_turns(Session(prints))


@pytest.mark.parametrize("prints", [NUMBERED], indirect=True)
def test_without_a_suffix_the_prompt_is_rendered_and_recorded_as_such(prints: Renderer) -> None:
    session = Session(prints)
    session.turn(OPENING, f"Big.{STOP}", said("Big."))
    built = session.build([*OPENING, said("Big."), user("How big?")])
    assert (built.built, built.base_turn_id, built.kept_ids) == ("render", None, 0)
    assert "4<|im_start|>user\nHow big?" in stock().decode(built.ids.tolist())


@pytest.mark.parametrize("prints", [TOOLS_LAST], indirect=True)
def test_tools_are_given_to_a_suffix_that_depends_on_them(prints: Renderer) -> None:
    session = Session(prints, tools=(BASH,))
    session.turn(OPENING, f"Big.{STOP}", said("Big."))
    built = session.build([*OPENING, said("Big."), user("How big?")])
    assert "Run a shell command." in stock().decode(built.suffix_ids.tolist())


@pytest.mark.parametrize("prints", [ALTERNATING], indirect=True)
def test_what_the_template_refuses_is_refused_in_its_words(prints: Renderer) -> None:
    session = Session(prints)
    answer = said("", "", call("t1.0"))
    session.turn(OPENING, f"x{STOP}", answer)
    with pytest.raises(Exception, match="no tools here") as refused:
        session.build([*OPENING, answer, result("t1.0")])
    assert getattr(refused.value, "status", None) == 400


@pytest.mark.parametrize("prints", [PLAIN], indirect=True)
def test_a_system_message_stands_where_it_is(prints: Renderer) -> None:
    assert prints.system_in_place
    messages = [*OPENING, said("Big."), system("It got dark."), user("So?")]
    text = stock().decode(prints.full(messages, ()).tolist())
    assert "<|im_start|>system\nIt got dark.<|im_end|>\n<|im_start|>user\nSo?" in text


@pytest.mark.parametrize("prints", [NO_MIDDLE, HOISTING], ids=["refused", "moved"], indirect=True)
def test_where_it_may_not_it_is_a_marked_message_of_the_user(prints: Renderer) -> None:
    assert not prints.system_in_place
    block = "<|im_start|>user\n<system>\nIt got dark.\n</system><|im_end|>\n"
    messages = [*OPENING, said("Big."), system("It got dark."), user("So?")]
    whole = stock().decode(prints.full(messages, ()).tolist())
    assert f"Big.<|im_end|>\n{block}<|im_start|>user\nSo?" in whole
    assert whole.startswith("<|im_start|>system\nYou are a coding agent.<|im_end|>")

    session = Session(prints)
    turn = session.turn(OPENING, f"Big.{STOP}", said("Big."))
    built = session.build(messages)
    assert extends(built, session, turn)
    assert stock().decode(built.suffix_ids.tolist()).startswith(f"\n{block}")
    assert built.messages[3] == system("It got dark.")


@pytest.mark.parametrize("prints", [PLAIN], indirect=True)
def test_an_answer_that_the_client_began_is_gone_on_with(prints: Renderer) -> None:
    built = Session(prints).build([*OPENING, said("The size is")])
    assert stock().decode(built.ids.tolist()).endswith("<|im_start|>assistant\nThe size is")


@pytest.mark.parametrize("prints", [NUMBERED], indirect=True)
def test_also_where_everything_is_rendered_in_one_go(prints: Renderer) -> None:
    built = Session(prints).build([*OPENING, said("The size is")])
    assert stock().decode(built.ids.tolist()).endswith("3<|im_start|>assistant\nThe size is")
    assert built.prefill == "continued"
