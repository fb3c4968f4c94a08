"""The next prompt of other models' templates is not prompt + response either.

As in `next_prompts`, one call of `bash` and its result, or the next question. Ids are Qwen3's
where the template is of that family; for Mistral they are Tekken's, by Mistral's own package.
"""

from typing import Any

import pytest

from tests.drift.next_prompts import BASH, NEXT_QUESTION, OPENING, RESULT
from tests.drift.qwen3 import STOP, Message, Qwen3
from tests.drift.sessions import first_difference
from tests.drift.templates import by_mistral, template

ARGUMENTS = {"command": "du -sh ."}
JSON_CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "du -sh ."}}\n</tool_call>'
XML_CALL = (
    "Look.\n</think>\n\n<tool_call>\n<function=bash>\n<parameter=command>\ndu -sh .\n</parameter>\n"
    "<parameter=quiet>\n{}\n</parameter>\n</function>\n</tool_call>"
)
WITH_ARGUMENTS = ["qwen3_5_think", "qwen3_6", "qwen3_8"]


def render(qwen3: Qwen3, name: str, messages: list[Message], **options: Any) -> list[int]:
    ids: list[int] = qwen3.tokenizer.apply_chat_template(  # type: ignore[assignment]
        list[dict[str, Any]](messages),
        tools=[BASH],
        chat_template=template(name),
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **options,
    )
    return ids


def called(arguments: object, **fields: object) -> Message:
    function = {"name": "bash", "arguments": arguments}
    call = {"id": "call00001", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call], **fields}


def broken(qwen3: Qwen3, name: str, sampled: str, answer: Message) -> tuple[str, str, str]:
    """Where the prompt after a call's result leaves prompt and call, and what is there."""
    prompt, output = render(qwen3, name, OPENING), qwen3.encode(sampled + STOP)
    following = render(qwen3, name, [*OPENING, answer, RESULT])
    held = prompt + output
    at = first_difference(held, following)
    if at == len(held):
        return "holds", "", ""
    half = f"response {at - len(prompt)}" if at >= len(prompt) else f"prompt {at}"
    return half, qwen3.decode(held[at : at + 1]), qwen3.decode(following[at : at + 1])


def test_13_arguments_as_text_are_encoded_twice_by_qwen2_5(qwen3: Qwen3) -> None:
    found = broken(qwen3, "qwen2_5", JSON_CALL, called('{"command": "du -sh ."}'))
    assert found == ("response 11", ' {"', ' "{\\"')
    assert broken(qwen3, "qwen2_5", JSON_CALL, called(ARGUMENTS))[0] == "holds"


SPELLED = {False: ("false", "False"), True: ("true", "True"), None: ("null", "None")}


@pytest.mark.parametrize("value", SPELLED)
def test_14_qwen3_5_prints_values_as_python_does_and_later_ones_as_json(
    qwen3: Qwen3, value: bool | None
) -> None:
    sampled, printed = SPELLED[value]
    answer = called({**ARGUMENTS, "quiet": value}, reasoning_content="Look.")
    found = broken(qwen3, "qwen3_5_think", XML_CALL.format(sampled), answer)
    assert found == ("response 28", sampled, printed)
    for name in ("qwen3_6", "qwen3_8"):
        assert broken(qwen3, name, XML_CALL.format(sampled), answer)[0] == "holds"


@pytest.mark.parametrize("name", WITH_ARGUMENTS)
def test_15_templates_that_list_arguments_refuse_text(qwen3: Qwen3, name: str) -> None:
    with pytest.raises(TypeError, match="mapping"):
        render(qwen3, name, [*OPENING, called('{"command": "du -sh ."}'), RESULT])


def test_16_mistral_moves_tools_and_system_prompt_to_the_last_question() -> None:
    answer: Message = {"role": "assistant", "content": "About 148M."}
    prompt, text = by_mistral(OPENING, [BASH])
    following, text_after = by_mistral([*OPENING, answer, NEXT_QUESTION], [BASH])
    assert first_difference(prompt, following) == 1
    assert (len(prompt), len(following)) == (81, 95)
    assert text.startswith("<s>[AVAILABLE_TOOLS]")
    assert text_after.startswith("<s>[INST]How big is the repo?[/INST]About 148M.</s>[AVAILABLE")
    # In a loop of tools nothing moves.
    result = {**RESULT, "tool_call_id": "call00001", "name": "bash"}
    looped, _ = by_mistral([*OPENING, called(ARGUMENTS), result], [BASH])
    assert first_difference(prompt, looped) == len(prompt)


DATED = {"llama3_2": (45, 243), "gptoss": (51, 180)}
"""The token that differs, of how many."""


@pytest.mark.parametrize("name", DATED)
def test_17_a_template_that_prints_the_date_breaks_at_midnight(qwen3: Qwen3, name: str) -> None:
    prompts = [
        render(qwen3, name, OPENING, strftime_now=lambda _, day=day: day)
        for day in ("2026-01-01", "2026-01-02")
    ]
    assert (first_difference(*prompts), len(prompts[0])) == DATED[name]


KEEPING = {
    "qwen3": (True, False),
    "qwen3_training": (True, True),
    "qwen3_6": (True, False),
    "qwen3_6_training": (True, True),
    "qwen3_8": (True, True),
}
"""Whether the prefix holds after a tool's result, and after the next question."""


@pytest.mark.parametrize("name", KEEPING)
def test_which_templates_keep_the_prefix(qwen3: Qwen3, name: str) -> None:
    prompt = render(qwen3, name, OPENING)
    thought = {"reasoning_content": "Look."}
    spoken: Message = {"role": "assistant", "content": "About 148M.", **thought}
    for answer, new, holds in (
        (called(ARGUMENTS, **thought), RESULT, KEEPING[name][0]),
        (spoken, NEXT_QUESTION, KEEPING[name][1]),
    ):
        following = render(qwen3, name, [*OPENING, answer, new])
        text = qwen3.decode(following)
        kept = following[: len(prompt)] == prompt and "Look." in text
        assert kept == holds, text
