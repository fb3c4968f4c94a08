"""What clients of Messages do beside sending answers back: tools that join, compaction, threads.

Each is told as Claude Code or the anthropic SDK sends it.
"""

import json
from typing import Any

import anthropic
import pytest

from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.agents import BASH, calls, says, system, user
from tests.adapters.gateway.agents_echoes import calling, thinking
from tests.adapters.gateway.agents_kinds import Said, Talker, plain
from tests.adapters.gateway.agents_scenes import Failures, Stage, assert_held, played_together
from tests.adapters.gateway.prompts.prompt_setting import stock
from tests.adapters.gateway.world import World

STAGE = Stage("messages")
CACHED = {"cache_control": {"type": "ephemeral"}}
COMPACTION = {"extra_headers": {"x-claude-code-request-class": "compaction"}}
SEARCH = {"name": "ToolSearch", "input_schema": {"type": "object"}}
WRITE = {"name": "Write", "input_schema": {"type": "object"}}
FETCH = {
    "name": "Fetch",
    "description": "Get a page.",
    "input_schema": {"type": "object", "properties": {"url": {"type": "string"}}},
    "defer_loading": True,
}


def results(said: Said, *content: Any) -> dict[str, Any]:
    """A user's message with a result for each call, in the API's form."""
    pairs = zip(said.calls, content, strict=True)
    blocks = [{"type": "tool_result", "tool_use_id": c.id, "content": made} for c, made in pairs]
    return {"role": "user", "content": blocks}


async def answered(talker: Talker, *messages: Any, **more: Any) -> Said:
    """Messages in the API's form, and the answer kept."""
    talker.history.append(list(messages))
    said = await talker.send(talker.history, **more)
    talker.history.append(said.native)
    return said


@STAGE.scene(
    Rule(text=thinking(calling('{"query": "select:Fetch"}', name="ToolSearch"))),
    Rule(text=thinking(calling('{"url": "http://a"}', name="Fetch"))),
    says("Done.", "So."),
)
async def a_tool_that_is_found_on_the_way_leaves_the_head_alone(
    world: World, talker: Talker
) -> None:
    talker.tools = [SEARCH, WRITE]
    said = await talker.ask(system("You are terse."), user("Find a tool."))
    found = [{"type": "tool_reference", "tool_name": "Fetch"}]
    talker.tools = [FETCH, SEARCH, WRITE]
    said = await answered(talker, results(said, found))
    assert [(call.name, call.arguments) for call in said.calls] == [("Fetch", {"url": "http://a"})]
    await talker.run_tools(said)
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend", "extend"]
    assert len(outcome.samples) == 1
    one, two, _ = outcome.turns.values()
    assert "Get a page." not in stock().decode(outcome.prompts[one.turn_id])
    assert "Get a page." in stock().decode(outcome.prompts[two.turn_id])


@STAGE.scene(calls("ls", reasoning="Hm."), says("Done.", "So."))
async def a_tool_list_that_grows_at_the_head_forks_and_every_turn_trains(
    world: World, talker: Talker
) -> None:
    said = await talker.ask(user("Look."))
    talker.tools = [BASH, WRITE]
    await talker.run_tools(said)
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "fork"]
    assert len(outcome.samples) == 2
    one, two = outcome.turns.values()
    whole = stock().decode(outcome.prompts[two.turn_id])
    assert stock().decode(one.output_ids.tolist()) in whole


@STAGE.scene(
    calls("echo 0", reasoning="Hm."),
    calls("echo 1", reasoning="Again."),
    says("A summary.", contains="TEXT ONLY"),
    says("Done."),
)
async def a_compaction_leaves_out_the_last_answer_and_keeps_it_afterwards(
    world: World, talker: Talker
) -> None:
    said = await talker.ask(user("LOOP please."))
    first = results(said, "0")
    said = await answered(talker, first)
    asked, answer, _, last = talker.history
    more = {"type": "text", "text": "CRITICAL: respond with TEXT ONLY."}
    summing = {"role": "user", "content": [*first["content"], more]}
    await talker.send([asked, answer, [summing]], **COMPACTION)
    begun = {"role": "user", "content": "This session is being continued. A summary."}
    talker.history = [[begun, {"role": "system", "content": "Today is Monday."}], last]
    reminder = {"type": "text", "text": "<system-reminder>\nBe kind.\n</system-reminder>"}
    goes_on = results(said, "1")
    goes_on["content"].append(reminder)
    await answered(talker, goes_on, {"role": "system", "content": "Some tools are deferred."})
    outcome = await world.ends_whole(talker.agent)
    assert [turn.request_class for turn in outcome.turns.values()][2] == "compaction"
    assert outcome.attached == ["root", "extend", "extend", "root"]
    assert len(outcome.samples) == 3


@STAGE.scene(says("", "Only a thought."), calls("ls"), says("Done."))
async def an_answer_without_text_is_dropped_and_the_question_said_again(
    world: World, talker: Talker
) -> None:
    """The client adds a newline to its question and a nudge; the answer stays a leaf."""
    await talker.send([talker.told([user("Look.")])])
    nudge = {"type": "text", "text": "No answer came. Go on."}
    block = {"type": "text", "text": "Look.\n"}
    said = await answered(talker, {"role": "user", "content": [block, nudge]})
    await talker.run_tools(said)
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "root", "extend"]
    assert len(outcome.samples) == 2


@STAGE.scene(calls("ls", "pwd", reasoning="Hm."), says("Done."), says("Bye."))
async def what_a_user_says_beside_results_is_one_turn_however_it_is_cut(
    world: World, talker: Talker
) -> None:
    """Messages of one role side by side are merged between two requests."""
    said = await talker.ask(user("Look."))
    given = results(said, "a", "b")
    more = {"role": "user", "content": "Hurry."}
    await answered(talker, given, more)
    text = {"type": "text", "text": "Hurry."}
    talker.history[2] = [{"role": "user", "content": [*given["content"], text]}]
    await talker.ask(user("Thanks."))
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend", "extend"]


@STAGE.scene(says("148M.", "Hm."), says("12M."), says("Bye."))
async def a_system_message_changes_its_form_once_it_is_not_the_last(
    world: World, talker: Talker
) -> None:
    def moved(content: Any) -> list[dict[str, Any]]:
        return [{"role": "user", "content": "And now?"}, {"role": "system", "content": content}]

    await talker.ask(user("How big is it?"))
    block = {"type": "text", "text": "The directory is now /tests.", **CACHED}
    await answered(talker, *moved([block]))
    talker.history[2] = moved("The directory is now /tests.")
    await talker.ask(user("Thanks."))
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend", "extend"]


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
    counted = {name: value for name, value in asked.items() if name != "max_tokens"}
    count = await talker.client.messages.count_tokens(**counted)
    said = await talker.post(asked)
    outcome = await world.ends_whole(talker.agent)
    (turn,) = outcome.turns.values()
    assert count.input_tokens == len(outcome.prompts[turn.turn_id])
    assert said.usage.input_tokens + said.usage.cache_read_input_tokens == count.input_tokens
    assert said.usage.output_tokens == len(turn.output_ids)


@STAGE.scene(calls("du", reasoning="Hm."), calls("ls"), says("148M."))
async def the_tool_runner_of_the_sdk_goes_on_without_threads(world: World, talker: Talker) -> None:
    commands: list[str] = []

    @anthropic.beta_async_tool
    async def bash(command: str) -> str:
        """Run a command.

        Args:
            command: what to run.
        """
        commands.append(command)
        return "148M"

    runner = talker.client.beta.messages.tool_runner(
        model="m",
        max_tokens=1024,
        tools=[bash],
        messages=[user("How big is it?")],
        stream=talker.stream,
    )
    last = await runner.until_done()
    assert (commands, last.content[-1].text) == (["du", "ls"], "148M.")
    outcome = await world.ends_whole(talker.agent)
    assert outcome.attached == ["root", "extend", "extend"]
    assert len(outcome.samples) == 1


@STAGE.scene(says("148M."))
async def a_thread_is_refused_as_the_sdk_understands(world: World, talker: Talker) -> None:
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    with pytest.raises(anthropic.BadRequestError) as caught:
        await talker.post(talker.body([user("More?")]) | {"extra_body": {"thread": thread}})
    error = json.loads(caught.value.response.content)["error"]
    assert error["details"]["error_code"] == "thread_unsupported_request"
    await talker.ask(user("How big is it?"))
    await world.ends_whole(talker.agent)


@STAGE.scene(says("148M.", "Oh."), says("148M.", "Hm, yes."), says("Bye."))
async def an_answer_without_calls_is_known_by_its_signature(world: World, talker: Talker) -> None:
    """Two answers say the same; only the signature tells which of them came back."""
    question = talker.told([user("How big is it?")])
    first = await talker.send([question])
    await talker.send([question])
    message = plain(first.native[0])
    message["content"][0]["thinking"] = ""
    talker.history = [question, [message]]
    await talker.ask(user("Thanks."))
    outcome = await world.ends(talker.agent)
    one, _, three = outcome.turns
    assert [one, three] in [[span.turn_id for span in s.turns] for s in outcome.samples]


@STAGE.scene(calls("ls", "pwd", text="Look.", reasoning="Hm."), says("Done."))
async def a_client_that_keeps_a_message_for_each_block_loses_nothing(
    world: World, talker: Talker
) -> None:
    said = await talker.ask(user("Look."))
    message = plain(said.native[0])
    talker.history[-1] = [{**message, "content": [block]} for block in message["content"]]
    await talker.run_tools(said)
    outcome = await world.ends_whole(talker.agent)
    assert len(outcome.samples) == 1


SLOWLY: dict[str, Any] = {"chunks": (16,), "gap_ms": 10_000}
"""So much comes at once that the rest never does."""
LONG = "One two three four five six seven eight nine ten eleven twelve."


async def interrupted(talker: Talker, kind: str) -> dict[str, Any]:
    """What a client has of an answer when its user stops it in a block of that kind."""
    asked = talker.body(talker.told([user("Count.")]))
    async with talker.client.messages.stream(**asked) as stream:
        async for event in stream:
            if event.type == kind and len(event.snapshot) > 20:
                break
        return {"role": "assistant", "content": plain(stream.current_message_snapshot.content)}


@STAGE.scene(says(LONG, "Hm.", **SLOWLY), says("Good."), says("Done."), streams=[True])
async def a_text_that_the_user_interrupts_trains_as_far_as_it_came(
    world: World, talker: Talker
) -> None:
    kept = await interrupted(talker, "text")
    thought, text = kept["content"]
    text["text"] = text["text"][:13]
    assert thought["signature"]
    await goes_on_from(world, talker, kept)


@STAGE.scene(says("Yes.", LONG, **SLOWLY), says("Good."), says("Done."), streams=[True])
async def a_thought_that_the_user_interrupts_trains_as_far_as_it_came(
    world: World, talker: Talker
) -> None:
    kept = await interrupted(talker, "thinking")
    (thought,) = kept["content"]
    thought["thinking"] = thought["thinking"][:13]
    await goes_on_from(world, talker, kept)


async def goes_on_from(world: World, talker: Talker, kept: dict[str, Any]) -> None:
    (whole,) = await world.recorded(talker.session_id)
    assert not whole.delivered
    talker.history = [talker.told([user("Count.")]), [kept]]
    await talker.ask(user("[Request interrupted by user]"))
    await talker.ask(user("And now?"))
    outcome = await world.end(talker.agent)
    _, part, *others = outcome.turns.values()
    length = len(part.output_ids)
    assert 0 < length < len(whole.output_ids)
    assert part.output_ids.tolist() == whole.output_ids.tolist()[:length]
    dropped = len(whole.output_ids) - len(part.output_ids)
    assert outcome.untrained == {whole.turn_id: {"undelivered": dropped}}
    (sample,) = outcome.samples
    assert [s.turn_id for s in sample.turns] == [turn.turn_id for turn in (part, *others)]
    assert sample.trained == sum(len(turn.output_ids) for turn in (part, *others))


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return played_together(tmp_path_factory.mktemp("scenes"), STAGE.scenes)


@pytest.mark.parametrize("name", STAGE.scenes)
def test_client(name: str, failures: Failures) -> None:
    assert_held(failures, name)
