"""Echo torture in Responses: what clients make of the items of an answer, and of their own.

The rows are what Codex, opencode, pi, langchain, openai-agents and pydantic-ai do.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from streams.adapters.dialects import openai_responses
from tests.adapters.gateway.agents import Message
from tests.adapters.gateway.agents_echoes import (
    BASH,
    BASH_CALL,
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
from tests.adapters.gateway.agents_kinds import Talker
from tests.adapters.gateway.agents_scenes import Failures, assert_held, played_together

ASKED = {"type": "message", "role": "user"}
SPAWN: Message = {"type": "function", "name": "spawn", "parameters": {"type": "object"}}
AGENTS: Message = {
    "type": "namespace",
    "name": "agents",
    "description": "Others.",
    "tools": [SPAWN],
}
PATCH: Message = {"type": "custom", "name": "patch", "description": "Change files."}


def nothing(_: Talker) -> None:
    return None


def items(change: Callable[[list[Message]], Any]) -> Change:
    """The items of the answer changed, or replaced."""

    def changed(talker: Talker) -> None:
        made = change(talker.history[-1])
        talker.history[-1] = talker.history[-1] if made is None else made

    return changed


def without(*names: str) -> Change:
    """Fields dropped from every item."""
    return items(
        lambda given: [{n: v for n, v in item.items() if n not in names} for item in given]
    )


def no_reasoning(given: list[Message]) -> list[Message]:
    return [item for item in given if item["type"] != "reasoning"]


def bare(given: list[Message]) -> list[Message]:
    """Neither reasoning nor ids."""
    return [{n: v for n, v in item.items() if n != "id"} for item in no_reasoning(given)]


def arguments(change: Callable[[Message], Message]) -> Change:
    """Every call's arguments changed and written again."""

    def changed(given: list[Message]) -> None:
        for item in given:
            if item["type"] == "function_call":
                item["arguments"] = json.dumps(change(json.loads(item["arguments"])))

    return items(changed)


def pasted(*, ids: bool) -> Change:
    """As pydantic-ai: the thought in think tags, an item of text before the text."""

    def changed(given: list[Message]) -> list[Message]:
        kept = given if ids else bare(given)
        thought = {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>"}
        return [thought, *no_reasoning(kept)]

    return items(changed)


def pasted_into_text(given: list[Message]) -> list[Message]:
    """The thought at the head of the text itself."""
    text = given[-1]["content"][0]["text"]
    return [{"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n{text}"}]


def summarised(given: list[Message]) -> None:
    given[0]["summary"] = [{"type": "summary_text", "text": THOUGHT}]
    given[0]["content"] = None
    del given[0]["id"]


def sealed(given: list[Message]) -> None:
    """Only what is encrypted is left of the thought."""
    given[0] = {
        "type": "reasoning",
        "summary": [],
        "encrypted_content": given[0]["encrypted_content"],
    }
    del given[1]["id"]


def as_text(given: list[Message]) -> list[Message]:
    return [{"role": "assistant", "content": given[-1]["content"][0]["text"]}]


def decorated(given: list[Message]) -> None:
    for item in given:
        item |= {"status": None, "phase": "commentary"}
        for part in item.get("content") or ():
            part |= {"annotations": [{"type": "x"}], "logprobs": None}


def own_ids(given: list[Message]) -> None:
    for number, item in enumerate(given):
        item["id"] = f"mine_{number}"


def question(**fields: Any) -> Change:
    """The question in another spelling."""

    def changed(talker: Talker) -> None:
        talker.history[0] = [{**ASKED, "content": QUESTION, **fields}]

    return changed


ECHOES = {
    "Codex: verbatim": Echo(BASH_CALL, nothing, 0),
    "Codex: text verbatim": Echo(TEXT, nothing, 18),
    "Codex: fresh ids, a part for a text": Echo(
        TEXT, question(id="msg_2", content=[{"type": "input_text", "text": QUESTION}]), 18
    ),
    "Codex: content null": Echo(BASH_CALL, items(lambda given: given[0].update(content=None)), 48),
    "Codex: an unknown tool and argument": Echo(
        thinking(calling('{"what": [1, null]}', name="nope")), nothing, 0
    ),
    "Codex: odd spacing kept": Echo(
        thinking(calling('{"command":   "du caf\\u00e9"}')), nothing, 12
    ),
    "Codex: a call in a namespace": Echo(
        thinking(calling("{}", name="agents__spawn")), nothing, 0, tools=(BASH, AGENTS)
    ),
    "Codex: a free-form tool": Echo(
        thinking(calling('{"input": "*** Begin\\n+x"}', name="patch")), nothing, 0, (BASH, PATCH)
    ),
    "Codex: cut by length, gone on after": Echo(TEXT, nothing, 9, rule={"length": 9}),
    "Codex: results in the other order": Echo(TWO_CALLS, nothing, 0, backwards=True),
    "opencode: all item ids dropped": Echo(BASH_CALL, without("id"), 0),
    "opencode: all item ids dropped, text": Echo(TEXT, without("id"), 18),
    "opencode: reserialised": Echo(
        thinking(calling('{"command":"du caf\\u00e9"}')), arguments(dict), 11
    ),
    "only what is encrypted left of the thought": Echo(TEXT, items(sealed), 18),
    "only what is encrypted left, a call": Echo(BASH_CALL, items(sealed), 48),
    "a summary for the thought": Echo(TEXT, items(summarised), 18),
    "openai-agents: nothing encrypted": Echo(TEXT, without("encrypted_content"), 18),
    "neither ids nor anything encrypted": Echo(TEXT, without("id", "encrypted_content"), 18),
    "neither of them, a call": Echo(BASH_CALL, without("id", "encrypted_content"), 0),
    "the thought dropped, ids kept": Echo(TEXT, items(no_reasoning), 18),
    "the thought dropped, a call": Echo(BASH_CALL, items(no_reasoning), 48),
    "the thought and all ids dropped": Echo(TEXT, items(bare), 18),
    "the thought and all ids dropped, a call": Echo(BASH_CALL, items(bare), 48),
    "pydantic-ai: the thought before the text, in tags": Echo(TEXT, pasted(ids=False), 18),
    "pydantic-ai: the thought before the text, ids kept": Echo(TEXT, pasted(ids=True), 18),
    "pydantic-ai: the thought before a call, in tags": Echo(BASH_CALL, pasted(ids=False), 0),
    "pydantic-ai: the thought in the text": Echo(TEXT, items(pasted_into_text), 18),
    "an answer as one text": Echo(TEXT, items(as_text), 18),
    "more fields": Echo(TEXT, items(decorated), 18),
    "ids of the client's own": Echo(TEXT, items(own_ids), 18),
    "keys in another order, 5000": Echo(
        BASH_CALL,
        arguments(lambda a: {"command": a["command"], "timeout": 5000, "description": "Size"}),
        27,
    ),
    "a default added, first": Echo(EDIT_CALL, arguments(lambda a: {"replace_all": False, **a}), 25),
    "two calls, both reordered": Echo(
        TWO_CALLS, arguments(lambda a: dict(reversed(a.items()))), 38
    ),
}
SCENES = scenes("responses", ECHOES, openai_responses.read_call)


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return played_together(tmp_path_factory.mktemp("echoes"), SCENES)


@pytest.mark.parametrize("name", SCENES)
def test_an_answer_that_comes_back_changed_still_trains_whole(
    name: str, failures: Failures
) -> None:
    assert_held(failures, name)
