"""Whatever an engine samples is recorded as it is; what goes wrong is said without its words."""

import random
from pathlib import Path

import openai
import pytest

from streams.adapters.engines.scripted import Failure, Rule
from tests.adapters.gateway.agents import BASH, says, user
from tests.adapters.gateway.world import World, play, played

SPECIAL = (151643, 151644, 151645, 151657, 151658, 151667, 151668)
BEYOND = (151_700, 151_935)
"""In the model's vocabulary, but no token of the tokenizer's."""


def any_ids(seed: int) -> tuple[int, ...]:
    chance = random.Random(seed)
    kinds = [range(151_643), range(256), SPECIAL, SPECIAL, BEYOND]
    return tuple(chance.choice(chance.choice(kinds)) for _ in range(chance.randrange(1, 40)))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_any_ids_are_recorded_and_gone_on_from(tmp_path: Path, stream: bool) -> None:
    rules = [Rule(ids=any_ids(seed), chunks=(1 + seed % 3,)) for seed in range(40)]

    async def story(world: World) -> None:
        agent = await world.open()
        agent.tools, agent.stream = [BASH], stream
        for number in range(len(rules)):
            agent.messages += [user(f"Number {number}")]
            answer = await agent.send(agent.messages)
            agent.messages.append(answer)
            agent.messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
                for call in answer.get("tool_calls", ())
            ]
        outcome = await world.ends(agent)
        assert set(outcome.attached) == {"root", "extend"}
        assert outcome.attached.count("root") == 1
        assert outcome.closed.refused == 0

    play(tmp_path, story, rules)


@pytest.mark.parametrize(
    "arguments",
    ['{"command": "\\ud83d"}', '{"command": 1e999}', '{"a": ' + "[" * 900 + "]" * 900 + "}", "{}"],
    ids=["half a character", "too large", "deep", "empty"],
)
def test_arguments_that_are_hard_to_write_are_recorded(tmp_path: Path, arguments: str) -> None:
    call = f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'

    async def story(world: World) -> None:
        agent = await world.open()
        agent.tools = [BASH]
        answer = await agent.ask(user("Hi"))
        if "tool_calls" in answer:
            await agent.run_tools(answer)
        else:
            await agent.ask(user("And?"))
        outcome = await world.ends(agent)
        assert outcome.attached == ["root", "extend"]

    play(tmp_path, story, [Rule(text=call), says("Done.")])


@pytest.mark.parametrize(
    "logprobs", [(-0.5, float("nan")), (-0.5, float("-inf"))], ids=["no number", "minus infinity"]
)
def test_logprobs_that_cannot_train_are_the_engines_failure(
    tmp_path: Path, logprobs: tuple[float, ...]
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        with pytest.raises(openai.APIStatusError, match="logprob") as caught:
            await agent.ask(user("Hi"))
        assert caught.value.status_code == 502
        (turn,) = await world.turns(agent.session_id)
        assert (turn.output_ids.tolist(), turn.trainable) == ([40], False)

    play(tmp_path, story, [Rule(ids=(40, 41), logprobs=logprobs)])


@played(says("Yes."))
async def test_a_client_that_asks_for_a_schema_gets_a_turn_that_does_not_train(
    world: World,
) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"), response_format={"type": "json_object"})
    outcome = await world.ends(agent)
    ((_, reasons),) = outcome.untrained.items()
    assert set(reasons) == {"constrained"}


def test_no_word_of_a_conversation_is_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        with pytest.raises(openai.APIError):
            await agent.send([user("rhubarb")])
        with pytest.raises(openai.APIError):
            await agent.send([user("rhubarb")], tool_choice="rhubarb")
        with pytest.raises(openai.APIError):
            await agent.send([{"role": "rhubarb", "content": "rhubarb"}])
        world.log.away = "lost"
        with pytest.raises(openai.APIError):
            await agent.send([user("rhubarb")])
        world.log.away = None

    failing = says("rhubarb", fail=Failure(after=1))
    play(tmp_path, story, [failing, says("rhubarb")])
    said = capfd.readouterr().err
    assert said.count('"what": "refused"') == 4
    assert "rhubarb" not in said
