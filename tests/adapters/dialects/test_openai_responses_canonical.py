"""One conversation in two spellings is one conversation."""

from typing import Any

import pytest

from tests.adapters.dialects.responses_requests import (
    BASH,
    USER,
    call,
    called,
    messages,
    result,
    said,
    thought,
)

TEXT = {"type": "input_text", "text": "hi"}
ASKED = {"type": "message", "role": "user", "content": "hi"}
Items = tuple[dict[str, Any], ...]

SPELLINGS: dict[str, tuple[Items, Items]] = {
    "a string or one part": ((ASKED,), (ASKED | {"content": [TEXT]},)),
    "a message that does not say that it is one": (
        (ASKED,),
        ({"role": "user", "content": "hi"},),
    ),
    "an id and a status that the client made": (
        (ASKED,),
        (ASKED | {"id": "msg_01a1e59f-6f66-7203", "status": "completed"},),
    ),
    "a cache mark on a part": (
        (ASKED,),
        (ASKED | {"content": [TEXT | {"prompt_cache_breakpoint": {}}]},),
    ),
    "developer or system": (
        ({"role": "developer", "content": "hi"},),
        ({"role": "system", "content": "hi"},),
    ),
    "what a client marks an answer with": (
        (said("ok"),),
        (said("ok", id="m", status="completed", phase="final_answer", internal={"a": 1}),),
    ),
    "an answer as a string": ((said("ok"),), ({"role": "assistant", "content": "ok"},)),
    "an answer in two parts": (
        (said("ok"),),
        ({"role": "assistant", "content": [TEXT | {"text": "o"}, TEXT | {"text": "k"}]},),
    ),
    "annotations and logprobs": (
        (said("ok"),),
        (
            {
                "role": "assistant",
                "content": [{"type": "output_text", "text": "ok", "logprobs": [1]}],
            },
        ),
    ),
    "a thought whose fields are null": (
        ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}, said("ok")),
        (
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": "x"}],
                "content": None,
                "encrypted_content": None,
                "status": None,
                "id": None,
            },
            said("ok"),
        ),
    ),
    "a thought as a string": ((thought("x"),), (thought("x") | {"content": "x"},)),
    "arguments with other blanks and escapes": (
        (called('{"command":"caf\\u00e9","n":[1,2]}'),),
        (called('{ "command" : "café",\n "n": [1, 2] }'),),
    ),
    "what servers and clients add to a call": (
        (called(),),
        (called(id="fc_1", status="completed", namespace=None, caller={"type": "direct"}),),
    ),
    "an output in one part": (
        (called(), result("4 MB")),
        (called(), result([{"type": "input_text", "text": "4 MB"}], id="fco_1", status=None)),
    ),
}


@pytest.mark.parametrize(("one", "other"), SPELLINGS.values(), ids=SPELLINGS)
def test_two_spellings_give_the_same_messages(one: Items, other: Items) -> None:
    assert messages(USER, *one) == messages(USER, *other)


def test_instructions_or_a_first_message() -> None:
    first = {"role": "developer", "content": "Be brief."}
    assert call(instructions="Be brief.").messages == call(input=[first, USER]).messages


def test_null_is_the_same_as_not_given() -> None:
    names = (
        "background conversation include instructions max_output_tokens metadata "
        "previous_response_id prompt reasoning temperature text tool_choice tools top_p "
        "truncation user stream"
    )
    assert call(**dict.fromkeys(names.split())) == call()


def test_how_an_answer_is_sent_makes_no_difference_to_what_is_asked() -> None:
    assert call(store=True, metadata={"a": "b"}, tools=[BASH]) == call(tools=[BASH | {"x": 1}])


def test_different_conversations_stay_different() -> None:
    texts = ["hi", "hi ", "hi\n", "\nhi", "Hi"]
    assert len({str(call(input=text).messages) for text in texts}) == len(texts)
