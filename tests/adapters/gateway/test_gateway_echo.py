"""Echo torture over HTTP: what clients make of an answer does not part it from its tokens.

Each row is an answer as the engine samples it, and what one client or another makes of it before
it sends it back. Beside it stands how many of the turn's tokens a gateway would lose that renders
the returned form anew with the stock template.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.agents import Message, says, user
from tests.adapters.gateway.prompts.prompt_setting import stock
from tests.adapters.gateway.world import World, play

BASH: Message = {"type": "function", "function": {"name": "bash", "parameters": {}}}
EDIT: Message = {"type": "function", "function": {"name": "Edit", "parameters": {}}}
THOUGHT = "I should measure it."
Change = Callable[[Message], None]


@dataclass(frozen=True)
class Echo:
    sampled: str
    change: Change
    lost: int
    """By rendering anew."""


def thinking(body: str) -> str:
    return f"<think>\n{THOUGHT}\n</think>\n\n{body}"


def calling(*arguments: str, name: str = "bash") -> str:
    made = [f'{{"name": "{name}", "arguments": {text}}}' for text in arguments]
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in made)


def arguments(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Every call's arguments changed and written again."""

    def changed(answer: Message) -> None:
        for call in answer["tool_calls"]:
            value = json.loads(call["function"]["arguments"])
            made = change(value)
            call["function"]["arguments"] = json.dumps(value if made is None else made)

    return changed


def fields(**new: Any) -> Change:
    """Fields of the message replaced; None: dropped."""

    def changed(answer: Message) -> None:
        answer.update(new)
        for name in [name for name, value in new.items() if value is None]:
            answer.pop(name)

    return changed


def renamed(answer: Message) -> None:
    answer["tool_calls"][0]["function"] = {
        "name": "invalid",
        "arguments": '{"tool": "bash", "error": "no such tool"}',
    }


def own_ids(answer: Message) -> None:
    for number, call in enumerate(answer["tool_calls"]):
        call["id"] = f"own-{number}"


def pasted(answer: Message) -> None:
    thought = answer.pop("reasoning_content")
    answer["content"] = f"<think>\n{thought}\n</think>\n\n{answer['content']}"


def in_parts(answer: Message) -> None:
    answer["content"] = [{"type": "text", "text": answer["content"]}]


def more_fields(answer: Message) -> None:
    answer |= {"provider_specific_fields": {"a": 1}, "annotations": [], "refusal": None}


BASH_CALL = thinking(calling('{"description": "Size", "timeout": 5000.0, "command": "du -sh ."}'))
EDIT_CALL = thinking(
    calling('{"file_path": "a", "old_string": "x", "new_string": "y  \\n"}', name="Edit")
)
TEXT = thinking("It is 148M.")
ECHOES = {
    "verbatim": Echo(BASH_CALL, lambda _: None, 0),
    "keys in another order, 5000": Echo(
        BASH_CALL,
        arguments(
            lambda a: {"command": a["command"], "timeout": 5000, "description": a["description"]}
        ),
        27,
    ),
    "a default added, first": Echo(EDIT_CALL, arguments(lambda a: {"replace_all": False, **a}), 25),
    "blanks at line ends stripped": Echo(
        EDIT_CALL, arguments(lambda a: {**a, "new_string": "y\n"}), 6
    ),
    "a text made a boolean": Echo(
        thinking(calling('{"replace_all": "true"}', name="Edit")),
        arguments(lambda _: {"replace_all": True}),
        5,
    ),
    "spelled anew, an escape resolved": Echo(
        thinking(calling('{"command":"du caf\\u00e9"}')), arguments(lambda _: None), 11
    ),
    "repaired": Echo(BASH_CALL, arguments(lambda a: {"command": a["command"]}), 27),
    "emptied": Echo(BASH_CALL, arguments(lambda _: {}), 28),
    "wrapped": Echo(
        BASH_CALL, arguments(lambda _: {"__unparsedToolInput": {"raw": "{", "len": 1}}), 27
    ),
    "the tool renamed": Echo(BASH_CALL, renamed, 33),
    "ids of the client's own": Echo(BASH_CALL, own_ids, 0),
    "reasoning dropped beside a call": Echo(BASH_CALL, fields(reasoning_content=None), 48),
    "a blank text dropped": Echo(
        thinking(f"\n \n{calling('{}')}"), fields(content=None, reasoning_content=THOUGHT), 17
    ),
    "reasoning trimmed": Echo(
        f"<think>\n  {THOUGHT}  \n</think>\n\nIt is 148M.", fields(reasoning_content=THOUGHT), 20
    ),
    "reasoning dropped beside text": Echo(TEXT, fields(reasoning_content=None), 18),
    "reasoning pasted into the text": Echo(TEXT, pasted, 18),
    "the last newline stripped": Echo("Done.\n", fields(content="Done."), 2),
    "text as a list of parts": Echo(TEXT, in_parts, 18),
    "more fields": Echo(TEXT, more_fields, 18),
    "two calls, both reordered": Echo(
        thinking(calling('{"a": 1, "b": 2}', '{"c": 3, "d": 4}')),
        arguments(lambda a: dict(reversed(a.items()))),
        38,
    ),
    "text beside a call rewritten": Echo(
        thinking(f"Let me look.\n{calling('{}')}"), fields(content="Looking..."), 19
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_an_answer_that_comes_back_changed_still_trains_whole(
    tmp_path: Path, echo: Echo, stream: bool
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        agent.tools, agent.stream = [BASH, EDIT], stream
        answer = await agent.ask(user("How big is it?"))
        before = copy.deepcopy(answer)
        echo.change(answer)
        if "tool_calls" in answer:
            await agent.run_tools(answer)
        else:
            await agent.ask(user("And the tests?"))
        outcome = await world.ends_whole(agent)
        assert outcome.attached == ["root", "extend"]
        assert len(outcome.samples) == 1
        first, second = outcome.turns.values()
        whole = outcome.prompts[first.turn_id] + first.output_ids.tolist()
        assert outcome.prompts[second.turn_id][: len(whole)] == whole
        assert _lost(whole, agent.messages[:-1], agent.tools) == echo.lost, before

    script = [Rule(text=echo.sampled), says("Thanks.")]
    play(tmp_path, story, script)


def _lost(whole: list[int], messages: list[Message], tools: list[Message]) -> int:
    """How many of a turn's tokens are not in the next prompt as the stock template writes it."""
    plain = copy.deepcopy(messages)
    for message in plain:
        message["content"] = message.get("content") or ""
        if isinstance(message.get("content"), list):
            message["content"] = message["content"][0]["text"]
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    anew = stock().render(plain, tools)
    pairs = enumerate(zip(whole, anew, strict=False))
    shared = next((n for n, (old, new) in pairs if old != new), min(len(whole), len(anew)))
    return len(whole) - shared
