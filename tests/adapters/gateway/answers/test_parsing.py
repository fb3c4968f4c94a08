"""Each shape of an answer, sampled with the real Qwen3 vocabulary, token by token."""

import json
from dataclasses import dataclass

import pytest

from streams.adapters.dialects.calls import Call, Message, ToolCall
from streams.adapters.engines.interface import Finish
from tests.adapters.gateway.answers.drawn import (
    CALL,
    HEADER,
    THINKING_HEADER,
    USER,
    Setting,
    call,
    encode,
    heard,
    one_by_one,
    reader_view,
    spelled,
)

LS = 'calls bash {"command": "ls"}'
END = "<|im_end|>"


@dataclass(frozen=True, kw_only=True)
class Case:
    sampled: list[int]
    drawing: str
    ill_formed: bool = False
    finish: Finish = "stop"
    reason: str = "stop"
    prompt: str = HEADER
    stop: tuple[str, ...] = ()

    @property
    def setting(self) -> Setting:
        return Setting(asked=call(stop=self.stop), prompt=self.prompt, finish=self.finish)


def case(sampled: str | list[int], drawing: str, **more: object) -> Case:
    ids = encode(sampled) if isinstance(sampled, str) else sampled
    return Case(sampled=ids, drawing=drawing, **more)  # type: ignore[arg-type]


BAD = '<tool_call>\n{"name": "bash", "arguments": {"command": }}\n</tool_call>'

CASES = {
    "text": case(f"It is big.{END}", 'says "It is big."'),
    "nothing": case(END, ""),
    "nothing, not even an end": case([], ""),
    "a thought, then text": case(
        f"<think>\nhm.\n</think>\n\nIt is big.{END}", 'thinks "hm." says "It is big."'
    ),
    "an empty thought is none": case(f"<think>\n\n</think>\n\nYes.{END}", 'says "Yes."'),
    "a thought cut off": case("<think>\nhm, I", 'thinks "hm, I"', finish="length", reason="length"),
    "a thought that the prompt opened": case(
        f"hm.\n</think>\n\nYes.{END}", 'thinks "hm." says "Yes."', prompt=THINKING_HEADER
    ),
    "a thought that the prompt opened and closed": case(
        f"Yes.{END}", 'says "Yes."', prompt=f"{THINKING_HEADER}\n</think>\n\n"
    ),
    "an older message's thought is closed": case(
        f"Yes.{END}", 'says "Yes."', prompt=f"<think>a{END}\n{HEADER}"
    ),
    "a call": case(f"{CALL}{END}", LS, reason="tool_calls"),
    "text, then a call": case(
        f"Let me look.\n{CALL}{END}", f'says "Let me look." {LS}', reason="tool_calls"
    ),
    "two calls": case(f"{CALL}\n{CALL}{END}", f"{LS} {LS}", reason="tool_calls"),
    "text after a call": case(
        f"One.\n{CALL}\nTwo.{END}", f'says "One." {LS} says "\n\nTwo."', reason="tool_calls"
    ),
    "a call that is cut behind its end": case(
        f"{CALL}\nTw", f'{LS} says "Tw"', finish="length", reason="tool_calls"
    ),
    "a call in a turn that an update interrupts": case(CALL, LS, finish="abort", reason="abort"),
    "a call with compact JSON, arguments first": case(
        f'<tool_call>{{"arguments":{{"a":1e3,"b":"caf\\u00e9"}},"name":"bash"}}</tool_call>{END}',
        'calls bash {"a":1e3,"b":"caf\\u00e9"}',
        reason="tool_calls",
    ),
    "a call without arguments": case(
        f'<tool_call>{{"name": "bash"}}</tool_call>{END}', "calls bash {}", reason="tool_calls"
    ),
    "a call whose arguments are null": case(
        f'<tool_call>{{"name": "bash", "arguments": null}}</tool_call>{END}',
        "calls bash {}",
        reason="tool_calls",
    ),
    "a call of a tool that does not exist": case(
        f'<tool_call>{{"name": "zsh", "arguments": {{}}}}</tool_call>{END}',
        "calls zsh {}",
        reason="tool_calls",
    ),
    "bad JSON": case(f"Look: {BAD}{END}", f'says "Look: {BAD}"', ill_formed=True),
    "bad JSON between two calls": case(
        f"{CALL}\n{BAD}\n{CALL}{END}",
        f'{LS} says "{BAD}" {LS}',
        ill_formed=True,
        reason="tool_calls",
    ),
    "a call cut by length": case(
        '<tool_call>\n{"name": "bash", "argu',
        'says "<tool_call>\n{"name": "bash", "argu"',
        ill_formed=True,
        finish="length",
        reason="length",
    ),
    "a call that ends before it closes": case(
        f'<tool_call>{{"name": "bash"}}{END}', 'says "<tool_call>{"name": "bash"}"', ill_formed=True
    ),
    "a call within a call": case(
        f'<tool_call><tool_call>{{"name": "bash"}}</tool_call>{END}',
        'says "<tool_call><tool_call>{"name": "bash"}</tool_call>"',
        ill_formed=True,
    ),
    "a close without a call": case(f"a</tool_call>b{END}", 'says "a</tool_call>b"'),
    "a call in an open thought ends it": case(
        f"<think>\nhm {CALL}{END}", f'thinks "hm" {LS}', reason="tool_calls"
    ),
    "a call in an open thought, then text": case(
        f"<think>\nhm {CALL} so{END}", f'thinks "hm" {LS} says "so"', reason="tool_calls"
    ),
    "a call in a thought that closes is a draft": case(
        f"<think>\nhm {CALL} no.\n</think>\n\nNo.{END}", f'thinks "hm {CALL} no." says "No."'
    ),
    "a call opened in a thought and never closed": case(
        "<think>hm<tool_call>{", 'thinks "hm" says "<tool_call>{"', ill_formed=True
    ),
    "thinking again is text": case(
        f"<think>a</think>b<think>c</think>d{END}", 'thinks "a" says "b<think>c</think>d"'
    ),
    "thinking after text is text": case(f"b<think>c</think>{END}", 'says "b<think>c</think>"'),
    "a thought within a thought": case(f"<think>a<think>b</think>c{END}", 'thinks "ab" says "c"'),
    "blanks before a thought": case(f"\n \n<think>a</think>c{END}", 'thinks "a" says "c"'),
    "half a character before a thought is text": case(
        [123918, *encode("<think>a</think>")], 'says "\ufffd<think>a</think>"'
    ),
    "a call spelled with ordinary tokens": case(spelled(CALL), f'says "{CALL}"'),
    "a thought's end spelled with ordinary tokens": case(
        [*encode("<think>a"), *spelled("</think>b"), *encode("</think>c")],
        'thinks "a</think>b" says "c"',
    ),
    "an end spelled with ordinary tokens": case(
        [*encode("a"), *spelled(END), *encode(f"b{END}")], f'says "a{END}b"'
    ),
    "what stands behind the end": case(f"a{END}\n{HEADER}b{CALL}", 'says "a"'),
    "the other end token": case("a<|endoftext|>b", 'says "a"'),
    "other control tokens": case(f"a<|box_start|>b{END}", 'says "a<|box_start|>b"'),
    "an id without a token": case([*encode("a"), 151_900, *encode("b")], 'says "ab"'),
    "a character in three tokens": case(f"a🤝🏿b{END}", 'says "a🤝🏿b"'),
    "half a character at the end": case(
        [*encode("a"), 123918], 'says "a\ufffd"', finish="length", reason="length"
    ),
    "a stop string": case("One. STOP", 'says "One."', stop=("STOP",)),
    "a stop string in the middle of tokens": case("alphabetical", 'says "alp"', stop=("hab",)),
    "a stop string of many tokens": case(spelled("One. STOP"), 'says "One."', stop=("STOP",)),
    "a stop string that begins twice": case(spelled("One. SSTOP"), 'says "One. S"', stop=("STOP",)),
    "half a stop string": case(f"One. STO{END}", 'says "One. STO"', stop=("STOP",)),
    "half a stop string before a call": case(
        f"One. STO{CALL}{END}", f'says "One. STO" {LS}', stop=("STOP",), reason="tool_calls"
    ),
    "a stop string made of blanks": case("One.\n\nTwo", 'says "One."', stop=("\n\n",)),
    "a stop string in a thought": case("<think>a. STOP", 'thinks "a."', stop=("STOP",)),
    "a stop string that an engine overran": case(
        f"One. STOP and {CALL}{END}", 'says "One."', stop=("STOP",)
    ),
    "a stop string in the arguments of a call that closed": case(
        f"{CALL}{END}", LS, stop=("ls",), reason="tool_calls"
    ),
    "a stop string that cuts a call": case(
        'a <tool_call>{"name": "STOP',
        'says "a <tool_call>{"name": ""',
        ill_formed=True,
        stop=("STOP",),
    ),
    "a stop string that is a marker": case("a <tool_call>", 'says "a"', stop=("<tool_call>",)),
    "the stop string that is complete first": case("xabcx", 'says "xa"', stop=("abcx", "b")),
    "the longer of two that are complete at once": case("xabx", 'says "x"', stop=("b", "ab")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_answer_is_given_as(case: Case) -> None:
    answer = one_by_one(case.sampled, case.setting)
    assert answer.drawing == case.drawing
    assert answer.parsed.ill_formed == case.ill_formed
    assert answer.parsed.finish_reason == case.reason
    assert not answer.parsed.disagreed


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_is_the_same_in_one_go(case: Case) -> None:
    answer = heard(case.sampled, case.setting)
    assert answer.drawing == case.drawing


WITHOUT_TOOLS = {
    "none offered": call(tools=()),
    "none allowed": call(tool_choice="none"),
}


@pytest.mark.parametrize("asked", WITHOUT_TOOLS.values(), ids=WITHOUT_TOOLS)
def test_a_call_to_a_client_without_tools_is_text(asked: Call) -> None:
    answer = one_by_one(encode(f"a {CALL}{END}"), Setting(asked=asked))
    assert answer.drawing == f'says "a {CALL}"'
    assert not answer.parsed.ill_formed
    assert answer.parsed.finish_reason == "stop"


ARGUMENTS_NO_CLIENT_CAN_RUN = {
    "a list": "[1]",
    "a text": '"ls"',
    "a number": "1",
    "NaN": '{"a": NaN}',
    "infinity by size": '{"a": 1e999}',
    "half a surrogate": '{"a": "\\ud800"}',
    "a control character": '{"a": "\x01"}',
    "a hundred brackets": '{"a": ' + "[" * 101 + "]" * 101 + "}",
    "brackets that exhaust a parser": '{"a": ' + "[" * 3000 + "]" * 3000 + "}",
    "a second value": "{} {}",
}


@pytest.mark.parametrize(
    "arguments", ARGUMENTS_NO_CLIENT_CAN_RUN.values(), ids=ARGUMENTS_NO_CLIENT_CAN_RUN
)
def test_arguments_that_no_client_can_run_make_the_call_text(arguments: str) -> None:
    text = f'<tool_call>{{"name": "bash", "arguments": {arguments}}}</tool_call>'
    answer = heard(encode(f"{text}{END}"))
    assert answer.drawing == f'says "{text}"'
    assert answer.parsed.ill_formed


NO_NAMES = ["5", "null", '""', '["bash"]']


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_call_of_nothing_is_text(name: str) -> None:
    text = f'<tool_call>{{"name": {name}, "arguments": {{}}}}</tool_call>'
    assert heard(encode(text)).drawing == f'says "{text}"'


def test_a_call_is_given_the_moment_it_closes() -> None:
    ids = encode(f"{CALL}\nmore{END}")
    closes = ids.index(encode("</tool_call>")[0])
    before = heard(ids[:closes], cuts=range(1, closes))
    after = heard(ids, cuts=[closes, closes + 1])
    assert before.given == []
    assert after.given[0] == ToolCall(0, "call_0", "bash", '{"command": "ls"}')


def test_text_is_given_as_soon_as_nothing_can_take_it_back() -> None:
    ids = encode("One two three")
    answer = one_by_one(ids)
    assert len(answer.given) == len(ids)
    assert answer.parsed.pieces == ()


def test_the_message_holds_what_was_given_with_arguments_as_values() -> None:
    answer = heard(encode(f"<think>\nhm.\n</think>\n\nLook.\n{CALL}{END}"))
    assert answer.parsed.response_message == {
        "role": "assistant",
        "content": "Look.",
        "reasoning_content": "hm.",
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "bash", "arguments": {"command": "ls"}},
            }
        ],
    }


def test_the_message_of_an_empty_answer_is_empty() -> None:
    assert heard(encode(END)).parsed.response_message == {"role": "assistant", "content": ""}


def test_big_numbers_and_late_duplicates_stay_as_json_has_them() -> None:
    arguments = '{"n": 12345678901234567890123, "a": 1, "a": 2}'
    text = f'<tool_call>{{"name": "bash", "arguments": {arguments}}}</tool_call>'
    parsed = heard(encode(text)).parsed
    assert parsed.tool_calls[0].arguments == arguments
    (made,) = parsed.response_message["tool_calls"]
    assert made["function"]["arguments"] == json.loads(arguments)


def test_tokens_of_thinking_are_counted_with_their_markers() -> None:
    thought = encode("<think>\nhm, I should look.\n</think>")
    assert heard([*thought, *encode("\n\nYes.")]).parsed.reasoning_tokens == len(thought)
    draft = encode(f"<think>\nhm {CALL} no.\n</think>")
    assert heard([*draft, *encode("No.")]).parsed.reasoning_tokens == len(draft)
    assert heard(encode("Yes.")).parsed.reasoning_tokens == 0


def test_an_answer_that_goes_on_from_the_clients_words_keeps_its_first_blank() -> None:
    begun: Message = {"role": "assistant", "content": "The answer is"}
    asked = call(messages=(USER, begun))
    answer = one_by_one(encode(" 42.\n"), Setting(asked=asked, prompt=f"{HEADER}The answer is"))
    assert answer.drawing == 'says " 42."'


def test_an_answer_that_goes_on_from_the_clients_thought_still_trims_its_text() -> None:
    begun: Message = {"role": "assistant", "content": "<think>\nI"}
    asked = call(messages=(USER, begun))
    answer = one_by_one(
        encode(" see.\n</think>\n\nYes."), Setting(asked=asked, prompt=f"{THINKING_HEADER}I")
    )
    assert answer.drawing == 'thinks "see." says "Yes."'


def test_what_was_given_stands_when_the_reader_sees_it_otherwise() -> None:
    # The reader skips a header at the start of an answer, which only the whole answer shows to
    # be followed by thinking; by then the call was given.
    ids = encode(f"{HEADER}<think>draft {CALL}</think>done{END}")
    answer = one_by_one(ids)
    assert reader_view(ids).tool_calls == []
    assert LS in answer.drawing
    assert answer.parsed.disagreed
