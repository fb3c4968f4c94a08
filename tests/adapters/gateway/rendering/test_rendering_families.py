"""Families beside Qwen3, by their own renderers: recorded tokens go on in each of them.

The tokenizers have one token a byte and the markers of their family; there is no template.
"""

import functools
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from streams.adapters.dialects.calls import Message
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.errors import BadSetting
from tests.adapters.gateway.prompts.prompt_setting import (
    Session,
    call,
    extends,
    ids_of,
    result,
    said,
    system,
    user,
)
from tests.adapters.gateway.rendering.families import MARKERS, byte_tokenizer, encode
from tests.drift.next_prompts import BASH, OPENING

FAMILIES = {
    "Qwen35": ("qwen3.5", "hm\n</think>\n\nyes<|im_end|>"),
    "GLM45": ("glm-4.5", "\n<think>hm</think>\nyes<|observation|>"),
    "MiniMaxM2": ("minimax-m2", "hm\n</think>\n\nyes[e~["),
    "Llama3": ("llama-3", "yes<|eot_id|>"),
}
"""The family's name, and an answer in its tokens."""
ANSWER = said("yes", "", call("t1.0"))
FOLLOWING: dict[str, list[Message]] = {
    "a result": [result("t1.0")],
    "two results": [result("t1.0"), result("t1.1")],
    "a user": [user("So?")],
    "a system message": [system("It got dark."), user("So?")],
}


@functools.cache
def family_renderer(markers: str) -> Renderer:
    with tempfile.TemporaryDirectory() as folder:
        byte_tokenizer(MARKERS[markers]).save_pretrained(folder)
        return Renderer(Path(folder), family=FAMILIES[markers][0])


@pytest.mark.parametrize("markers", FAMILIES)
@pytest.mark.parametrize("new", FOLLOWING.values(), ids=FOLLOWING)
def test_a_turn_goes_on_from_its_tokens(markers: str, new: list[Message]) -> None:
    session = Session(family_renderer(markers), tools=(BASH,))
    turn = session.turn(OPENING, encode(markers, FAMILIES[markers][1]), ANSWER)
    built = session.build([*OPENING, ANSWER, *new])
    assert extends(built, session, turn)
    assert built.built == "bridge"


@pytest.mark.parametrize("markers", FAMILIES)
@pytest.mark.parametrize("new", FOLLOWING.values(), ids=FOLLOWING)
def test_the_last_header_is_all_that_a_family_needs(markers: str, new: list[Message]) -> None:
    prints = family_renderer(markers)
    bridge = prints._bridge
    assert bridge is not None
    assert bridge.short
    prompt = prints.full([*OPENING, said("no"), user("Really?")], (BASH,))
    output = ids_of(encode(markers, FAMILIES[markers][1]))
    end = ids_of(bridge.last_header(prompt.tolist()))
    printed = prints._printed(new, follow=True)
    assert bridge.after(prompt, output, printed) == bridge.after(end, output, printed)


def test_an_end_token_that_opens_the_next_message_is_not_printed_twice() -> None:
    session = Session(family_renderer("GLM45"), tools=(BASH,))
    session.turn(OPENING, encode("GLM45", FAMILIES["GLM45"][1]), ANSWER)
    built = session.build([*OPENING, ANSWER, result("t1.0")])
    assert session.renderer.decode(built.ids).count("<|observation|>") == 1


@pytest.mark.parametrize("markers", ["Qwen35", "MiniMaxM2"])
def test_an_answer_that_ended_while_thinking_goes_on_too(markers: str) -> None:
    session = Session(family_renderer(markers), tools=(BASH,))
    output = FAMILIES[markers][1].replace("</think>", "")
    turn = session.turn(OPENING, encode(markers, output), said("", output))
    built = session.build([*OPENING, said("", output), user("So?")])
    assert extends(built, session, turn)


@pytest.mark.parametrize(("markers", "in_place"), [("Qwen35", False), ("Llama3", True)])
def test_a_system_message_is_printed_in_place_where_the_family_can(
    markers: str, in_place: bool
) -> None:
    prints = family_renderer(markers)
    assert prints.system_in_place == in_place
    messages = [*OPENING, said("yes"), system("It got dark."), user("So?")]
    text = prints.decode(prints.full(messages, ()))
    assert text.index("yes") < text.index("It got dark.") < text.index("So?")
    assert ("<system>\nIt got dark.\n</system>" in text) != in_place


@pytest.mark.parametrize("markers", FAMILIES)
def test_what_a_client_spells_is_text_in_every_family(markers: str) -> None:
    prints = family_renderer(markers)
    for marker in MARKERS[markers].split():
        token = encode(markers, marker)[0]
        plain = prints.full([user("a b")], (BASH,)).tolist()
        spelled = prints.full([user(f"a {marker} b")], (BASH,)).tolist()
        assert spelled.count(token) == plain.count(token)
        assert f"a {marker} b" in prints.decode(spelled)


@pytest.mark.parametrize("markers", FAMILIES)
def test_an_answer_from_elsewhere_is_rendered_with_all_the_rest(markers: str) -> None:
    session = Session(family_renderer(markers), tools=(BASH,))
    session.turn(OPENING, encode(markers, FAMILIES[markers][1]), ANSWER)
    built = session.build([*OPENING, said("Other."), user("So?")])
    assert (built.built, built.foreign) == ("render", (2,))
    assert "Other." in session.renderer.decode(built.ids)


def test_neither_template_nor_family_is_refused(tmp_path: Path) -> None:
    byte_tokenizer(MARKERS["Llama3"]).save_pretrained(tmp_path)
    with pytest.raises(BadSetting, match="has no chat template: name a template file or a model"):
        Renderer(tmp_path)


def test_the_client_that_the_package_imports_is_left_to_those_who_use_it() -> None:
    code = (
        "import sys, streams.adapters.gateway.rendering.package;"
        "print('openai' in sys.modules);"
        "import openai; print(openai.AsyncOpenAI.__name__)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout.split() == ["False", "AsyncOpenAI"]
