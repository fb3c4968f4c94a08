"""Without a script an agent still goes round once: a call it can run, then a text."""

import asyncio
from typing import Any

import numpy as np

from streams.adapters.dialects.calls import Call, Message, Tool
from streams.adapters.engines.interface import Generation, Sampling
from streams.adapters.engines.scripted import DEMO, ScriptedEngine
from streams.adapters.gateway.answers.parsing import AnswerParser, Parsed
from tests.adapters.engines.calls import heard
from tests.adapters.gateway.answers import drawn as answers
from tests.drift.next_prompts import BASH, READ

QUESTION: Message = {"role": "user", "content": "How big is the repo?"}
NESTED: Tool = {
    "type": "function",
    "function": {
        "name": "shell",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "array", "items": {"type": "string"}},
                "mode": {"type": "string", "enum": ["fast", "slow"]},
                "limits": {"type": "object", "properties": {"n": {"type": "integer"}}},
                "strict": {"type": "boolean"},
                "free": {},
                "unasked": {"type": "string"},
            },
            "required": ["command", "mode", "limits", "strict", "free"],
        },
    },
}


def said(messages: list[Message], tools: tuple[Tool, ...], *, thinking: bool = True) -> Parsed:
    """The demo's answer through the real template and our own parser."""
    prompt = answers.loaded().render(messages, list(tools), thinking=thinking)
    engine = ScriptedEngine(DEMO, answers.backend())
    generation = Generation(
        request_id="r", routing_key="s", input_ids=np.asarray(prompt, np.int32), sampling=Sampling()
    )
    came = asyncio.run(heard(engine, generation))
    parser = AnswerParser(
        answers.grammar(),
        Call(model="m", messages=tuple(messages), tools=tools),
        mint=lambda index: f"call_{index}",
        prompt_tail_ids=prompt[-64:],
    )
    parser.feed(came.ids)
    return parser.finish("stop")


def test_a_question_with_tools_gets_a_call_of_the_first() -> None:
    parsed = said([QUESTION], (dict(BASH), dict(READ)))
    assert [(c.name, c.arguments) for c in parsed.tool_calls] == [
        ("bash", '{"command": "echo hello"}')
    ]
    assert parsed.reasoning
    assert parsed.finish_reason == "tool_calls"


def test_a_tools_result_gets_a_text() -> None:
    first = said([QUESTION], (dict(BASH),)).response_message
    result: Message = {"role": "tool", "content": "148M\t."}
    parsed = said([QUESTION, first, result], (dict(BASH),))
    assert parsed.tool_calls == ()
    assert "148M" in parsed.text


def test_a_question_without_tools_gets_a_text() -> None:
    parsed = said([QUESTION], ())
    assert "scripted engine" in parsed.text
    assert parsed.tool_calls == ()


def test_where_thinking_is_off_it_does_not_think() -> None:
    parsed = said([QUESTION], (dict(BASH),), thinking=False)
    assert parsed.reasoning == ""
    assert len(parsed.tool_calls) == 1


def test_arguments_are_what_the_schema_asks_for() -> None:
    (made,) = said([QUESTION], (NESTED,)).response_message["tool_calls"]
    arguments: dict[str, Any] = made["function"]["arguments"]
    assert arguments == {
        "command": ["echo", "hello"],
        "mode": "fast",
        "limits": {},
        "strict": True,
        "free": "echo hello",
    }
