"""Whatever a model samples is recorded or said to be lost; nothing of it is a 500 alone."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest

from streams.adapters.engines.interface import Generation, Tokens
from streams.adapters.engines.scripted import Rule
from streams.adapters.gateway import publishing
from streams.adapters.gateway.answers import given
from streams.adapters.gateway.answers.grammar import CALLS_MAX, DEPTH_MAX
from tests.adapters.gateway.agents import Agent, says, user
from tests.adapters.gateway.world import World, play, played

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]


def nested(depth: int) -> str:
    deep = "[" * (depth - 1) + "]" * (depth - 1)
    return f'<tool_call>\n{{"name": "bash", "arguments": {{"x": {deep}}}}}\n</tool_call>'


@pytest.mark.parametrize("depth", [80, 90, 92, 95, 97, 99, 100, 101, 150])
def test_a_call_of_any_depth_is_recorded_and_trains(tmp_path: Path, depth: int) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        answer = await agent.ask(user("Hi"), tools=TOOLS)
        if depth <= DEPTH_MAX:
            await agent.run_tools(answer, tools=TOOLS)
        else:
            assert "<tool_call>" in answer["content"]
            await agent.ask(user("Go on."), tools=TOOLS)
        await world.ends_whole(agent)

    play(tmp_path, story, [Rule(text=nested(depth)), says("Done.")])


def test_more_calls_than_anybody_runs_are_text_beyond_a_thousand(tmp_path: Path) -> None:
    one = '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>\n'

    async def story(world: World) -> None:
        agent = await world.open()
        answer = await agent.ask(user("Hi"), tools=TOOLS, max_tokens=100_000)
        assert len(answer["tool_calls"]) == CALLS_MAX
        assert answer["content"].count("<tool_call>") == 2
        outcome = await world.end(agent)
        (turn,) = outcome.turns.values()
        assert turn.output_ids.tolist() == next(iter(world.engine.journal)).ids
        assert turn.ill_formed

    play(tmp_path, story, [Rule(text=one * (CALLS_MAX + 2))])


async def fails(world: World, agent: Agent) -> None:
    world.failures_expected += 1
    with pytest.raises(openai.InternalServerError):
        await agent.send([user("Hi")])


@played(says("One."), says("Two."))
async def test_a_turn_that_the_gateway_fails_at_is_recorded_and_does_not_train(
    world: World,
) -> None:
    agent = await world.open()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(given.Given, "message", _broken)
        await fails(world, agent)
    (turn,) = await world.recorded(agent.session_id)
    assert (turn.trainable, turn.delivered) == (False, False)
    assert turn.output_ids.tolist() == next(iter(world.engine.journal)).ids
    await agent.ask(user("Hi"))
    outcome = await world.ends(agent)
    assert outcome.untrained == {turn.turn_id: {"undelivered": len(turn.output_ids)}}


@played(says("One."), says("Two."))
async def test_a_turn_that_cannot_be_recorded_at_all_is_said_to_be_lost(world: World) -> None:
    agent = await world.open()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing.Publisher, "_event", _broken)
        await fails(world, agent)
    (told,) = await world.told(agent.session_id)
    assert told.seq == 1
    await agent.ask(user("Hi"))
    outcome = await world.end(agent)
    assert (outcome.closed.lost, outcome.closed.gaps, len(outcome.samples)) == (1, 0, 1)


@played(says("One."), says("Two."))
async def test_a_logprob_that_no_float32_holds_is_the_engines_error(world: World) -> None:
    agent = await world.open()
    generate = world.engine.generate

    async def odd(generation: Generation) -> AsyncGenerator[Tokens, None]:
        async for tokens in generate(generation):
            yield Tokens(ids=tokens.ids, logprobs=(-1e300,) * len(tokens.ids), finish=tokens.finish)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.engine, "generate", odd)
        with pytest.raises(openai.APIStatusError) as caught:
            await agent.send([user("Hi")])
    assert caught.value.status_code == 502
    await agent.ask(user("Hi"))
    await world.end(agent)


@played(says("Just text."), says("Two."))
async def test_a_choice_of_tool_that_nobody_enforces_is_counted_and_the_turn_trains(
    world: World,
) -> None:
    agent = await world.open()
    asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required"}
    await agent.ask(user("Hi"), **asked, parallel_tool_calls=False)
    counts = world.gateway.metrics.counts
    assert counts["ignored_sampling:tool_choice"] == 1
    assert counts["ignored_sampling:parallel_tool_calls"] == 1
    await world.ends_whole(agent)


def test_a_thought_cut_far_from_its_start_goes_on_as_a_thought(tmp_path: Path) -> None:
    thought = " ".join(f"word{n}" for n in range(900))

    async def story(world: World) -> None:
        agent = await world.open()
        cut = await agent.send([user("Hi")], max_tokens=2000)
        assert not cut.get("content")
        answer = await agent.send([user("Hi"), cut])
        assert (answer.get("reasoning_content"), answer["content"]) == ("and done.", "Final.")

    play(
        tmp_path,
        story,
        [
            Rule(text=f"<think>\n{thought}", end=False),
            Rule(text=" and done.\n</think>\n\nFinal."),
        ],
    )


def _broken(*_: object, **__: object) -> None:
    raise RuntimeError("injected by the test")
