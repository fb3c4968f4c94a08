"""Responses by reference: an agent sends what is new, the gateway has the rest from its tree.

create(input="How big?")                                   resp_1
create(input=outputs, previous_response_id="resp_1")       resp_2, one sample with it
create(input=..., instructions=other, previous_...)        another head: a root of its own
"""

from typing import Any

import openai
import pytest

from schemas.events import Turn
from tests.adapters.gateway.agents import BASH, calls, says
from tests.adapters.gateway.agents_kinds import responses_tool
from tests.adapters.gateway.outcomes import Outcome
from tests.adapters.gateway.prompts.prompt_setting import stock
from tests.adapters.gateway.world import World, played

TERSE = "You are terse."
ASKED: dict[str, Any] = {"model": "m", "tools": [responses_tool(BASH)]}
LOOK = calls("du", "ls", text="I look.", reasoning="Hm.")


def outputs(response: Any) -> list[dict[str, Any]]:
    """The results of every call in it."""
    called = [item for item in response.output if item.type == "function_call"]
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": f"{number}M"}
        for number, item in enumerate(called)
    ]


def text_of(outcome: Outcome, turn: Turn) -> str:
    return stock().decode(outcome.prompts[turn.turn_id])


@played(LOOK, says("148M.", "So."), says("Bye."))
async def test_only_what_is_new_is_sent_and_all_of_it_is_one_sample(world: World) -> None:
    agent = await world.open()
    create = agent.client.responses.create
    first = await create(**ASKED, instructions=TERSE, input="How big is it?")
    second = await create(
        **ASKED, instructions=TERSE, input=outputs(first), previous_response_id=first.id
    )
    await create(**ASKED, instructions=TERSE, input="Thanks.", previous_response_id=second.id)
    outcome = await world.ends_whole(agent)
    assert outcome.attached == ["root", "extend", "extend"]
    assert len(outcome.samples) == 1
    *_, last = outcome.turns.values()
    assert text_of(outcome, last).count(TERSE) == 1


@played(LOOK, says("148M.", "So."))
async def test_instructions_that_are_not_said_again_stay(world: World) -> None:
    agent = await world.open()
    create = agent.client.responses.create
    first = await create(**ASKED, instructions=TERSE, input="How big is it?")
    await create(**ASKED, input=outputs(first), previous_response_id=first.id)
    outcome = await world.ends_whole(agent)
    assert outcome.attached == ["root", "extend"]


@played(LOOK, says("148M.", "So."), says("Oh, very big.", "Hm."), says("Bye."))
async def test_other_instructions_take_the_place_of_the_old(world: World) -> None:
    agent = await world.open()
    create = agent.client.responses.create
    first = await create(**ASKED, instructions=TERSE, input="How big is it?")
    second = await create(
        **ASKED, instructions=TERSE, input=outputs(first), previous_response_id=first.id
    )
    chatty: dict[str, Any] = {**ASKED, "instructions": "You are chatty."}
    third = await create(**chatty, input="Say more.", previous_response_id=second.id)
    await create(**chatty, input="Bye.", previous_response_id=third.id)
    outcome = await world.ends_whole(agent)
    assert outcome.attached == ["root", "extend", "root", "extend"]
    one, two, three, _ = outcome.turns.values()
    said = text_of(outcome, three)
    assert (TERSE in said, said.count("You are chatty.")) == (False, 1)
    before = text_of(outcome, two).partition(TERSE)[2].partition("<|im_end|>")[2]
    assert before.removesuffix("<|im_start|>assistant\n") in said
    for turn in (one, two):  # as they were sampled
        assert stock().decode(turn.output_ids.tolist()) in said


@played(says("148M."), says("12M."))
async def test_a_developer_item_stays_where_it_stands(world: World) -> None:
    agent = await world.open()
    create = agent.client.responses.create
    first = await create(**ASKED, instructions=TERSE, input="How big is it?")
    moved = {"role": "developer", "content": "The directory is now /tests."}
    new = [moved, {"role": "user", "content": "And now?"}]
    await create(**ASKED, input=new, previous_response_id=first.id)
    outcome = await world.ends_whole(agent)
    assert outcome.attached == ["root", "extend"]


@played(says("148M."), says("12M."), says("13M."))
async def test_two_calls_that_go_on_from_one_answer_are_branches(world: World) -> None:
    agent = await world.open()
    create = agent.client.responses.create
    first = await create(**ASKED, input="How big is it?")
    for question in ("And the tests?", "And the docs?"):
        await create(**ASKED, input=question, previous_response_id=first.id)
    outcome = await world.ends_whole(agent)
    assert outcome.attached == ["root", "extend", "extend"]
    assert len(outcome.samples) == 2


@played(says("148M."), says("12M."))
async def test_an_answer_of_another_session_is_not_found(world: World) -> None:
    agent, other = await world.open(), await world.open()
    theirs = await other.client.responses.create(**ASKED, input="How big is it?")
    for unknown in (theirs.id, "resp_1"):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                await agent.client.responses.create(
                    **ASKED, input="More?", previous_response_id=unknown, stream=stream
                )
            assert caught.value.code == "previous_response_not_found"
            assert caught.value.param == "previous_response_id"
    assert await world.turns(agent.session_id) == []


@played(LOOK, says("148M.", "So."), says("Bye."))
async def test_items_that_are_only_named_are_the_recorded_ones(world: World) -> None:
    agent = await world.open()
    create = agent.client.responses.create
    history: list[Any] = [{"role": "user", "content": "How big is it?"}]
    first = await create(**ASKED, instructions=TERSE, input=history)
    named = [{"type": "item_reference", "id": item.id} for item in first.output]
    history += [*named, *outputs(first)]
    second = await create(**ASKED, instructions=TERSE, input=history)
    history += [{"type": "item_reference", "id": item.id} for item in second.output]
    history += [{"role": "user", "content": "Thanks."}]
    await create(**ASKED, instructions=TERSE, input=history)
    outcome = await world.ends_whole(agent)
    assert outcome.attached == ["root", "extend", "extend"]
    assert len(outcome.samples) == 1
