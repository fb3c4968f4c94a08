"""What is asked for and cannot be done as asked: ignored and counted, or answered with nothing."""

import json
from typing import Any

import pytest

from streams.adapters.dialects.anthropic import answer_body, stream
from streams.adapters.dialects.calls import FinishReason, Reasoning, Text
from tests.adapters.dialects.anthropic_answers import LS, NAMES, answer
from tests.adapters.dialects.anthropic_requests import BASH, call


@pytest.mark.parametrize("tools", [[], [BASH]])
@pytest.mark.parametrize("kind", ["required", "brand_new", ""])
def test_an_unknown_kind_of_choice_is_no_choice(kind: str, tools: list[Any]) -> None:
    found = call(tools=tools, tool_choice={"type": kind, "name": "bash"})
    assert (found.tool_choice, found.ignored) == ("auto", ("tool_choice",))


def test_a_warm_up_samples_as_little_as_can_be_and_does_not_train() -> None:
    found = call(max_tokens=0, tools=[BASH])
    assert (found.max_tokens, found.request_class) == (1, "auxiliary")
    assert (call(max_tokens=1).max_tokens, call(max_tokens=1).request_class) == (1, None)


@pytest.mark.parametrize("finish", ["length", "stop", "tool_calls"])
def test_a_warm_up_is_answered_with_nothing(finish: FinishReason) -> None:
    warm_up, sampled = call(max_tokens=0), answer(Reasoning("Hm"), Text("W"), LS, finish=finish)
    body = json.loads(answer_body(warm_up, sampled))
    assert (body["content"], body["stop_reason"]) == ([], "max_tokens")
    assert body["usage"]["output_tokens"] == 0
    assert body["usage"]["cache_read_input_tokens"] == sampled.usage.reused

    told = stream(warm_up, NAMES)
    assert told.piece(Reasoning("Hm")) + told.piece(Text("W")) + told.piece(LS) == b""
    delta, stop = told.end(sampled).decode().strip().split("\n\n")
    assert json.loads(delta.partition("data: ")[2]) == {
        "type": "message_delta",
        "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
        "usage": body["usage"],
    }
    assert stop.startswith("event: message_stop")
