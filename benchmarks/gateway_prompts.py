"""What building a prompt costs a turn, as the history grows: `prompts.build`, in CPU time.

One session grows turn by turn, as under the gateway: the request is read from its body anew,
the prompt is built, the turn is recorded. The builds around each size count, the median of them,
and the best of some sessions. Reading the body is timed beside it: a client sends all of it.
Words are of ordinary length, about five characters a token.

Invariant: every build but a session's first goes on from recorded tokens.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import process_time
from typing import Any

from benchmarks.gateway_script import Shape, Writer, body, echo, result, tools
from streams.adapters.dialects import openai_chat
from streams.adapters.dialects.calls import Message
from streams.adapters.gateway.history.recorded import History
from streams.adapters.gateway.prompts.building import build
from streams.adapters.gateway.rendering.renderer import Renderer
from tests.adapters.gateway.prompts.prompt_setting import turn_event
from tests.drift.qwen3 import Qwen3

SIZES = (4_000, 32_000, 128_000)
WINDOW = 20
"""Builds that count for a size: those before the first prompt beyond it."""


@dataclass(slots=True)
class Costs:
    """CPU milliseconds of every turn of one session."""

    prompt_tokens: list[int] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)
    build_ms: list[float] = field(default_factory=list)

    def at(self, size: int) -> dict[str, float]:
        """The medians around a size."""
        end = next(n for n, tokens in enumerate(self.prompt_tokens) if tokens >= size) + 1
        start = max(1, end - WINDOW)
        assert start < end, f"the first prompt is beyond {size} tokens already"
        return {
            "build_ms": statistics.median(self.build_ms[start:end]),
            "read_ms": statistics.median(self.read_ms[start:end]),
        }


def grown(qwen: Qwen3, renderer: Renderer, size: int, shape: Shape) -> Costs:
    """A session that grows to a prompt of that size."""
    writer, history, costs = Writer(qwen), History(), Costs()
    offered = tools(writer, shape.tools)
    messages: list[dict[str, Any]] = [{"role": "user", "content": writer.words(shape.question)}]
    while not costs.prompt_tokens or costs.prompt_tokens[-1] < size:
        asked = body(messages, offered)
        began_s = process_time()
        call = openai_chat.read_call(asked)
        read_s = process_time()
        prompt = build(call, history, renderer)
        built_s = process_time()
        number = len(costs.prompt_tokens)
        assert (prompt.built == "bridge") == (number > 0), f"turn {number}: {prompt.built}"
        costs.read_ms.append((read_s - began_s) * 1000)
        costs.build_ms.append((built_s - read_s) * 1000)
        costs.prompt_tokens.append(len(prompt.ids))
        answer, identity = writer.answer(shape.answer), f"call_{number}"
        echoed = echo(answer, identity)
        function = {"name": "search", "arguments": answer.arguments}
        recorded: Message = {
            "role": "assistant",
            "content": answer.text,
            "reasoning_content": answer.reasoning,
            "tool_calls": [{"id": identity, "type": "function", "function": function}],
        }
        history.record(turn_event(prompt, f"t{number}", answer.ids, recorded), position=number)
        messages += [echoed, result(writer.words(shape.result), identity)]
    return costs


def costs_by_size(
    qwen: Qwen3, renderer: Renderer, sizes: Sequence[int], *, sessions: int, shape: Shape
) -> dict[int, dict[str, float]]:
    """The best of some sessions for each size."""
    found = [grown(qwen, renderer, max(sizes), shape) for _ in range(sessions)]
    return {
        size: {
            name: min(costs.at(size)[name] for costs in found) for name in ("build_ms", "read_ms")
        }
        for size in sizes
    }
