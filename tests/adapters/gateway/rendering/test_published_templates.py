"""What the gateway makes of other models' templates: what it sampled goes on, or is counted.

A client sends answers back as OpenAI's API has them, arguments as text.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streams.adapters.dialects import openai_chat
from streams.adapters.dialects.calls import Call, CallRefused, Message
from streams.adapters.gateway.prompts.building import BuiltPrompt, build
from streams.adapters.gateway.rendering.renderer import Renderer
from tests.adapters.gateway.prompts.prompt_setting import STOP, Session, extends, with_template
from tests.adapters.gateway.rendering.families import MARKERS, byte_tokenizer
from tests.drift.next_prompts import BASH, NEXT_QUESTION, OPENING
from tests.drift.templates import (
    HARMONY_MARKERS,
    MISTRAL,
    MISTRAL_MARKERS,
    by_mistral,
    template,
)

ARGUMENTS = '{"command": "du -sh .", "quiet": false, "depth": null}'
JSON_CALL = f'<tool_call>\n{{"name": "bash", "arguments": {ARGUMENTS}}}\n</tool_call>'
XML_CALL = (
    "Look.\n</think>\n\n<tool_call>\n<function=bash>\n<parameter=command>\ndu -sh .\n</parameter>\n"
    "<parameter=quiet>\nfalse\n</parameter>\n<parameter=depth>\nnull\n</parameter>\n"
    "</function>\n</tool_call>"
)
RESULT: Message = {"role": "tool", "content": "148M\t.", "tool_call_id": "t1.0"}
SAMPLED = {
    "qwen2_5": JSON_CALL,
    "qwen3": f"<think>\nLook.\n</think>\n\n{JSON_CALL}",
    "qwen3_5_think": XML_CALL,
    "qwen3_6": XML_CALL,
    "qwen3_8": XML_CALL,
}


def echoed(arguments: str = ARGUMENTS) -> Message:
    function = {"name": "bash", "arguments": arguments}
    call = {"id": "t1.0", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def read(messages: list[Message]) -> Call:
    """A request as it comes over the wire."""
    body = {"model": "m", "messages": messages, "tools": [BASH]}
    return openai_chat.read_call(msgspec.json.encode(body))


def asked(session: Session, messages: list[Message]) -> BuiltPrompt:
    return build(read(messages), session.history, session.renderer)


def recorded(messages: list[Message]) -> Message:
    """The last message as the gateway keeps it."""
    return read(messages).messages[-1]


@pytest.mark.parametrize("name", SAMPLED)
def test_13_14_sampled_calls_go_on_whatever_the_template_makes_of_them(
    tmp_path: Path, name: str
) -> None:
    session = Session(with_template(tmp_path / "t", template(name), "auto"), tools=(BASH,))
    answer = recorded([*OPENING, echoed()])
    turn = session.answer(asked(session, OPENING), SAMPLED[name] + STOP, answer)
    for new in ([RESULT], [RESULT, NEXT_QUESTION]):
        built = asked(session, [*OPENING, echoed(), *new])
        assert extends(built, session, turn)
        assert built.built == ("bridge" if name == "qwen3" else "suffix")
    assert "False" not in session.renderer.decode(built.ids)


@pytest.mark.parametrize("name", ["qwen3_5_think", "qwen3_6", "qwen3_8"])
def test_15_text_that_is_no_object_goes_on_if_it_was_sampled_here_and_else_is_refused(
    tmp_path: Path, name: str
) -> None:
    session = Session(with_template(tmp_path / "t", template(name)), tools=(BASH,))
    broken = echoed("du -sh .")
    with pytest.raises(CallRefused, match="mapping") as refused:
        asked(session, [*OPENING, broken, RESULT])
    assert refused.value.status == 400
    answer = recorded([*OPENING, broken])
    turn = session.answer(asked(session, OPENING), XML_CALL + STOP, answer)
    assert extends(asked(session, [*OPENING, broken, RESULT]), session, turn)


def bytewise(markers: str, text: str, **options: Any) -> Renderer:
    """A template with a tokenizer of one token a byte and these markers."""
    with tempfile.TemporaryDirectory() as folder:
        byte_tokenizer(markers).save_pretrained(folder)
        file = Path(folder) / "t.jinja"
        file.write_text(text, encoding="utf-8")
        return Renderer(Path(folder), template=file, options=options)


CONVERSATIONS: dict[str, list[Message]] = {
    "a question": OPENING,
    "a call": [*OPENING, {**echoed('{"command": "ls"}'), "content": ""}, RESULT],
    "another question": [*OPENING, {"role": "assistant", "content": "Big."}, NEXT_QUESTION],
}


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_16_the_template_of_mistral_prints_what_its_own_package_prints(
    messages: list[Message],
) -> None:
    named = json.loads(json.dumps(messages).replace("t1.0", "call00001"))
    renderer = bytewise(MISTRAL_MARKERS, MISTRAL)
    call = read(named)
    _, text = by_mistral(named, [BASH])
    assert renderer.decode(renderer.whole(call.messages, call.tools)) == text


def test_16_what_moves_to_the_last_question_is_rendered_anew_and_recorded_as_such() -> None:
    renderer = bytewise(MISTRAL_MARKERS, MISTRAL)
    assert not renderer.appends
    assert renderer.suffix_tested == "a user is printed otherwise after a longer history"
    session = Session(renderer, tools=(BASH,))
    answer: Message = {"role": "assistant", "content": "Big."}
    output = [*renderer.encode("Big."), renderer.control_id("</s>") or 0]
    turn = session.answer(asked(session, OPENING), output, answer)
    built = asked(session, [*OPENING, answer, NEXT_QUESTION])
    assert (built.built, built.base_turn_id, built.kept_ids) == ("render", None, 0)
    held = session.said_by(turn)
    assert built.ids[0] == held[0]
    assert built.ids[1] != held[1]


def test_17_a_session_keeps_its_date_over_midnight_and_a_new_one_has_the_next() -> None:
    evening, morning = (
        bytewise(MARKERS["Llama3"], template("llama3_2"), date_string=day)
        for day in ("01 Jan 2026", "02 Jan 2026")
    )
    session = Session(evening, tools=(BASH,))
    answer: Message = {"role": "assistant", "content": "Big."}
    output = [*evening.encode("Big."), evening.control_id("<|eot_id|>") or 0]
    turn = session.answer(asked(session, OPENING), output, answer)
    session.renderer = morning
    built = asked(session, [*OPENING, answer, NEXT_QUESTION])
    assert extends(built, session, turn)
    assert built.built == "suffix"
    assert "01 Jan 2026" in morning.decode(built.ids)
    assert "02 Jan 2026" in morning.decode(asked(Session(morning), OPENING).ids)


def test_17_a_template_whose_end_depends_on_what_follows_is_rendered_anew() -> None:
    renderer = bytewise(HARMONY_MARKERS, template("gptoss"))
    assert not renderer.appends
    assert renderer.suffix_tested == "no token ends an answer whatever follows it"
