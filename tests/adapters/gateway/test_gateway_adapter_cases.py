"""The fifteen cases that slime tests its HTTP adapters with, as they are here.

    case                   there                              here
    anthropic sid          key, bearer or `default`           the key's session; without one 401
    openai sid             metadata, user, bearer, `default`  the same: only the key names it
    anthropic translation  ids of calls dropped               kept: they name the turn
    openai translation     ids of calls dropped               kept
    anthropic, openai      200, clamped, one trained sample   the same, read from the log
      non-stream
    anthropic, openai      first and last events              the same
      stream
    anthropic two turns    prompt 2 starts with prompt 1      and with answer 1 behind it
    turn cap 1             200, then 429                      200, then 403: trying again is vain
    mid-list system        folded into the first user         rendered where it stands
    parse plain            text only                          the same
    parse think            reasoning and text apart           the same
    xml fallback           call taken out, text kept          the same, for the family's markup
    xml unknown tool       left in the text                   given as a call: clients answer it

All cases are told in one world, each in a session of its own.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streams.adapters.dialects import anthropic, openai_chat
from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.agents import BASH, Agent, calls, says, system, user
from tests.adapters.gateway.agents_kinds import MessagesTalker, messages_tool, opened
from tests.adapters.gateway.faults_apis import WIRES, Event, answered, asking, events
from tests.adapters.gateway.prompts.prompt_setting import stock
from tests.adapters.gateway.world import World, play

Case = Callable[[World, str], Awaitable[None]]
CASES: dict[str, tuple[Case, Sequence[Rule]]] = {}
MESSAGES, CHAT = WIRES["messages"], WIRES["chat"]
ANY = Rule(text="Yes.", times=None)
GREETING = {"model": "m", "max_tokens": 9, "messages": [user("Hi")]}


def session_of(name: str) -> str:
    return name.replace(" ", "-")


def case(name: str, *script: Rule) -> Callable[[Case], Case]:
    """A case; the session that it opens is named as it is."""

    def made(story: Case) -> Case:
        key = session_of(name)
        CASES[name] = story, [msgspec.structs.replace(rule, routing_key=key) for rule in script]
        return story

    return made


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseException | None]:
    failed: dict[str, BaseException | None] = {}

    async def told(world: World) -> None:
        for name, (story, _) in CASES.items():
            try:
                await story(world, session_of(name))
            except Exception as error:
                failed[name] = error
            else:
                failed[name] = None

    folder: Path = tmp_path_factory.mktemp("cases")
    play(folder, told, [rule for _, script in CASES.values() for rule in script])
    return failed


# --------------------------------------------------------------------------- sessions


@case("anthropic sid", ANY)
async def anthropic_sid(world: World, name: str) -> None:
    mine = await world.open(session_id=name)
    assert (await answered(world, MESSAGES, GREETING, None, x_api_key=mine.key))[0] == 200
    assert (await answered(world, MESSAGES, GREETING, mine.key))[0] == 200
    both = await answered(world, MESSAGES, GREETING, "of nobody", x_api_key=mine.key)
    assert both[0] == 200
    assert len(await world.turns(name)) == 3
    assert (await answered(world, MESSAGES, GREETING, None))[0] == 401


@case("openai sid", ANY)
async def openai_sid(world: World, name: str) -> None:
    mine, other = await world.open(session_id=name), await world.open()
    named = {"metadata": {"session_id": other.session_id}, "user": other.session_id}
    assert (await answered(world, CHAT, GREETING | named, mine.key))[0] == 200
    assert (await answered(world, CHAT, GREETING | named, None))[0] == 401
    assert len(await world.turns(name)) == 1
    assert await world.turns(other.session_id) == []


# --------------------------------------------------------------------------- translation

RESULT = {"role": "tool", "tool_call_id": "c1", "name": "bash", "content": "a.txt"}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "bash", "arguments": {"command": "ls"}},
}


@case("anthropic translation")
async def anthropic_translation(world: World, name: str) -> None:
    block = {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}}
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    answer = [thinking, {"type": "text", "text": "I look."}, block]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "a.txt"}
    asked = {
        "model": "m",
        "max_tokens": 9,
        "system": "Be terse.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": [result]},
        ],
        "tools": [messages_tool(BASH)],
    }
    call = anthropic.read_call(json.dumps(asked).encode())
    said = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm."}
    assert list(call.messages) == [
        system("Be terse."),
        user("Hi"),
        {**said, "tool_calls": [CALL]},
        RESULT,
    ]
    assert call.tools == (BASH,)


@case("openai translation")
async def openai_translation(world: World, name: str) -> None:
    function = {"name": "bash", "arguments": '{"command": "ls"}'}
    asked = {
        "model": "m",
        "messages": [
            {"role": "developer", "content": "Be terse."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        ],
        "tools": [BASH],
    }
    call = openai_chat.read_call(json.dumps(asked).encode())
    said = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert list(call.messages) == [system("Be terse."), user("Hi"), said, RESULT]
    assert call.tools == (BASH,)


# --------------------------------------------------------------------------- answers


async def one_sample(world: World, agent: Agent, most: int) -> None:
    """The engine was held to the clamp; what it sampled is one trained sample."""
    (entry,) = world.engine.journal.of(agent.session_id)
    outcome = await world.ends_whole(agent)
    (sample,) = outcome.samples
    (turn,) = outcome.turns.values()
    assert len(entry.ids) <= most
    assert sample.tokens[-len(entry.ids) :].tolist() == entry.ids
    assert turn.logprobs is not None
    assert turn.logprobs.tolist() == entry.logprobs
    assert sample.trained == len(entry.ids)
    assert sample.reward == 1.0


@case("anthropic non-stream", says("Yes."))
async def anthropic_non_stream(world: World, name: str) -> None:
    agent = await world.open(session_id=name)
    status, told, _ = await answered(world, MESSAGES, GREETING | {"max_tokens": 7}, agent.key)
    assert (status, told["stop_reason"]) == (200, "end_turn")
    assert told["content"] == [{"type": "text", "text": "Yes."}]
    await one_sample(world, agent, 7)


@case("openai non-stream", says("One two three four five six."))
async def openai_non_stream(world: World, name: str) -> None:
    """The answer is longer than the clamp, to show it."""
    agent = await world.open(session_id=name)
    status, told, _ = await answered(world, CHAT, GREETING | {"max_tokens": 4}, agent.key)
    (choice,) = told["choices"]
    assert (status, told["object"]) == (200, "chat.completion")
    assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "length")
    assert told["usage"]["completion_tokens"] == 4
    await one_sample(world, agent, 4)


async def streamed(world: World, wire: Any, agent: Agent) -> list[Event]:
    async with asking(world, wire, GREETING | {"stream": True}, agent.key) as reply:
        return [event async for event in events(reply)]


@case("anthropic stream", says("Yes."))
async def anthropic_stream(world: World, name: str) -> None:
    agent = await world.open(session_id=name)
    seen = await streamed(world, MESSAGES, agent)
    assert (seen[0]["type"], seen[-1]["type"]) == ("message_start", "message_stop")
    assert MESSAGES.text(seen) == "Yes."


@case("openai stream", says("Yes."))
async def openai_stream(world: World, name: str) -> None:
    agent = await world.open(session_id=name)
    seen = await streamed(world, CHAT, agent)
    first = {name: v for name, v in seen[0]["choices"][0]["delta"].items() if v is not None}
    assert first == {"role": "assistant"}
    assert seen[-1] == {"type": "[DONE]"}
    assert seen[-2]["choices"][0]["finish_reason"] == "stop"
    assert CHAT.text(seen) == "Yes."


@case("anthropic two turns", calls("ls"), says("Done."))
async def anthropic_two_turns(world: World, name: str) -> None:
    talker = await opened(world, "messages", session_id=name)
    talker.tools = [BASH]
    said = await talker.ask(user("Look."))
    assert [(call.name, call.arguments) for call in said.calls] == [("bash", {"command": "ls"})]
    await talker.run_tools(said)
    entries = list(world.engine.journal.of(name))
    assert {entry.routing_key for entry in entries} == {name}
    first, second = (entry.input_ids.tolist() for entry in entries)
    assert second[: len(first) + len(entries[0].ids)] == [*first, *entries[0].ids]
    outcome = await world.ends_whole(talker.agent)
    (sample,) = outcome.samples
    assert 0 < sample.trained < len(sample.tokens)
    assert len(sample.logprobs) == len(sample.tokens)


@case("turn cap 1", ANY)
async def turn_cap(world: World, name: str) -> None:
    agent = await world.open(session_id=name, budgets={"turns": 1})
    for status in (200, 403):
        assert (await answered(world, MESSAGES, GREETING, agent.key))[0] == status


@case("mid-list system", ANY)
async def mid_list_system(world: World, name: str) -> None:
    agent = await world.open(session_id=name)
    messages = [user("Hi"), system("It is late."), user("And now?")]
    for wire in (MESSAGES, CHAT):
        body = {**GREETING, "messages": messages}
        assert (await answered(world, wire, body, agent.key))[0] == 200
    for entry in world.engine.journal.of(name):
        assert entry.input_ids.tolist() == stock().render(messages, [])


# --------------------------------------------------------------------------- parsing


async def said_by(world: World, name: str, *tools: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Text, reasoning and the names of the calls, the same in two APIs."""
    talker = await opened(world, "messages", session_id=name)
    assert isinstance(talker, MessagesTalker)
    talker.tools = list(tools)
    said = await talker.ask(user("Hi"))
    key, body = talker.agent.key, {**GREETING, "max_tokens": 99, "tools": list(tools)}
    _, told, _ = await answered(world, CHAT, body, key)
    message = told["choices"][0]["message"]
    names = [call.name for call in said.calls]
    assert [c["function"]["name"] for c in message.get("tool_calls", ())] == names
    assert (message["content"] or "", message.get("reasoning_content", "")) == (
        said.text,
        said.reasoning,
    )
    return said.text, said.reasoning, names


MARKUP = '<tool_call>\n{{"name": "{}", "arguments": {{"command": "ls"}}}}\n</tool_call>'


@case("parse plain", Rule(text="Just text.", times=None))
async def parse_plain(world: World, name: str) -> None:
    assert await said_by(world, name) == ("Just text.", "", [])


@case("parse think", Rule(text="<think>\nHm.\n</think>\n\nSeen.", times=None))
async def parse_think(world: World, name: str) -> None:
    assert await said_by(world, name) == ("Seen.", "Hm.", [])


@case("xml fallback", Rule(text=f"Before. {MARKUP.format('bash')} After.", times=None))
async def xml_fallback(world: World, name: str) -> None:
    text, _, names = await said_by(world, name, BASH)
    assert (text.split(), names) == (["Before.", "After."], ["bash"])


@case("xml unknown tool", Rule(text=f"Before. {MARKUP.format('other')}", times=None))
async def xml_unknown_tool(world: World, name: str) -> None:
    """Every coding agent answers such a call with an error, from which the model learns."""
    text, _, names = await said_by(world, name, BASH)
    assert (text, names) == ("Before.", ["other"])


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, failures: dict[str, BaseException | None]) -> None:
    failure = failures[name]
    if failure is not None:
        raise failure


def test_there_are_fifteen_cases() -> None:
    assert len(CASES) == 15
