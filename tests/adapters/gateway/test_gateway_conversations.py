"""Agents through the gateway over HTTP: what they see, what the log has, what trains."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas.events import TurnUndelivered
from streams.adapters.engines.scripted import Script
from tests.adapters.gateway.agents import BASH, Agent, calls, says, system, user
from tests.adapters.gateway.world import World, play, played

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
OPENING = (system("You are terse."), user("How big is it?"))


async def agent_of(world: World, *, stream: bool, **fields: Any) -> Agent:
    agent = await world.open(**fields)
    agent.stream, agent.tools = stream, [BASH]
    return agent


@BOTH
def test_one_turn_is_recorded_as_sampled_and_trains(tmp_path: Path, stream: bool) -> None:
    async def story(world: World) -> None:
        agent = await agent_of(world, stream=stream, group_id="g", rollout_index=3)
        answer = await agent.ask(*OPENING)
        assert answer["content"] == "148M, in all."
        assert answer["reasoning_content"] == "I know that."
        outcome = await world.ends_whole(agent)
        (sample,) = outcome.samples
        assert (sample.group_id, sample.rollout_index, sample.reward) == ("g", 3, 1.0)

    play(tmp_path, story, [says("148M, in all.", "I know that.")])


@BOTH
def test_a_tool_loop_of_five_turns_is_one_sample(tmp_path: Path, stream: bool) -> None:
    async def story(world: World) -> None:
        agent = await agent_of(world, stream=stream)
        answer = await agent.ask(*OPENING)
        for _ in range(4):
            answer = await agent.run_tools(answer)
        assert answer["content"] == "Done."
        outcome = await world.ends_whole(agent)
        assert outcome.attached == ["root", "extend", "extend", "extend", "extend"]
        assert len(outcome.samples) == 1
        turns = list(outcome.turns.values())
        assert [turn.prompt_built for turn in turns] == ["render"] + 4 * ["bridge"]
        assert [turn.seq for turn in turns] == [1, 2, 3, 4, 5]
        assert [bool(turn.tools) for turn in turns] == [True] + 4 * [False]

    loop = [calls(f"du -sh {n}", text="Let me look.", reasoning=f"Step {n}.") for n in range(4)]
    play(tmp_path, story, [*loop, says("Done.", "Enough.")])


@BOTH
def test_parallel_calls_are_answered_in_any_order(tmp_path: Path, stream: bool) -> None:
    async def story(world: World) -> None:
        agent = await agent_of(world, stream=stream)
        answer = await agent.ask(*OPENING)
        ids = [call["id"] for call in answer["tool_calls"]]
        assert len(set(ids)) == 3
        results = [{"role": "tool", "tool_call_id": i, "content": i[-3:]} for i in reversed(ids)]
        await agent.ask(*results)
        outcome = await world.ends_whole(agent)
        assert outcome.attached == ["root", "extend"]

    play(tmp_path, story, [calls("ls", "pwd", "id", text="All at once."), says("Done.")])


@BOTH
def test_a_system_message_in_the_middle_stays_where_it_is(tmp_path: Path, stream: bool) -> None:
    async def story(world: World) -> None:
        agent = await agent_of(world, stream=stream)
        await agent.ask(*OPENING)
        await agent.ask(system("The directory is now /tests."), user("And now?"))
        await agent.ask(user("Thanks."))
        outcome = await world.ends_whole(agent)
        assert outcome.attached == ["root", "extend", "extend"]

    play(tmp_path, story, [says("148M."), says("12M.", "Other place."), says("Bye.")])


@BOTH
def test_sub_agents_interleaved_have_roots_of_their_own(tmp_path: Path, stream: bool) -> None:
    async def story(world: World) -> None:
        agent = await agent_of(world, stream=stream)
        first = await agent.ask(*OPENING)
        others = []
        for name in ("one", "two"):
            other = Agent({"session_id": agent.session_id, "key": agent.key, "base_url": ""})
            await other.client.close()
            other.client, other.tools, other.stream = agent.client, [BASH], stream
            others.append((other, [system(f"You are helper {name}."), user("Look.")]))
        answers = await asyncio.gather(*(other.ask(*opening) for other, opening in others))
        await asyncio.gather(
            *(other.run_tools(a) for (other, _), a in zip(others, answers, strict=True))
        )
        await agent.run_tools(first)
        outcome = await world.ends_whole(agent)
        assert sorted(outcome.attached) == ["extend"] * 3 + ["root"] * 3
        assert len(outcome.samples) == 3

    script = Script(
        answers=(
            *(calls("ls", contains=f"helper {n}") for n in ("one", "two")),
            *(says("Looked.", contains=f"helper {n}") for n in ("one", "two")),
            calls("du"),
            says("Done."),
        )
    )
    play(tmp_path, story, script)


@BOTH
def test_of_two_answers_to_one_request_the_one_gone_on_from_trains(
    tmp_path: Path, stream: bool
) -> None:
    async def story(world: World) -> None:
        agent = await agent_of(world, stream=stream)
        await agent.send(OPENING)
        await agent.ask(*OPENING)
        await agent.ask(user("Sure?"))
        outcome = await world.ends(agent)
        first, second, third = outcome.turns.values()
        told = [e for e in await world.events(agent.session_id) if isinstance(e, TurnUndelivered)]
        assert [event.turn_id for event in told] == [first.turn_id]
        assert outcome.untrained == {first.turn_id: {"undelivered": len(first.output_ids)}}
        assert second.prompt_built == "reuse"
        assert outcome.prompts[first.turn_id] == outcome.prompts[second.turn_id]
        assert len(outcome.samples) == 1
        assert {span.turn_id for span in outcome.samples[0].turns} == {
            second.turn_id,
            third.turn_id,
        }

    play(tmp_path, story, [says("148M."), says("149M."), says("Sure.")])


@played(says("slow", gap_ms=1500), says("149M."), says("Sure."))
async def test_a_twin_that_is_still_running_when_its_sibling_is_extended_is_superseded(
    world: World,
) -> None:
    agent = await world.open()
    slow = asyncio.create_task(agent.send(OPENING))
    await world.asked()
    await agent.ask(*OPENING)
    await agent.ask(user("Sure?"))
    assert not slow.done()
    await slow
    outcome = await world.end(agent)
    (twin,) = [t for t in outcome.turns.values() if len(t.output_ids) == 2]
    assert outcome.untrained == {twin.turn_id: {"undelivered": 2}}


@BOTH
def test_a_compaction_is_a_branch_and_every_turn_trains(tmp_path: Path, stream: bool) -> None:
    async def story(world: World) -> None:
        agent = await agent_of(world, stream=stream)
        answer = await agent.ask(*OPENING)
        answer = await agent.run_tools(answer)
        await agent.send([*agent.messages, user("Sum up what was done.")])
        kept = agent.messages[-3:-1]
        agent.messages = [system("You are terse."), user("So far: it was measured."), *kept]
        await agent.ask(user("Go on."))
        outcome = await world.ends_whole(agent)
        assert outcome.attached == ["root", "extend", "extend", "root"]

    script = [calls("du", reasoning="Look."), says("148M."), says("It was measured."), says("Bye.")]
    play(tmp_path, story, script)


@played(says("One."), says("Two."))
async def test_what_headers_say_of_the_caller_stands_on_the_turn(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Title?"), extra_headers={"x-turnstream-request-class": "auxiliary"})
    named = {"x-claude-code-agent-id": "a7", "x-claude-code-request-class": "nonsense"}
    await agent.send([user("Look.")], extra_headers=named)
    outcome = await world.end(agent)
    title, look = outcome.turns.values()
    assert (title.request_class, title.agent_id) == ("auxiliary", None)
    assert (look.request_class, look.agent_id) == ("subagent", "a7")
    assert outcome.untrained == {title.turn_id: {"auxiliary": len(title.output_ids)}}


@played(says("One."))
async def test_the_models_are_listed_for_a_session_key(world: World) -> None:
    agent = await world.open()
    models = await agent.client.models.list()
    assert [model.id for model in models.data] == [world.settings.gateway_model]


@played(says("148M.", "Thinking."))
async def test_usage_counts_the_tokens_that_there_are(world: World) -> None:
    agent = await world.open()
    usage = None
    options = {"include_usage": True}
    async with await agent.client.chat.completions.create(
        model="m", messages=[user("Hi")], stream=True, stream_options=options
    ) as chunks:
        async for chunk in chunks:
            usage = chunk.usage or usage
    outcome = await world.end(agent)
    (turn,) = outcome.turns.values()
    assert usage is not None
    assert usage.completion_tokens == len(turn.output_ids)
    assert usage.prompt_tokens == len(outcome.prompts[turn.turn_id])
