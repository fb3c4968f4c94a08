"""Is this message that answer? One table."""

import pytest

from streams.adapters.dialects.calls import Message
from streams.adapters.gateway.history.matching import Cut, Whole, compare, with_own_reasoning
from tests.adapters.gateway.prompts.prompt_setting import call, said

TEXT = said("It is big.", "I guess.")
CALLS = said("Two.", "I look.", call("t1.0", n=1), call("t1.1", n=2.0))
ROWS: dict[str, tuple[Message, Message, str]] = {
    "itself": (TEXT, TEXT, "whole"),
    "blanks around the text": (said(" It is big.\n", "I guess."), TEXT, "whole"),
    "blanks around the thought": (said("It is big.", "\nI guess.\n"), TEXT, "whole"),
    "no thought": (said("It is big."), TEXT, "whole without its thought"),
    "the thought in the text": (said("<think>I guess.</think>It is big."), TEXT, "whole"),
    "another thought": (said("It is big.", "I know."), TEXT, "other"),
    "another thought in the text": (said("<think>I know.</think>It is big."), TEXT, "other"),
    "no thought where there was none": (said("Yes."), said("Yes."), "whole"),
    "a thought where there was none": (said("Yes.", "hm"), said("Yes."), "other"),
    "a beginning": (said("It is", "I guess."), TEXT, "cut: It is | I guess."),
    "a beginning without thought": (said("It is"), TEXT, "cut: It is | I guess."),
    "a beginning behind blanks": (
        said("It is"),
        said("\n It is big.", "I guess."),
        "cut: \n It is | I guess.",
    ),
    "a beginning of a thought behind blanks": (
        said("", "I gu"),
        said("Big.", " I guess."),
        "cut:  |  I gu",
    ),
    "a beginning with blanks": (said("It is \n"), TEXT, "cut: It is | I guess."),
    "a beginning with another thought": (said("It is", "I know."), TEXT, "other"),
    "more than there was": (said("It is big. Really.", "I guess."), TEXT, "other"),
    "nothing": (said(""), TEXT, "other"),
    "nothing of nothing": (said(" "), said(""), "whole"),
    "only the thought": (said("", "I guess."), TEXT, "cut:  | I guess."),
    "half the thought": (said("", "I gu"), TEXT, "cut:  | I gu"),
    "only another thought": (said("", "I know."), TEXT, "other"),
    "all ids": (said("", "", call("t1.0"), call("t1.1")), CALLS, "whole"),
    "all ids in another order": (said("", "", call("t1.1"), call("t1.0")), CALLS, "whole"),
    "the first id": (said("", "", call("t1.0")), CALLS, "cut: Two. | I look. | t1.0"),
    "the second id": (said("", "", call("t1.1")), CALLS, "other"),
    "ids of another": (said("Two.", "", call("t2.0", n=5), call("t2.1")), CALLS, "other"),
    "no ids, the same calls": (
        said("Two.", "I look.", call("", n=1), call("", n=2)),
        CALLS,
        "whole",
    ),
    "no ids, another number": (said("Two.", "", call("", n=1), call("", n=3)), CALLS, "other"),
    "no ids, another tool": (
        said("Two.", "", call("", "x", n=1), call("", n=2)),
        CALLS,
        "other",
    ),
    "no ids, another text": (said("2.", "", call("", n=1), call("", n=2)), CALLS, "other"),
    "no ids, the first call": (
        said("Two.", "", call("", n=1)),
        CALLS,
        "cut: Two. | I look. | t1.0",
    ),
    "no ids, a call too many": (
        said("Two.", "", call("", n=1), call("", n=2), call("", n=3)),
        CALLS,
        "other",
    ),
    "true is not 1": (
        said("Two.", "", call("", n=True), call("", n=2)),
        CALLS,
        "other",
    ),
    "the text without its calls": (said("Two."), CALLS, "cut: Two. | I look."),
    "the thought without its calls": (said("", "I look."), CALLS, "cut:  | I look."),
    "a call out of nothing": (said("It is big.", "", call("x")), TEXT, "other"),
}


@pytest.mark.parametrize(("echo", "recorded", "drawing"), ROWS.values(), ids=ROWS)
def test_a_message_is_an_answer_its_beginning_or_another(
    echo: Message, recorded: Message, drawing: str
) -> None:
    assert drawn(compare(echo, recorded)) == drawing


def drawn(found: Whole | Cut | None) -> str:
    if found is None:
        return "other"
    if isinstance(found, Whole):
        return "whole" if found.reasoning_kept else "whole without its thought"
    message = found.message
    assert found.calls == len(message.get("tool_calls", ()))
    kept = [message["content"], message["reasoning_content"]]
    kept += [one["id"] for one in message.get("tool_calls", ())]
    return "cut: " + " | ".join(kept)


def test_numbers_nested_in_arguments_are_compared_by_value() -> None:
    deep = {"a": [{"b": 5000.0}, [1.5, "x"]], "c": None}
    same = {"c": None, "a": [{"b": 5000}, [1.5, "x"]]}
    one, other = (said("", "", call("", x=value)) for value in (deep, same))
    assert isinstance(compare(one, other), Whole)


def test_arguments_nested_beyond_reason_are_told_apart_by_ids_alone() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    message = said("", "", call("t1.0", x=deep))
    assert isinstance(compare(message, message), Whole)
    assert compare(said("", "", call("", x=deep)), message) is None


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<think>\na\n</think>\n\nb", "b", "a"),
        ("\n<think>a</think>b</think>", "b</think>", "a"),
        ("<think>a", "<think>a", None),
        ("b <think>a</think>", "b <think>a</think>", None),
    ],
)
def test_a_thought_is_taken_out_of_the_text_only_from_its_start(
    text: str, content: str, reasoning: str | None
) -> None:
    found = with_own_reasoning(said(text))
    assert (found["content"], found.get("reasoning_content")) == (content, reasoning)


def test_a_message_that_has_a_thought_keeps_its_text() -> None:
    message = said("<think>a</think>b", "c")
    assert with_own_reasoning(message) is message
