"""Echo torture in Messages: what clients make of the blocks of an answer, and of their own.

The rows are what Claude Code, pi, opencode, Qwen Code, langchain, litellm and pydantic-ai do.
"""

from collections.abc import Callable
from typing import Any

import pytest

from streams.adapters.dialects import anthropic
from tests.adapters.gateway.agents import Message
from tests.adapters.gateway.agents_echoes import (
    BASH_CALL,
    EDIT,
    EDIT_CALL,
    QUESTION,
    TEXT,
    THOUGHT,
    TWO_CALLS,
    Change,
    Echo,
    calling,
    scenes,
    thinking,
)
from tests.adapters.gateway.agents_kinds import Talker, messages_tool
from tests.adapters.gateway.agents_scenes import Failures, assert_held, played_together

CACHED = {"cache_control": {"type": "ephemeral"}}


def nothing(_: Talker) -> None:
    return None


def blocks(change: Callable[[list[Message]], Any]) -> Change:
    """The blocks of the answer changed, or replaced."""

    def changed(talker: Talker) -> None:
        (message,) = talker.history[-1]
        made = change(message["content"])
        message["content"] = message["content"] if made is None else made

    return changed


def inputs(change: Callable[[Message], Message]) -> Change:
    """Every call's input replaced."""

    def changed(content: list[Message]) -> None:
        for block in content:
            if block["type"] == "tool_use":
                block["input"] = change(block["input"])

    return blocks(changed)


def without(kind: str) -> Change:
    return blocks(lambda content: [block for block in content if block["type"] != kind])


def thought(**fields: Any) -> Change:
    """The thinking block with other fields; None: dropped."""

    def changed(content: list[Message]) -> None:
        content[0].update(fields)
        for name in [name for name, value in fields.items() if value is None]:
            del content[0][name]

    return blocks(changed)


def redacted(content: list[Message]) -> None:
    content[0] = {"type": "redacted_thinking", "data": content[0]["signature"]}


def own_ids(content: list[Message]) -> None:
    content[-1]["id"] = "toolu_own"


def split(content: list[Message]) -> list[Message]:
    *before, last = content
    half = len(last["text"]) // 2
    texts = [last["text"][:half], last["text"][half:]]
    return [*before, *({"type": "text", "text": text} for text in texts)]


def asked(content: Any) -> Change:
    """The question in another form."""

    def changed(talker: Talker) -> None:
        talker.history[0] = [{"role": "user", "content": content}]

    return changed


def marked(talker: Talker) -> None:
    """The mark on the last tool and at the head; the question has it too."""
    talker.head = [{"type": "text", "text": "You are terse.", **CACHED}]
    talker.tools[-1] = {**messages_tool(EDIT), **CACHED}


def mark_moved(talker: Talker) -> None:
    """The mark is now on the answer, and nowhere else."""
    talker.head, talker.tools[-1] = "You are terse.", EDIT
    asked(QUESTION)(talker)
    talker.history[-1][0]["content"][-1].update(CACHED)


def billed(number: int) -> Change:
    """The client's first line holds a number made of its question."""

    def changed(talker: Talker) -> None:
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={number};"
        talker.head = [{"type": "text", "text": text} for text in (line, "You are terse.")]

    return changed


BLOCK = {"type": "text", "text": QUESTION}
SCHEMA_ORDER = ("command", "timeout", "description")
ECHOES = {
    "Claude Code: verbatim": Echo(BASH_CALL, nothing, 0),
    "Claude Code: text verbatim": Echo(TEXT, nothing, 18),
    "Claude Code: keys in the order of the schema, 5000": Echo(
        BASH_CALL,
        inputs(lambda given: {**{name: given[name] for name in SCHEMA_ORDER}, "timeout": 5000}),
        27,
    ),
    "Claude Code: a default added, first": Echo(
        EDIT_CALL, inputs(lambda given: {"replace_all": False, **given}), 25
    ),
    "Claude Code: blanks at line ends stripped": Echo(
        EDIT_CALL, inputs(lambda given: {**given, "new_string": "y\n"}), 6
    ),
    "Claude Code: a text made a boolean": Echo(
        thinking(calling('{"replace_all": "true"}', name="Edit")),
        inputs(lambda _: {"replace_all": True}),
        5,
    ),
    "Claude Code: wrapped, as what is no JSON": Echo(
        BASH_CALL, inputs(lambda _: {"__unparsedToolInput": {"raw": '{"a', "len": 3}}), 27
    ),
    "Claude Code, pi: a text of blanks dropped": Echo(
        thinking(f"\n \n{calling('{}')}"), without("text"), 17
    ),
    "Claude Code: blanks around a text kept": Echo("  It is 148M.  \n", nothing, 11),
    "Claude Code: an unknown tool and argument": Echo(
        thinking(calling('{"what": [1, null]}', name="nope")), nothing, 0
    ),
    "Claude Code: results in the order of completion": Echo(TWO_CALLS, nothing, 0, backwards=True),
    "Claude Code: cut by length, gone on after": Echo(TEXT, nothing, 9, rule={"length": 9}),
    "Claude Code: thinking sealed": Echo(TEXT, blocks(redacted), 18),
    "Claude Code: thinking sealed, a call": Echo(BASH_CALL, blocks(redacted), 48),
    "Claude Code: thinking with its signature only": Echo(TEXT, thought(thinking=""), 18),
    "Claude Code: the question a block, then a text": Echo(
        TEXT, asked(QUESTION), 18, question={"role": "user", "content": [BLOCK]}
    ),
    "Claude Code: the question a text, then a block": Echo(TEXT, asked([BLOCK]), 18),
    "Claude Code: the cache mark moves": Echo(
        TEXT,
        mark_moved,
        18,
        question={"role": "user", "content": [{**BLOCK, **CACHED}]},
        first=marked,
    ),
    "Claude Code: another billing line": Echo(TEXT, billed(123), 18, first=billed(456)),
    "pi: the thinking dropped": Echo(TEXT, without("thinking"), 18),
    "pi: the thinking dropped, a call": Echo(BASH_CALL, without("thinking"), 48),
    "Qwen Code: the thinking trimmed": Echo(
        f"<think>\n  {THOUGHT}  \n</think>\n\nIt is 148M.", thought(thinking=THOUGHT), 20
    ),
    "Qwen Code: the thinking trimmed, unsigned": Echo(
        f"<think>\n  {THOUGHT}  \n</think>\n\nIt is 148M.",
        thought(thinking=THOUGHT, signature=None),
        20,
    ),
    "pi: repaired": Echo(BASH_CALL, inputs(lambda given: {"command": given["command"]}), 27),
    "cline: emptied": Echo(BASH_CALL, inputs(lambda _: {}), 28),
    "an answer as one text": Echo(TEXT, blocks(lambda content: content[-1]["text"]), 18),
    "a text in two blocks": Echo(TEXT, blocks(split), 18),
    "ids of the client's own": Echo(BASH_CALL, blocks(own_ids), 0),
    "two calls, both reordered": Echo(
        TWO_CALLS, inputs(lambda given: dict(reversed(given.items()))), 38
    ),
}
SCENES = scenes("messages", ECHOES, anthropic.read_call)


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return played_together(tmp_path_factory.mktemp("echoes"), SCENES)


@pytest.mark.parametrize("name", SCENES)
def test_an_answer_that_comes_back_changed_still_trains_whole(
    name: str, failures: Failures
) -> None:
    assert_held(failures, name)
