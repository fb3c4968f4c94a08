"""Histories over HTTP that do not come back as they were sampled: nothing sampled is lost.

Drift: the next prompt begins with the recorded ids, however the model spelled its answer. Foreign
histories: a client that sends other text in place of an answer, or drops it, makes branches; each
answer trains where it was sampled, and the text of others is context. A call that is broken comes
as text, and its turn says so.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.agents import BASH, Agent, Message, calls, says, system, user
from tests.adapters.gateway.outcomes import Outcome
from tests.adapters.gateway.prompts.prompt_setting import renderer, sampled, stock
from tests.adapters.gateway.world import World, play, played
from tests.drift import qwen3
from tests.drift.next_prompts import OPENING, ROWS, Row

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
DRIFTING = [name for name in ROWS if name.split(":")[0] in (*map(str, range(1, 11)), "control")]


@pytest.mark.parametrize("name", DRIFTING)
def test_an_answer_spelled_in_its_own_way_is_gone_on_from_as_sampled(
    tmp_path: Path, name: str
) -> None:
    row = ROWS[name]

    async def story(world: World) -> None:
        if not row.thinking:
            world.renderer = renderer(thinking=False)
            await world.restart()
        for stream, parsed in itertools.product([False, True], repeat=2):
            agent = await world.open()
            agent.tools, agent.stream = list(row.tools), stream
            await _echo(agent, row, parsed=parsed)
            outcome = await world.ends_whole(agent)
            _assert_no_drift(outcome, row)
            if parsed:
                anew = stock().render(agent.messages[:-1], row.tools, thinking=row.thinking)
                assert _left(outcome, anew) == row.breaks

    then = says("It is big.", contains=str(row.then["content"]), times=None)
    play(tmp_path, story, [then, Rule(ids=tuple(sampled(row.sampled)), times=None)])


async def _echo(agent: Agent, row: Row, *, parsed: bool) -> None:
    """Ask, send the answer back, and ask on.

    With `parsed` the client holds the message that a common server makes of the answer, its
    arguments loaded and dumped again; else what the gateway gave.
    """
    echo = await agent.ask(*OPENING)
    ids = [call["id"] for call in echo.get("tool_calls", ())]
    if parsed:
        agent.messages[-1] = qwen3.parse(row.sampled)
        echo = agent.messages[-1]
        for identity, call in zip(ids, echo.get("tool_calls", ()), strict=True):
            call["id"] = identity
    if row.unsent is not None:
        del echo[row.unsent]
    await agent.ask({**row.then, "tool_call_id": ids[0]} if ids else row.then)


def _left(outcome: Outcome, anew: Sequence[int]) -> str:
    """Where a prompt that is rendered anew leaves the first turn, as the table says it."""
    first = next(iter(outcome.turns.values()))
    prompt = outcome.prompts[first.turn_id]
    pairs = enumerate(zip([*prompt, *first.output_ids.tolist()], anew, strict=False))
    at = next((at for at, (old, new) in pairs if old != new), None)
    if at is None:
        return "holds"
    return f"prompt {at} of {len(prompt)}" if at < len(prompt) else f"response {at - len(prompt)}"


def _assert_no_drift(outcome: Outcome, row: Row) -> None:
    first, second = outcome.turns.values()
    prompt = outcome.prompts[first.turn_id]
    assert first.output_ids.tolist() == sampled(row.sampled)
    assert (len(prompt), len(first.output_ids)) == row.sizes[:2]
    whole = prompt + first.output_ids.tolist()
    assert outcome.prompts[second.turn_id][: len(whole)] == whole
    assert (second.base_turn_id, second.kept_ids) == (first.turn_id, len(whole))
    assert second.prompt_built == "bridge"
    assert outcome.attached == ["root", "extend"]
    (sample,) = outcome.samples
    assert [span.turn_id for span in sample.turns] == [first.turn_id, second.turn_id]


def _assert_independent(outcome: Outcome, requests: Sequence[Sequence[Message]]) -> None:
    """Each turn is a sample by itself, after the very text that the client sent."""
    assert outcome.attached == ["root"] * len(requests)
    spans = {span.turn_id: (span, sample) for sample in outcome.samples for span in sample.turns}
    assert len(outcome.samples) == len(spans) == len(requests)
    for turn, request in zip(outcome.turns.values(), requests, strict=True):
        span, sample = spans[turn.turn_id]
        tools = [BASH] if turn.tools_digest else []
        assert sample.tokens[: span.start].tolist() == stock().render(request, tools)
        assert [tuple(run) for run in sample.loss_mask] == [(span.start, len(sample.tokens))]


def flattened(answer: Message) -> Message:
    """An answer as smolagents sends it back: its calls as text, its reasoning gone."""
    made = [{"id": call["id"], **call["function"]} for call in answer["tool_calls"]]
    return said(f"{answer['content']}\nCalling tools:\n{made}")


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def in_parts(message: Message) -> Message:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


async def _flattening(agent: Agent) -> list[list[Message]]:
    """The loop of smolagents; its requests."""
    agent.tools = [BASH]
    messages = [system("You solve tasks."), user("New task:\nHow big is it?")]
    requests = []
    for number in range(3):
        requests.append(list(messages))
        answer = await agent.send([in_parts(message) for message in messages])
        if "tool_calls" in answer:
            messages += [flattened(answer), user(f"Observation:\n{number}M")]
    return requests


LOOKS = [*(calls(f"du {n}", text="I look.", reasoning="Hm.") for n in range(2)), says("2M.", "Hm.")]


@BOTH
def test_calls_that_come_back_as_text_are_context_and_every_answer_trains(
    tmp_path: Path, stream: bool
) -> None:
    async def story(world: World) -> None:
        agent = await world.open(policy="lossless")
        agent.stream = stream
        requests = await _flattening(agent)
        _assert_independent(await world.ends_whole(agent), requests)

    play(tmp_path, story, LOOKS)


@played(*LOOKS)
async def test_a_profile_that_merges_gives_up_the_answers_that_came_back_as_text(
    world: World,
) -> None:
    agent = await world.open(policy="seed")
    await _flattening(agent)
    outcome = await world.ends(agent)
    *given_up, last = outcome.turns.values()
    assert outcome.untrained == {t.turn_id: {"merged": len(t.output_ids)} for t in given_up}
    (sample,) = outcome.samples
    assert [span.turn_id for span in sample.turns] == [last.turn_id]


@pytest.mark.parametrize("policy", ["seed", "lossless"])
@BOTH
def test_a_client_of_which_no_request_extends_another_makes_independent_samples(
    tmp_path: Path, stream: bool, policy: str
) -> None:
    """As aider: instructions ride on the last message, the files move, examples are foreign."""
    head = [system("You edit."), user("Set x."), said("x = 2"), user("Now mine."), said("Ok.")]
    rules = "\n\nAnswer with a patch."

    def files(text: str) -> list[Message]:
        return [user(f"These are the files:\n{text}"), said("Ok, I change only those.")]

    async def story(world: World) -> None:
        agent = await world.open(policy=policy)
        requests, done = list[list[Message]](), list[Message]()
        for number, task in enumerate(["Add a line.", "Add a test.", "Remove it."]):
            edit = [*head, *done, *files(f"version {number}"), user(task + rules)]
            answer = await agent.send(edit, stream=stream)
            commit = [system("Write a commit message."), user(f"diff {number}")]
            await agent.send(commit, stream=False)
            requests += [edit, commit]
            done += [user(task), said(answer["content"].rstrip()), user("Applied."), said("Ok.")]
        _assert_independent(await world.ends_whole(agent), requests)

    edits = [says(f"+ line {n}\n", "Easy.", contains=f"version {n}") for n in range(3)]
    play(tmp_path, story, [*edits, *(says(f"feat: {n}", contains=f"diff {n}") for n in range(3))])


@pytest.mark.parametrize("policy", ["seed", "lossless"])
@BOTH
def test_an_answer_that_the_client_drops_is_a_leaf_and_trains(
    tmp_path: Path, stream: bool, policy: str
) -> None:
    """As mini-swe-agent: without a call the answer is not kept, and a complaint follows."""

    async def story(world: World) -> None:
        agent = await world.open(policy=policy)
        agent.tools, agent.stream = [BASH], stream
        agent.messages = [system("You fix code."), user("Fix it.")]
        for complaint in ("No call was found.", "Still no call."):
            await agent.send(agent.messages)
            agent.messages.append(user(complaint))
        answer = await agent.ask()
        answer["provider_specific_fields"] = {"refusal": None}
        await agent.run_tools(answer)
        outcome = await world.ends_whole(agent)
        first, second, third, last = outcome.turns
        assert outcome.attached == ["root", "root", "root", "extend"]
        found = [[span.turn_id for span in sample.turns] for sample in outcome.samples]
        assert sorted(found) == sorted([[first], [second], [third, last]])

    script = [says("I would fix it."), says("Really.", "Hm."), calls("sed -i s/a/b/ x.py")]
    play(tmp_path, story, [*script, says("Fixed.")])


CALL = '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>'
BROKEN = {
    "bad JSON": Rule(text=CALL.replace("{}", "{ls}")),
    "no name": Rule(text=CALL.replace("name", "tool")),
    "no end": Rule(text=CALL.removesuffix("\n</tool_call>")),
    "cut by length": Rule(text=CALL, length=9),
}


@pytest.mark.parametrize("rule", BROKEN.values(), ids=BROKEN)
def test_a_broken_call_is_given_as_text_and_its_turn_is_ill_formed(
    tmp_path: Path, rule: Rule
) -> None:
    async def story(world: World) -> None:
        for stream, trains in itertools.product([False, True], repeat=2):
            agent = await world.open(policy={"profile": "seed", "train_ill_formed": trains})
            agent.tools, agent.stream = [BASH], stream
            answer = await agent.ask(user("List it."))
            await agent.ask(user("That was no call."))
            outcome = await world.ends(agent)
            first, second = outcome.turns.values()
            text = stock().decode(first.output_ids.tolist()).removesuffix(qwen3.STOP)
            assert (answer["content"], answer.get("tool_calls")) == (text, None)
            assert (first.finish_reason == "length") == (rule.length is not None)
            assert (first.ill_formed, second.ill_formed) == (True, False)
            assert outcome.attached == ["root", "extend"]
            assert [sample.ill_formed for sample in outcome.samples] == [True]
            left = {} if trains else {first.turn_id: {"ill_formed": len(first.output_ids)}}
            assert outcome.untrained == left

    again = says("Sorry.", contains="no call", times=None)
    play(tmp_path, story, [again, msgspec.structs.replace(rule, times=None)])
