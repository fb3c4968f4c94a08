"""Agents through the gateway over HTTP: what they see, what the log has, what trains.

Each conversation is held by the SDKs of three APIs, in one piece and streamed. The agent's words
are the same, and so is what becomes of them.
"""

import asyncio

import pytest

from schemas.events import TurnUndelivered
from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.agents import BASH, calls, says, system, user
from tests.adapters.gateway.agents_kinds import KINDS, Talker
from tests.adapters.gateway.agents_scenes import Failures, Stage, assert_held, played_together
from tests.adapters.gateway.world import World, played

OPENING = (system("You are terse."), user("How big is it?"))
STAGE = Stage(*KINDS)


@STAGE.scene(says("148M, in all.", "I know that."), group_id="g", rollout_index=3)
async def one_turn_is_recorded_as_sampled_and_trains(world: World, talker: Talker) -> None:
    said = await talker.ask(*OPENING)
    assert (said.text, said.reasoning, said.calls) == ("148M, in all.", "I know that.", ())
    outcome = await world.ends_whole(talker.agent)
    (sample,) = outcome.samples
    assert (sample.group_id, sample.rollout_index, sample.reward) == ("g", 3, 1.0)


@STAGE.scene(
    *(calls(f"du -sh {n}", text="Let me look.", reasoning=f"Step {n}.") for n in range(4)),
    says("Done.", "Enough."),
)
async def a_tool_loop_of_five_turns_is_one_sample(world: World, talker: Talker) -> None:
    said = await talker.ask(*OPENING)
    for number in range(4):
        assert (said.text, said.reasoning) == ("Let me look.", f"Step {number}.")
        assert [call.arguments for call in said.calls] == [{"command": f"du -sh {number}"}]
        said = await talker.run_tools(said)
    assert said.text == "Done."
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend", "extend", "extend", "extend"]
    assert len(outcome.samples) == 1
    turns = list(outcome.turns.values())
    assert [turn.prompt_built for turn in turns] == ["render"] + 4 * ["bridge"]
    assert [turn.seq for turn in turns] == [1, 2, 3, 4, 5]
    assert [bool(turn.tools) for turn in turns] == [True] + 4 * [False]


@STAGE.scene(calls("ls", "pwd", "id", text="All at once."), says("Done."))
async def parallel_calls_are_answered_in_any_order(world: World, talker: Talker) -> None:
    said = await talker.ask(*OPENING)
    assert len({call.id for call in said.calls}) == 3
    await talker.run_tools(said, backwards=True)
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend"]


@STAGE.scene(says("148M."), says("12M.", "Other place."), says("Bye."))
async def a_system_message_in_the_middle_stays_where_it_is(world: World, talker: Talker) -> None:
    await talker.ask(*OPENING)
    await talker.ask(system("The directory is now /tests."), user("And now?"))
    await talker.ask(user("Thanks."))
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend", "extend"]
    assert len(outcome.samples) == 1


@STAGE.scene(
    *(calls("ls", contains=f"helper {n}") for n in ("one", "two")),
    *(says("Looked.", contains=f"helper {n}") for n in ("one", "two")),
    calls("du"),
    says("Done."),
)
async def sub_agents_interleaved_have_roots_of_their_own(world: World, talker: Talker) -> None:
    first = await talker.ask(*OPENING)
    helpers = [talker.another(), talker.another()]
    openings = [system(f"You are helper {name}.") for name in ("one", "two")]
    said = await asyncio.gather(
        *(
            helper.ask(opening, user("Look."))
            for helper, opening in zip(helpers, openings, strict=True)
        )
    )
    await asyncio.gather(*(helper.run_tools(s) for helper, s in zip(helpers, said, strict=True)))
    await talker.run_tools(first)
    outcome = await world.ends_whole(talker.agent)
    assert sorted(outcome.attached) == ["extend"] * 3 + ["root"] * 3
    assert len(outcome.samples) == 3


@STAGE.scene(says("148M."), says("149M."), says("Sure."))
async def of_two_answers_to_one_request_the_one_gone_on_from_trains(
    world: World, talker: Talker
) -> None:
    talker.head = "You are terse."
    await talker.send([talker.told([user("How big is it?")])])
    await talker.ask(user("How big is it?"))
    await talker.ask(user("Sure?"))
    outcome = await world.ends(talker.agent)
    first, second, third = outcome.turns.values()
    told = [e for e in await world.events(talker.session_id) if isinstance(e, TurnUndelivered)]
    assert [event.turn_id for event in told] == [first.turn_id]
    assert outcome.untrained == {first.turn_id: {"undelivered": len(first.output_ids)}}
    assert second.prompt_built == "reuse"
    assert outcome.prompts[first.turn_id] == outcome.prompts[second.turn_id]
    (sample,) = outcome.samples
    assert {span.turn_id for span in sample.turns} == {second.turn_id, third.turn_id}


@STAGE.scene(calls("du", reasoning="Look."), says("148M."), says("It was measured."), says("Bye."))
async def a_compaction_is_a_branch_and_every_turn_trains(world: World, talker: Talker) -> None:
    said = await talker.ask(*OPENING)
    await talker.run_tools(said)
    await talker.send([*talker.history, talker.told([user("Sum up what was done.")])])
    kept = talker.history[-3:-1]
    talker.history = [talker.told([user("So far: it was measured.")]), *kept]
    await talker.ask(user("Go on."))
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend", "extend", "root"]


@STAGE.scene(Rule(text=" 148M, in all."), says("Sure.", "Yes."))
async def an_answer_that_the_agent_began_is_gone_on_with(world: World, talker: Talker) -> None:
    talker.head = "You are terse."
    talker.history = [talker.told([user("How big is it?")])]
    said = await talker.send([*talker.history, talker.begun("It is")])
    assert (said.text, said.reasoning) == (" 148M, in all.", "")
    talker.history.append(talker.begun(f"It is{said.text}"))
    await talker.ask(user("Sure?"))
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend"]
    assert len(outcome.samples) == 1


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return played_together(tmp_path_factory.mktemp("scenes"), STAGE.scenes)


@pytest.mark.parametrize("name", STAGE.scenes)
def test_conversation(name: str, failures: Failures) -> None:
    assert_held(failures, name)


@played(says("One."), says("Two."), says("Three."), says("Sure."))
async def test_answers_that_were_asked_for_side_by_side_all_train(world: World) -> None:
    """An agent that draws several and goes on from the best of them."""
    agent = await world.open()
    answers = await asyncio.gather(*(agent.send(OPENING) for _ in range(3)))
    agent.messages = [*OPENING, answers[1]]
    await agent.ask(user("Sure?"))
    outcome = await world.ends_whole(agent)
    assert len(outcome.samples) == 3


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


@played(says("A plan."), says("Done."), says("A title."))
async def test_a_guessed_side_call_that_is_gone_on_from_trains(world: World) -> None:
    agent = await world.open()
    await agent.send([user("Work.")], model="main", tools=[BASH])
    plan = await agent.send([user("Plan.")], model="other")
    await agent.send([user("Plan."), plan, user("Go on.")], model="other")
    await world.ends_whole(agent)


@played(says("One."), says("A title."))
async def test_a_title_on_another_model_does_not_train(world: World) -> None:
    agent = await world.open()
    await agent.send([user("Work.")], model="main", tools=[BASH])
    await agent.send([user("Name this.")], model="small")
    outcome = await world.ends(agent)
    (_, title) = outcome.turns.values()
    assert (title.request_class, title.class_by_shape) == ("auxiliary", True)
    assert outcome.untrained == {title.turn_id: {"auxiliary": len(title.output_ids)}}
