"""`turnstream doctor --tokenizer` says where a chat template breaks and what to do about it."""

import functools
import shutil
import tempfile
from pathlib import Path

import pytest

from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.rendering.serving_template import serving
from streams.cli.doctor import tokenizer as doctor_tokenizer
from streams.cli.doctor.finding import Finding
from tests.adapters.gateway.rendering.families import MARKERS, byte_tokenizer
from tests.cli.test_doctor import doctor, rows
from tests.drift.next_prompts import BASH, NEXT_QUESTION, OPENING, RESULT
from tests.drift.qwen3 import Message, tokenizer_folder
from tests.drift.templates import HARMONY_MARKERS, MISTRAL, MISTRAL_MARKERS, template

BYTEWISE = {
    "mistral": MISTRAL_MARKERS,
    "llama3_2": MARKERS["Llama3"],
    "gptoss": HARMONY_MARKERS,
}
"""Models whose tokenizer is not here: one token a byte, and their markers."""


def folder_of(name: str, place: Path) -> Path:
    """A tokenizer with the template of that name."""
    folder = place / name
    if name in BYTEWISE:
        byte_tokenizer(BYTEWISE[name]).save_pretrained(folder)
    else:
        shutil.copytree(tokenizer_folder(), folder)
    text = MISTRAL if name == "mistral" else template(name)
    (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
    return folder


@functools.cache
def found(name: str) -> dict[str, Finding]:
    """What the command would print of it."""
    with tempfile.TemporaryDirectory() as place:
        folder = folder_of(name, Path(place))
        rows = doctor_tokenizer.findings(tokenizer=folder, log=None, engine=None)
    return {row.name: row for row in rows}


BREAKS = {
    "qwen3": 'turn 2 leaves turn 1 at token 0 of its answer: "<think>\\nI" becomes "A wall."',
    "qwen3_6": "turn 2 leaves turn 1 at token 258 of its 260 prompt tokens: "
    '"<think>\\nI" becomes "A wall."',
}


@pytest.mark.parametrize("name", BREAKS)
def test_where_a_template_breaks_is_told_by_turn_and_token(name: str) -> None:
    row = found(name)["template alone"]
    assert row.state == "note"
    assert row.detail.startswith("breaks in 3 of 4 ways to go on; the user's next message: ")
    assert row.detail.endswith(BREAKS[name])
    assert row.change.startswith("nothing for the gateway: it goes on from recorded tokens")


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_training", "qwen3_6_training", "qwen3_8"])
def test_a_template_that_only_appends_is_told_as_such(name: str) -> None:
    told = found(name)
    assert told["template alone"].state == "ok"
    assert told["template alone"].detail == "only ever appends, in 4 of 4 ways to go on"
    assert told["serving"].state == "ok"


CALLS = {
    "qwen3": ("ok", "as objects and as text"),
    "qwen2_5": ("ok", "as text, as clients send them, they would be encoded twice"),
    "qwen3_5_think": ("note", "as Python spells them (False, True, None), not JSON"),
    "qwen3_6": ("ok", "as text, as clients send them, they would be refused"),
    "qwen3_8": ("ok", "as text, as clients send them, they would be refused"),
}


@pytest.mark.parametrize("name", CALLS)
def test_how_arguments_are_printed_is_told(name: str) -> None:
    row = found(name)["tool calls"]
    state, says = CALLS[name]
    assert row.state == state
    assert says in row.detail
    assert bool(row.change) == (state == "note")


def test_a_template_without_calls_is_noted(tmp_path: Path) -> None:
    folder = folder_of("qwen3", tmp_path)
    plain = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    opened = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    (folder / "chat_template.jinja").write_text(plain + opened)
    told = doctor_tokenizer.findings(tokenizer=folder, log=None, engine=None)
    (row,) = [row for row in told if row.name == "tool calls"]
    assert (row.state, row.detail) == ("note", "are not printed")


DATES = {
    "llama3_2": ("token 90 of 773", "sessions keep what they recorded"),
    "gptoss": ("token 116 of 500", "sessions break at midnight"),
}


@pytest.mark.parametrize("name", DATES)
def test_a_date_in_the_prompt_is_told_with_its_place(name: str) -> None:
    told = found(name)
    place, kept = DATES[name]
    assert (told["date"].state, place in told["date"].detail) == ("note", True)
    assert told["date"].change.startswith(kept)
    assert "date" not in found("qwen3")


FAILING = {
    "mistral": (
        "a user is printed otherwise after a longer history",
        'turn 2 leaves turn 1 at token 1 of its 213 prompt tokens: "[AVAILABLE_TOOLS][{" becomes '
        '"[INST]Wh"',
    ),
    "gptoss": (
        "no token ends an answer whatever follows it",
        'turn 2 leaves turn 1 at token 14 of its answer: "<|return|>" becomes "<|end|><|start|>u"',
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_template_that_is_asked_anew_each_time_fails_with_the_place(name: str) -> None:
    row = found(name)["next turns"]
    assert row.state == "FAIL"
    for says in FAILING[name]:
        assert says in row.detail
    assert "trains by itself, in a sample of its own" in row.change


SERVING = {
    "qwen3": "--serving-template > chat_template.jinja",
    "qwen3_5_think": "--serving-template > chat_template.jinja",
    "qwen3_6": 'chat_template_kwargs {"preserve_thinking": true} with every request',
    "mistral": "take one that only appends",
}


@pytest.mark.parametrize("name", SERVING)
def test_what_to_serve_with_is_told(name: str) -> None:
    row = found(name)["serving"]
    assert row.state == "note"
    assert SERVING[name] in row.change


THOUGHTFUL: tuple[list[Message], ...] = (
    OPENING,
    [*OPENING, {"role": "assistant", "content": "Big.", "reasoning_content": "Hm."}, NEXT_QUESTION],
    [
        *OPENING,
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I look.",
            "tool_calls": [{"function": {"name": "bash", "arguments": {"command": "du"}}}],
        },
        RESULT,
        {"role": "assistant", "content": "Big.", "reasoning_content": "Hm."},
        NEXT_QUESTION,
    ],
)
"""Answers without a thought are given an empty one by the other template, and none here."""


def test_the_template_to_serve_with_prints_what_trls_prefix_preserving_one_prints(
    tmp_path: Path,
) -> None:
    renderer = Renderer(folder_of("qwen3", tmp_path))
    made = serving(renderer)
    assert made is not None
    assert made.changed == "loop.index0 > ns.last_query_index"
    ours, theirs = renderer.printing(made.text), renderer.printing(template("qwen3_training"))
    for messages in THOUGHTFUL:
        assert ours.render(messages, [BASH]) == theirs.render(messages, [BASH])


def test_the_command_prints_rows_and_fails_where_sampled_tokens_may_change(tmp_path: Path) -> None:
    for name, code in (("qwen3_6", 0), ("mistral", 1)):
        ran = doctor("--log", tmp_path / "a.db", "--tokenizer", folder_of(name, tmp_path))
        assert (ran.code, ran.err) == (code, "")
        failed = {row for row, state in rows(ran).items() if state == "FAIL"}
        assert failed == ({"next turns"} if code else set())
        assert {"template alone", "tool calls", "serving"} <= rows(ran).keys()


def test_the_command_prints_the_template_to_serve_with_and_nothing_else(tmp_path: Path) -> None:
    folder = folder_of("qwen3", tmp_path)
    ran = doctor("--tokenizer", folder, "--serving-template")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == template("qwen3").replace("loop.index0 > ns.last_query_index", "true")
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    (again / "chat_template.jinja").write_text(ran.out)
    rows = doctor_tokenizer.findings(tokenizer=again, log=None, engine=None)
    assert {row.name: row.state for row in rows}["template alone"] == "ok"


def test_where_none_is_known_the_command_says_so(tmp_path: Path) -> None:
    ran = doctor("--tokenizer", folder_of("mistral", tmp_path), "--serving-template")
    assert (ran.code, ran.out) == (1, "")
    assert "no template is known that prints histories as they are trained on" in ran.err
    ran = doctor("--serving-template")
    assert (ran.code, ran.out) == (1, "")
    assert "give --tokenizer FOLDER too" in ran.err
