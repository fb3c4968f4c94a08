"""Messages as ids, with Qwen3's own tokenizer and template: whole, and behind a recorded turn."""

from pathlib import Path

import pytest

from streams.adapters.dialects.calls import Message, Tool
from streams.adapters.gateway.rendering.encoding import RenderFailed
from streams.adapters.gateway.rendering.files import fingerprint_of, generation_ends
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.errors import BadSetting
from tests.adapters.gateway.prompts.prompt_setting import (
    STOP,
    call,
    ids_of,
    renderer,
    result,
    said,
    sampled,
    stock,
    system,
    user,
    with_template,
)
from tests.drift import qwen3
from tests.drift.next_prompts import BASH, OPENING, READ

HEADER = "<|im_start|>assistant\n"
LOOK = said("", "I look.", call("a", command="ls"), call("b", command="pwd"))

SAME_AS_THE_TEMPLATE: dict[str, tuple[list[Message], tuple[Tool, ...]]] = {
    "a question": ([user("Hi.")], ()),
    "a system message": ([system("Be brief."), user("Hi.")], ()),
    "tools": (OPENING, (BASH, READ)),
    "a system message in the middle": ([*OPENING, system("It got dark."), user("So?")], (BASH,)),
    "answers": ([*OPENING, said("Big."), user("How big?")], ()),
    "a tool loop": ([*OPENING, LOOK, result("a"), result("b")], (BASH,)),
    "text before a call": ([*OPENING, said("Well.", "", call("a")), result("a")], (BASH,)),
    "a user's message like a result": ([user("<tool>x</tool>"), said("?"), user("Hi.")], ()),
}


@pytest.mark.parametrize("name", SAME_AS_THE_TEMPLATE)
@pytest.mark.parametrize("family", ["auto", "none"])
def test_a_whole_conversation_is_what_the_template_prints(name: str, family: str) -> None:
    messages, tools = SAME_AS_THE_TEMPLATE[name]
    ids = renderer(family=family).full(messages, tools)
    assert ids.tolist() == stock().render(messages, tools)


@pytest.mark.parametrize("family", ["auto", "none"])
def test_reasoning_stays_before_a_new_question_where_the_template_drops_it(family: str) -> None:
    messages = [*OPENING, said("Big.", "I guess."), user("How big?")]
    text = stock().decode(renderer(family=family).full(messages, ()).tolist())
    assert f"{HEADER}<think>\nI guess.\n</think>\n\nBig.{STOP}" in text
    assert "I guess." not in stock().decode(stock().render(messages, ()))


@pytest.mark.parametrize("family", ["auto", "none"])
@pytest.mark.parametrize("thinking", [True, False], ids=["thinking", "not thinking"])
def test_a_longer_conversation_begins_with_the_shorter_one(family: str, thinking: bool) -> None:
    prints = renderer(family=family, thinking=thinking)
    messages = [
        *OPENING,
        said("", "", call("a")),
        result("a"),
        said("Big."),
        user("How big?"),
        system("It got dark."),
        said("Very."),
        user("Thanks."),
    ]
    whole = prints.full(messages, (BASH,)).tolist()
    for length in (2, 4, 7):
        shorter = prints.full(messages[:length], (BASH,)).tolist()
        assert whole[: len(shorter)] == shorter


@pytest.mark.parametrize("family", ["auto", "none"])
def test_a_thought_pasted_into_a_text_is_printed_as_a_thought(family: str) -> None:
    prints = renderer(family=family)
    pasted, own = said("<think>\nI guess.\n</think>\n\nBig."), said("Big.", "I guess.")
    for after in ([result("a")], [user("How big?")]):
        for render in (prints.full, prints.whole):
            ids = [list(render([*OPENING, answer, *after], (BASH,))) for answer in (pasted, own)]
            assert ids[0] == ids[1]


def test_the_family_is_found_by_what_the_template_prints() -> None:
    assert renderer().family == "qwen3"
    assert renderer(thinking=False).family == "qwen3"
    assert renderer(family="none").family is None


def test_a_template_of_its_own_is_of_no_family(tmp_path: Path) -> None:
    text = stock().tokenizer.chat_template
    assert isinstance(text, str)
    changed = text.replace("You may call one or more functions", "Call functions")
    assert with_template(tmp_path / "t.jinja", changed, "auto").family is None
    assert with_template(tmp_path / "t.jinja", text, "auto").family == "qwen3"


FOLLOWING: dict[str, list[Message]] = {
    "a user": [user("And the tests?")],
    "a result": [result("a")],
    "two results": [result("a"), result("b", "x\n")],
    "a system message and a user": [system("It got dark."), user("So?")],
    "a result and a system message": [result("a"), system("It got dark.")],
    "blanks": [user("  \n")],
    "nothing": [],
}
OUTPUTS = {
    "ended": f"<think>\nhm\n</think>\n\nBig.{STOP}",
    "cut": "The repo is",
    "cut while thinking": "<think>\nThe repo",
    "ended while thinking": f"<think>\nThe repo{STOP}",
    "gone on behind its end": f"Big.{STOP}\nMore",
    "ended twice": f"Big.{STOP}{STOP}",
    "empty": "",
}


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
@pytest.mark.parametrize("new", FOLLOWING.values(), ids=FOLLOWING)
@pytest.mark.parametrize("thinking", [True, False], ids=["thinking", "not thinking"])
def test_bridge_and_suffix_put_the_same_behind_a_turn(
    new: list[Message], output: str, thinking: bool
) -> None:
    bridge, suffix = renderer(thinking=thinking), renderer(thinking=thinking, family="none")
    prompt = bridge.full(OPENING, (BASH,))
    ids = ids_of(sampled(output))
    found, other = bridge.after(prompt, ids, new, (BASH,)), suffix.after(prompt, ids, new, (BASH,))
    assert found is not None
    assert other is not None
    assert found.ids == other.ids
    assert (found.how, other.how) == ("bridge" if new else "suffix", "suffix")


CLOSING = {
    "ended": "",
    "cut": STOP,
    "cut while thinking": f"</think>{STOP}",
    "ended while thinking": "",
    "gone on behind its end": STOP,
    "empty": STOP,
}


@pytest.mark.parametrize("name", CLOSING)
def test_a_turn_is_closed_only_if_it_is_not(name: str) -> None:
    prompt = renderer().full(OPENING, ())
    output = ids_of(sampled(OUTPUTS[name]))
    found = renderer().after(prompt, output, [user("So?")], ())
    assert found is not None
    text = f"{CLOSING[name]}\n<|im_start|>user\nSo?{STOP}\n{HEADER}"
    assert stock().decode(found.ids) == text


@pytest.mark.parametrize("new", FOLLOWING.values(), ids=FOLLOWING)
def test_the_end_of_a_prompt_is_as_good_as_all_of_it(new: list[Message]) -> None:
    prompt = renderer().full([*OPENING, LOOK, result("a"), result("b")], (BASH, READ))
    output = ids_of(sampled(f"Big.{STOP}"))
    whole = renderer().after(prompt, output, new, ())
    assert whole == renderer().after(prompt[-3:], output, new, ())


def test_a_long_beginning_of_an_answer_in_the_prompt_is_looked_through_to_its_header() -> None:
    """It thinks since far back: the thought has to be closed, however long it is."""
    begun = "<think>\n" + "hm " * 900
    prompt = ids_of([*stock().render(OPENING, ()), *sampled(begun)])
    found = renderer().after(prompt, ids_of(sampled("so")), [user("?")], ())
    other = renderer(family="none").after(prompt, ids_of(sampled("so")), [user("?")], ())
    assert found is not None
    assert stock().decode(found.ids).startswith(f"</think>{STOP}")
    assert other is not None
    assert other.ids == found.ids


def test_the_ids_that_end_an_answer() -> None:
    assert renderer().stop_ids == (151645, 151643)
    assert renderer(family="none").stop_ids == (151645,)


def test_another_token_of_the_family_ends_an_answer_too() -> None:
    prompt = renderer().full(OPENING, ())
    found = renderer().after(prompt, ids_of(sampled("Big.<|endoftext|>")), [user("So?")], ())
    assert found is not None
    assert stock().decode(found.ids).startswith("\n<|im_start|>user\nSo?")


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ('{"eos_token_id": [7, 8]}', [7, 8]),
        ('{"eos_token_id": 7}', [7]),
        ('{"eos_token_id": null}', []),
        ("{}", []),
        ("[]", []),
    ],
)
def test_the_model_s_own_settings_name_further_ones(
    tmp_path: Path, settings: str, ends: list[int]
) -> None:
    assert generation_ends(tmp_path) == []
    (tmp_path / "generation_config.json").write_text(settings)
    assert generation_ends(tmp_path) == ends


def test_settings_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(BadSetting, match=r"generation_config\.json cannot be read"):
        generation_ends(tmp_path)


def test_the_fingerprint_stays() -> None:
    """Sessions outlive gateways: another value would refuse them all."""
    assert renderer().fingerprint == "a996b250ba56a843"
    assert renderer(family="none").fingerprint == renderer().fingerprint


def test_the_fingerprint_is_of_vocabulary_template_and_options(tmp_path: Path) -> None:
    def of(vocabulary: str, template: str | None, **options: bool) -> str:
        (tmp_path / "tokenizer.json").write_text(vocabulary)
        return fingerprint_of(tmp_path, renderer().backend, template, options)

    different = [
        of("v", "t"),
        of("w", "t"),
        of("v", "u"),
        of("v", None),
        of("vt", ""),
        of("v", "t", enable_thinking=False),
        of("v", "t", enable_thinking=True),
    ]
    assert len(set(different)) == len(different)
    assert of("v", "t", a=True, b=False) == of("v", "t", b=False, a=True)


def test_text_that_is_none_is_refused() -> None:
    for family in ("auto", "none"):
        with pytest.raises(RenderFailed, match="half a surrogate pair"):
            renderer(family=family).full([user("\ud800")], ())


WRONG = {
    "no folder": ({"folder": Path("nowhere")}, "nowhere holds no tokenizer"),
    "no such family": ({"family": "qwen9"}, "no model family 'qwen9'"),
    "another family": ({"family": "glm-4.5"}, "not of the family glm-4.5"),
    "no template": ({"template": Path("nowhere.jinja")}, "nowhere.jinja cannot be read"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_used_is_named(arguments: dict[str, Path], message: str) -> None:
    given = {"folder": qwen3.tokenizer_folder(), **arguments}
    with pytest.raises(BadSetting, match=message):
        Renderer(**given)  # type: ignore[arg-type]


def test_a_template_that_prints_nothing_is_refused_at_the_start(tmp_path: Path) -> None:
    for text in ("{% for %}", "{{ raise_exception('never') }}"):
        with pytest.raises(BadSetting, match="not even one message can be printed"):
            with_template(tmp_path / "t.jinja", text)
