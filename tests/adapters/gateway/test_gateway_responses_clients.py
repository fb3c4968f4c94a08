"""What clients of Responses do beside sending answers back: tools that join, compaction, items.

Each is told as Codex or the openai SDK sends it.
"""

from typing import Any

import pytest

from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.agents import BASH, calls, says, user
from tests.adapters.gateway.agents_echoes import calling, thinking
from tests.adapters.gateway.agents_kinds import Said, Talker, plain
from tests.adapters.gateway.agents_scenes import Failures, Stage, assert_held, played_together
from tests.adapters.gateway.outcomes import Outcome
from tests.adapters.gateway.prompts.prompt_setting import stock
from tests.adapters.gateway.world import World

STAGE = Stage("responses")
COMPACTION = {"extra_headers": {"x-codex-turn-metadata": '{"request_kind": "compaction"}'}}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Find tools.",
    "parameters": {"type": "object"},
}
FETCH = {
    "type": "function",
    "name": "fetch",
    "description": "Get a page.",
    "parameters": {"type": "object", "properties": {"url": {"type": "string"}}},
    "strict": False,
    "defer_loading": True,
}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "Others.",
    "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object"}}],
}
PATCH = {"type": "custom", "name": "patch", "description": "Change files."}


async def answered(talker: Talker, *items: Any, **more: Any) -> Said:
    """Items in the API's form, and the answer kept."""
    talker.history.append(list(items))
    said = await talker.send(talker.history, **more)
    talker.history.append(said.native)
    return said


@STAGE.scene(
    Rule(text=thinking(calling('{"query": "pages"}', name="tool_search"))),
    Rule(text=thinking(calling('{"url": "http://a"}', name="fetch"))),
    says("Done.", "So."),
)
async def a_tool_that_is_found_on_the_way_leaves_the_head_alone(
    world: World, talker: Talker
) -> None:
    talker.tools = [BASH, SEARCH]
    said = await talker.ask(user("Find a tool."))
    assert [(call.name, call.arguments) for call in said.calls] == [
        ("tool_search", {"query": "pages"})
    ]
    found = {"type": "tool_search_output", "call_id": said.calls[0].id, "tools": [FETCH]}
    said = await answered(talker, found | {"execution": "client", "status": "completed"})
    assert [(call.name, call.arguments) for call in said.calls] == [("fetch", {"url": "http://a"})]
    await talker.run_tools(said)
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend", "extend"]
    assert len(outcome.samples) == 1
    one, two, _ = outcome.turns.values()
    assert "Get a page." not in stock().decode(outcome.prompts[one.turn_id])
    assert "Get a page." in stock().decode(outcome.prompts[two.turn_id])


@STAGE.scene(
    Rule(text=thinking(calling("{}", name="agents__spawn"))),
    Rule(text=thinking(calling('{"input": "*** Begin\\n+x\\n"}', name="patch"))),
    says("Done."),
)
async def tools_are_called_as_the_client_spells_them(world: World, talker: Talker) -> None:
    talker.tools = [BASH, AGENTS, PATCH]
    said = await talker.ask(user("Begin."))
    spawn = plain(said.native[-1])
    assert (spawn["type"], spawn["namespace"], spawn["name"]) == (
        "function_call",
        "agents",
        "spawn",
    )
    said = await talker.run_tools(said)
    patch = plain(said.native[-1])
    assert (patch["type"], patch["input"]) == ("custom_tool_call", "*** Begin\n+x\n")
    await talker.run_tools(said)
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend", "extend"]
    assert len(outcome.samples) == 1


@STAGE.scene(
    calls("ls", reasoning="Hm."),
    says("148M.", "So."),
    says("A summary."),
    calls("pwd"),
    says("Done."),
)
async def a_compaction_without_tools_forks_and_every_turn_trains(
    world: World, talker: Talker
) -> None:
    base = {"type": "message", "role": "developer", "content": "You are Codex.", "id": "msg_a"}
    said = await answered(talker, base, user("Look."))
    await talker.run_tools(said)
    more = [*talker.history, [user("Summarise.")]]
    await talker.send(more, tools=[], parallel_tool_calls=False, **COMPACTION)
    talker.history = []
    summary = user("Another model said: A summary.")
    said = await answered(talker, base | {"id": "msg_b"}, user("Look."), summary)
    await talker.run_tools(said)
    outcome = await world.ends_whole(talker.agent)
    classes = [turn.request_class for turn in outcome.turns.values()]
    assert classes == [None, None, "compaction", None, None]
    assert outcome.attached == ["root", "extend", "fork", "root", "extend"]


@STAGE.scene(calls("ls", "pwd", reasoning="Hm."), says("Done."), says("Bye."))
async def calls_that_come_with_their_outputs_are_still_one_answer(
    world: World, talker: Talker
) -> None:
    said = await talker.ask(user("Look."))
    thought, one, two = said.native
    outputs = [
        {"type": "function_call_output", "call_id": call.id, "output": text}
        for call, text in zip(said.calls, ("a", "b"), strict=True)
    ]
    parts = {"output": [{"type": "input_text", "text": "b"}]}
    talker.history = [[user("Look.")], [thought, one, outputs[0], two, outputs[1] | parts]]
    await talker.ask()
    await talker.ask(user("Thanks."))
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend", "extend"]
    assert len(outcome.samples) == 1


@STAGE.scene(says("148M.", "Hm."), says("12M."), says("Bye."))
async def ids_of_the_clients_own_items_do_not_count(world: World, talker: Talker) -> None:
    def asked(text: str, name: str) -> dict[str, Any]:
        content = [{"type": "input_text", "text": text}]
        return {"type": "message", "role": "user", "id": name, "content": content}

    await answered(talker, asked("How big is it?", "msg_1"))
    talker.history[0] = [asked("How big is it?", "msg_2")]
    await answered(talker, asked("And the tests?", "msg_3"))
    talker.history[0] = [user("How big is it?")]
    await talker.ask(user("Thanks."))
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend", "extend"]


@STAGE.scene(says("148M.", "Oh."), says("148M.", "Hm, yes."), says("Bye."))
async def an_answer_without_calls_is_known_by_what_is_encrypted(
    world: World, talker: Talker
) -> None:
    """Two answers say the same; only the reasoning item tells which of them came back."""
    question = talker.told([user("How big is it?")])
    first = await talker.send([question])
    await talker.send([question])
    thought, text = plain(first.native)
    sealed = {"type": "reasoning", "summary": []}
    sealed["encrypted_content"] = thought["encrypted_content"]
    del text["id"]
    talker.history = [question, [sealed, text]]
    await talker.ask(user("Thanks."))
    outcome = await world.ends(talker.agent)
    one, _, three = outcome.turns
    assert [one, three] in [[span.turn_id for span in s.turns] for s in outcome.samples]


@STAGE.scene(
    Rule(text='<tool_call>\n{"name": "bash", "arguments": {ls}}\n</tool_call>'),
    says("Sorry."),
    policy={"profile": "seed", "train_ill_formed": True},
)
async def a_call_that_is_no_json_comes_as_text_and_goes_back_so(
    world: World, talker: Talker
) -> None:
    said = await talker.ask(user("List it."))
    assert (said.calls, "{ls}" in said.text) == ((), True)
    await talker.ask(user("That was no call."))
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend"]


@STAGE.scene(says("148M.", "Hm."))
async def a_count_is_the_length_of_the_prompt_that_would_be_asked(
    world: World, talker: Talker
) -> None:
    talker.head = "You are terse."
    asked = talker.body(talker.told([user("How big is it?")]))
    counted = {name: value for name, value in asked.items() if name != "store"}
    count = await talker.client.responses.input_tokens.count(**counted)
    said = await talker.post(asked)
    outcome = await world.ends_whole(talker.agent)
    (turn,) = outcome.turns.values()
    assert count.input_tokens == said.usage.input_tokens == len(outcome.prompts[turn.turn_id])
    assert said.usage.output_tokens == len(turn.output_ids)


CALL_TOKENS = 26
"""Of a thought, one call and the newline behind it."""


def slow_after(tokens: int) -> Rule:
    """Two calls, of which so much comes at once that the rest never does."""
    return calls("ls", "pwd", reasoning="Hm.", chunks=(tokens,), gap_ms=10_000)


async def broken_off(talker: Talker) -> list[Any]:
    """The finished items of a stream that breaks behind its first call."""
    kept: list[Any] = []
    async with talker.client.responses.stream(**talker.body([user("Look.")])) as stream:
        async for event in stream:
            if event.type == "response.output_item.done":
                kept.append(event.item)
                if event.item.type == "function_call":
                    return kept
    raise AssertionError("the stream has ended")


async def gone_on(world: World, talker: Talker, kept: list[Any]) -> Outcome:
    (whole,) = await world.recorded(talker.session_id)
    assert not whole.delivered
    output = {"type": "function_call_output", "call_id": kept[-1].call_id, "output": "ok"}
    talker.history = [[user("Look.")], kept, [output]]
    await talker.ask()
    await talker.ask(user("And now?"))
    return await world.end(talker.agent)


@STAGE.scene(slow_after(CALL_TOKENS + 8), says("Good."), says("Done."), streams=[True])
async def the_finished_items_of_a_stream_that_breaks_in_a_call_train(
    world: World, talker: Talker
) -> None:
    outcome = await gone_on(world, talker, await broken_off(talker))
    whole, part, *others = outcome.turns.values()
    length = len(part.output_ids)
    assert 0 < length < len(whole.output_ids)
    assert part.output_ids.tolist() == whole.output_ids.tolist()[:length]
    dropped = len(whole.output_ids) - len(part.output_ids)
    assert outcome.untrained == {whole.turn_id: {"undelivered": dropped}}
    (sample,) = outcome.samples
    assert [s.turn_id for s in sample.turns] == [turn.turn_id for turn in (part, *others)]
    assert sample.trained == sum(len(turn.output_ids) for turn in (part, *others))


@STAGE.scene(slow_after(CALL_TOKENS), says("Good."), says("Done."), streams=[True])
async def a_stream_that_breaks_between_calls_gave_all_there_is(
    world: World, talker: Talker
) -> None:
    """A blank behind the call is no reason for another turn."""
    outcome = await gone_on(world, talker, await broken_off(talker))
    broken, *_ = outcome.turns.values()
    assert stock().decode(broken.output_ids.tolist()).endswith("</tool_call>\n")
    assert outcome.attached == ["root", "extend", "extend"]
    assert (len(outcome.samples), outcome.untrained) == (1, {})


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return played_together(tmp_path_factory.mktemp("scenes"), STAGE.scenes)


@pytest.mark.parametrize("name", STAGE.scenes)
def test_client(name: str, failures: Failures) -> None:
    assert_held(failures, name)
