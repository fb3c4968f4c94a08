"""Model calls inside an environment become turns that train, without a gateway."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.bad_record import BadRecord
from schemas.events import Sampling, Turn
from streams.adapters.environments import (
    MustReset,
    recorded,
    tell_turn,
    tell_turn_async,
)
from streams.core.content import NoMessage
from streams.errors import TooLarge
from tests.adapters.environments.toys import Chat, Walk, said
from tests.adapters.environments.world import Told, World

TOOLS = [{"type": "function", "function": {"name": "look"}}]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Model:
    """Answers a growing conversation with ids that only ever follow what it saw and said."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.calls = 0

    def answer(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls += 1
        prompt = [*self.ids, 100 + self.calls, 200 + self.calls]
        output = [1000 + self.calls, 2000 + self.calls, 3000 + self.calls]
        self.ids = prompt + output
        return {
            "prompt_messages": messages,
            "prompt_ids": prompt,
            "output_ids": output,
            "logprobs": [-0.5, -0.25, -0.125],
            "response_message": said(f"answer {self.calls}"),
            "finish_reason": "stop",
        }


def whole_prompts(told: Told) -> list[tuple[list[Any], list[int]]]:
    """Each turn's messages and ids, joined with its base by hand."""
    known: dict[str, tuple[list[Any], list[int]]] = {}
    prompts = []
    for turn in told.turns:
        messages, ids = known.get(turn.base_turn_id or "", ([], []))
        messages = messages[: turn.kept_messages or 0] + read(turn.prompt_messages)
        ids = ids[: turn.kept_ids or 0] + turn.prompt_ids.tolist()
        prompts.append((messages, ids))
        response = json.loads(bytes(turn.response_message))
        known[turn.turn_id] = [*messages, response], ids + turn.output_ids.tolist()
    return prompts


def read(messages: Any) -> list[Any]:
    return [json.loads(bytes(message)) for message in messages]


def test_an_environments_own_loop_trains_every_token_it_drew(world: World) -> None:
    model, inner = Model(), Chat(turns=3)
    given: list[tuple[list[Any], list[int]]] = []

    async def work() -> None:
        env = recorded(inner, recorder, fields={"group_id": "g", "split": "train"})
        step = await env.reset()
        while not step.last():
            call = model.answer(step.observation)
            given.append((json.loads(json.dumps(step.observation)), call["prompt_ids"]))
            await env.turn(**call)
            step = await env.step(call["response_message"])

    with world.recorder() as recorder:
        asyncio.run(work())
    told = world.only()
    assert told.kinds == [
        "session_opened",
        *["turn", "reward"] * 3,
        "session_ended",
    ]
    assert whole_prompts(told) == given
    assert [turn.base_turn_id for turn in told.turns] == [None, "t1", "t2"]
    assert [turn.prompt_ids.size for turn in told.turns] == [2, 2, 2]
    assert [(reward.turn_id, reward.reward) for reward in told.rewards] == [
        ("t1", 0.5),
        ("t2", 0.5),
        ("t3", 1.0),
    ]
    assert bytes(told.ended.final_message) == b'{"role":"assistant","content":"answer 3"}'
    outcomes, (sample,) = world.processed(1)
    (outcome,) = outcomes.values()
    assert (outcome.generated, outcome.trained, outcome.refused) == (9, 9, 0)
    assert [row.attach for row in outcome.ledger] == ["root", "extend", "extend"]
    assert sample.tokens.tolist() == model.ids
    assert sample.loss_mask == [(2, 5), (7, 10), (12, 15)]
    assert sample.turn_rewards == {"t1": 0.5, "t2": 0.5, "t3": 1.0}
    assert (sample.reward, sample.group_id) == (2.0, "g")
    assert sample.logprobs.tolist() == [0, 0, -0.5, -0.25, -0.125] * 3


def test_what_an_environment_does_to_its_messages_later_changes_no_record(world: World) -> None:
    shared: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    with world.recorder() as recorder:
        group = [recorded(Walk(2), recorder) for _ in range(4)]
        for env in group:
            env.reset()
            env.turn(prompt_messages=shared, prompt_ids=[1], output_ids=[2])
        shared[0]["content"][0]["text"] = "changed"
        shared.append({"role": "user", "content": "grown"})
        for env in group:
            env.close()
    prompts = [read(one.turns[0].prompt_messages) for one in world.told().values()]
    assert prompts == [[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]] * 4


def test_a_step_without_a_call_has_the_prompt_as_it_was_before_the_step(world: World) -> None:
    async def work() -> None:
        env = recorded(inner, recorder)
        await env.reset()
        await env.step(said("one"))
        await env.step(said("two"))
        await env.end("closed")

    inner = Chat(turns=8)
    with world.recorder() as recorder:
        asyncio.run(work())
    prompts = [messages for messages, _ in whole_prompts(world.only())]
    assert [len(messages) for messages in prompts] == [1, 3]
    assert len(inner.history) == 5
    assert prompts[1] == inner.history[:3]


class Thinker(Walk):
    """Calls its model inside of `step`, where it knows of no wrapper."""

    model = Model()

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        tell_turn(**self.model.answer([{"role": "user", "content": str(self.at)}]))
        return super().step(action)


def test_code_inside_an_environment_tells_its_calls_without_knowing_who_records(
    world: World,
) -> None:
    async def inside() -> None:
        class Deep(Chat):
            async def step(self, action: dict[str, Any]) -> Any:
                model = Model()
                task = asyncio.create_task(tell_turn_async(**model.answer(self.history)))
                await task  # from a task of its own, too
                return await super().step(action)

        env = recorded(Deep(turns=1), recorder)
        await env.reset()
        await env.step(said("on"))

    with world.recorder() as recorder:
        env = recorded(Thinker(2), recorder)
        env.reset()
        env.step(1)
        env.step(1)
        asyncio.run(inside())
    thinker, deep = world.told().values()
    assert [turn.output_ids.size for turn in thinker.turns] == [3, 3]
    assert [reward.turn_id for reward in thinker.rewards] == ["t1", "t2"]
    assert [turn.output_ids.size for turn in deep.turns] == [3]


def test_every_field_of_a_turn_may_be_told(world: World) -> None:
    call = Model().answer([{"role": "user", "content": "hi"}])
    with world.recorder() as recorder:
        env = recorded(Walk(2), recorder)
        env.reset()
        env.turn(
            **call | {"finish_reason": "length", "output_ids": np.array([5, 6, 7])},
            tools=TOOLS,
            model="m",
            weight_versions=[(3, 2), (4, 1)],
            sampling=Sampling(temperature=1.0),
            untrained_runs=[(0, 1, "forced")],
            started_ms=5,
        )
        env.turn(**call, tools=TOOLS, trainable=False, ill_formed=True)
        env.end("parse_error", reward=0.0)
    first, second = world.only().turns
    assert (first.finish_reason, first.model, first.started_ms) == ("length", "m", 5)
    assert (first.weight_versions, first.sampling) == ([(3, 2), (4, 1)], Sampling(temperature=1.0))
    assert json.loads(bytes(first.tools)) == TOOLS
    assert (bool(second.tools), second.tools_digest) == (False, first.tools_digest)
    assert (second.trainable, second.ill_formed) == (False, True)
    outcomes, samples = world.processed(1)
    (outcome,) = outcomes.values()
    assert outcome.end_status == "parse_error"
    assert [row.untrained for row in outcome.ledger] == [{"forced": 1}, {"not_trainable": 3}]
    assert [sample.trained for sample in samples] == [2]


def test_calls_that_take_turns_are_each_based_on_their_own_conversation(world: World) -> None:
    main, helper = Model(), Model()
    helper.ids = [9, 9, 9]
    with world.recorder() as recorder:
        env = recorded(Walk(8), recorder)
        env.reset()
        talks: dict[str, list[dict[str, Any]]] = {"main": [], "helper": []}
        for name, model in [("main", main), ("helper", helper)] * 3:
            talks[name].append({"role": "user", "content": f"{name} {len(talks[name])}"})
            call = model.answer(talks[name])
            env.turn(**call, agent_id=name)
            talks[name].append(call["response_message"])
        env.end(reward=1.0)
    told = world.only()
    assert [turn.base_turn_id for turn in told.turns] == [None, None, "t1", "t2", "t3", "t4"]
    outcomes, samples = world.processed(1)
    (outcome,) = outcomes.values()
    assert (outcome.trained, outcome.generated, len(samples)) == (18, 18, 2)
    assert {tuple(sample.tokens.tolist()) for sample in samples} == {
        tuple(main.ids),
        tuple(helper.ids),
    }


def test_what_another_party_said_is_never_trained(world: World) -> None:
    call = Model().answer(
        [
            {"role": "user", "content": "your move"},
            {"role": "user", "name": "opponent", "content": "e4"},
        ]
    )
    with world.recorder() as recorder:
        env = recorded(Walk(8), recorder)
        env.reset()
        env.turn(**call)
        env.end(reward=1.0)
    _, (sample,) = world.processed(1)
    assert sample.tokens[2:].tolist() == call["output_ids"]
    assert sample.loss_mask == [(2, 5)]


BAD: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "other lengths": ({"logprobs": [-1.0]}, BadRecord),
    "a logprob that is no number": ({"logprobs": [0.0, float("nan"), 0.0]}, BadRecord),
    "a negative id": ({"prompt_ids": [-1]}, BadRecord),
    "an id too large": ({"output_ids": [2**31]}, BadRecord),
    "ids that are none": ({"output_ids": [0.5]}, BadRecord),
    "no message": ({"prompt_messages": []}, BadRecord),
    "a message that is none": ({"prompt_messages": [7]}, NoMessage),
    "an answer that is none": ({"response_message": object()}, NoMessage),
    "a field that is none": ({"temprature": 1.0}, TypeError),
    "too large": ({"raw_prompt": "x" * 9_000_000}, TooLarge),
}


@pytest.mark.parametrize(("wrong", "error"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("lenient", [False, True])
def test_a_call_that_a_reader_would_refuse_is_never_published(
    world: World, wrong: dict[str, Any], error: type[Exception], lenient: bool
) -> None:
    call = Model().answer([{"role": "user", "content": "hi"}])
    with world.recorder(lenient=lenient) as recorder:
        env = recorded(Walk(8), recorder)
        env.reset()
        env.turn(**call)
        if lenient:
            assert env.turn(**call | wrong) is None
            assert recorder.counts["unrecorded_turns"] == 1
            env.turn(**call)
        else:
            with pytest.raises(error):
                env.turn(**call | wrong)
            with pytest.raises(MustReset):
                env.step(1)
    told = world.only()
    assert [turn.seq for turn in told.turns] == ([1, 2] if lenient else [1])
    assert told.ended.end_status == ("closed" if lenient else "error")
    world.processed(1)
    assert world.letters() == []


def test_a_call_outside_of_an_episode_is_an_error(world: World) -> None:
    call = Model().answer([{"role": "user", "content": "hi"}])
    with world.recorder() as recorder:
        env = recorded(Walk(1), recorder)
        env.reset()
        env.step(1)
        with pytest.raises(MustReset, match="is over"):
            env.turn(**call)
    assert len(world.only().turns) == 1


def test_turns_cost_what_is_new(world: World) -> None:
    model, talk = Model(), [{"role": "user", "content": "x" * 50}]
    with world.recorder() as recorder:
        env = recorded(Walk(8), recorder)
        env.reset()
        for _ in range(200):
            call = model.answer(talk)
            env.turn(**call)
            talk += [call["response_message"], {"role": "user", "content": "x" * 50}]
        env.end(reward=1.0)
    told = world.only()
    sizes = [len(msgspec.msgpack.encode(turn, enc_hook=repr)) for turn in told.turns]
    assert max(sizes[1:]) < 2 * min(sizes[1:])
    _, prompts = zip(*whole_prompts(told), strict=True)
    assert [len(prompt) for prompt in prompts] == [2 + 5 * n for n in range(200)]
    assert isinstance(told.turns[-1], Turn)
    outcomes, _ = world.processed(1)
    (outcome,) = outcomes.values()
    assert (outcome.trained, outcome.refused) == (600, 0)


class Talker(Walk):
    """Grows its own history in place, and ends by a budget or by an answer it cannot read."""

    def __init__(self, how: str) -> None:
        super().__init__(3)
        self.how = how
        self.history: list[dict[str, Any]] = []

    def reset(self, **words: Any) -> Any:
        self.history = [{"role": "user", "content": "begin"}]
        return self.history, super().reset(**words)[1]

    def step(self, action: Any) -> Any:
        self.history += [action, {"role": "user", "content": "on"}]
        self.history[0]["content"] = "rewritten"
        over = len(self.history) > 3
        return self.history, 0.0, False, over and self.how == "budget", {"tokens_used": 77}


@pytest.mark.parametrize("told_by", ["a call", "the step"])
@pytest.mark.parametrize(("how", "status"), [("budget", "truncated"), ("parse", "parse_error")])
def test_the_last_prompt_is_untouched_however_the_episode_ends(
    world: World, how: str, status: str, told_by: str
) -> None:
    with world.recorder() as recorder:
        env = recorded(Talker(how), recorder)
        history, _ = env.reset()
        before = []
        for _ in range(2):
            before.append(json.loads(json.dumps(history)))
            if told_by == "a call":
                env.turn(prompt_messages=history, prompt_ids=[1], output_ids=[2])
            history, _, _, over, _ = env.step(said("not a call"))
        if not over:
            env.end("parse_error", reward=0.0)
    told = world.only()
    # The environment rewrote its first message after the first step.
    assert [read(turn.prompt_messages) for turn in told.turns] == before
    assert told.ended.end_status == status
    if how == "budget":
        reward = told.ended.reward
        assert isinstance(reward, dict)
        assert reward["metrics"] == {"tokens_used": 77}
