"""Records are frozen and read back equal; whatever an environment gives can be written."""

import enum
import json
from collections import Counter, OrderedDict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from openai.types.chat import ChatCompletionMessage

from schemas import codec
from streams.adapters.environments import dump, load, recorded
from streams.adapters.environments.steps import Unreadable, of_step, of_time_step
from streams.core.content import NoMessage, message_from, messages_from, text_of
from streams.core.plain_values import plain
from tests.adapters.environments.toys import Countdown, Walk
from tests.adapters.environments.world import World


def test_a_record_cannot_be_changed_and_reads_back_equal(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.recorder() as recorder:
        env = recorded(Countdown(3, 0.5), recorder)
        env.reset()
        for _ in range(3):
            env.step(2)
        record = env.record
    assert load(dump(record)) == record
    assert isinstance(record.steps, tuple)
    assert [step.kind for step in record.steps] == ["first", "mid", "mid", "last"]
    assert (record.end_status, record.episode_return, record.final_reward) == (
        "truncated",
        3.0,
        1.0,
    )
    for frozen, name in ((record, "end_status"), (record.steps[0], "reward")):
        with pytest.raises(AttributeError, match="immutable type"):
            setattr(frozen, name, None)
    for event in world.only().events:
        assert codec.from_json(codec.to_json(event)) == event
        with pytest.raises(AttributeError, match="immutable type"):
            event.v = 2  # type: ignore[misc]


def test_records_of_two_episodes_share_nothing(tmp_path: Path) -> None:
    with World(tmp_path).recorder() as recorder:
        env = recorded(Walk(2), recorder)
        env.reset()
        env.step(1)
        before = env.record
        env.step(1)
        env.reset()
        assert (len(before.steps), before.end_status) == (2, None)
        assert env.record.session_id != before.session_id
        assert len(env.record.steps) == 1


class Vector(Countdown):
    """A reward of several numbers."""

    def step(self, action: Any) -> Any:
        return super().step(action)._replace(reward=np.array([1.0, 0.5, -0.25]))


def test_a_reward_of_several_numbers_stays_several_beside_its_score(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.recorder() as recorder:
        env = recorded(Vector(2), recorder)
        env.reset()
        env.step(1)
        env.step(1)
        record = env.record
    told = world.only()
    assert told.turns[0].reward == {"score": 1.25, "terms": [1.0, 0.5, -0.25]}
    assert told.ended.reward == {
        "score": 2.5,
        "return": [2.0, 1.0, -0.5],
        "final_reward": [1.0, 0.5, -0.25],
        "steps": 2,
    }
    assert load(dump(record)) == record
    outcomes, _ = world.processed(1)
    (outcome,) = outcomes.values()
    payload = json.loads(bytes(outcome.reward_payload), parse_constant=pytest.fail)
    assert sum(payload["return"]) == payload["score"] == outcome.reward


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: Any


class Shape(msgspec.Struct):
    sides: int


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no text either")


PLAIN: dict[str, tuple[Any, Any]] = {
    "numpy scalars": ((np.int64(3), np.float32(0.5), np.bool_(True)), [3, 0.5, True]),
    "a small array": (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
    "a set": ({3, 1, 2}, [1, 2, 3]),
    "a dataclass": (Point(1, (2,)), {"x": 1, "y": [2]}),
    "a struct": (Shape(3), {"sides": 3}),
    "an enum": ({"c": Colour.RED}, {"c": "red"}),
    "no number": ([float("nan"), float("inf"), np.float64("-inf")], [None, None, None]),
    "bytes": (b"\x01\xff", "01ff"),
    "a large number": ([2**80, -(2**80)], [str(2**80), str(-(2**80))]),
    "keys that are no text": ({1: "a", (2, 3): "b"}, {"1": "a", "[2, 3]": "b"}),
    "a lone surrogate": ("a\ud800b", "a?b"),
    "nothing": (None, None),
    "a mapping of another kind": (OrderedDict(a=1), {"a": 1}),
}


@pytest.mark.parametrize(("value", "expected"), PLAIN.values(), ids=PLAIN)
def test_a_value_becomes_what_json_has(value: Any, expected: Any) -> None:
    strange: Counter[str] = Counter()
    made = plain(value, strange)
    assert made == expected
    assert json.loads(json.dumps(made, allow_nan=False)) == expected
    assert msgspec.json.decode(msgspec.json.encode(made)) == expected
    assert not strange


def test_a_large_array_is_told_by_its_digest() -> None:
    frame = np.zeros((210, 160, 3), np.uint8)
    told = plain(frame)
    assert (told["array"], told["dtype"]) == ([210, 160, 3], "uint8")
    frame[0, 0, 0] = 1
    assert plain(frame)["digest"] != told["digest"]


def test_what_has_no_form_becomes_text_and_is_counted() -> None:
    strange: Counter[str] = Counter()
    assert "object" in plain(object(), strange)
    assert plain(Odd(), strange) == "<Odd without a text: RuntimeError>"
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    json.dumps(plain(deep, strange))
    assert strange == {"object": 1, "Odd": 1, "list": 1}


def test_strange_observations_are_published_and_counted_and_the_processor_goes_on(
    tmp_path: Path,
) -> None:
    class Strange(Walk):
        def step(self, action: int) -> Any:
            _, *rest = super().step(action)
            return ({"point": Point(1, Odd()), "more": {np.int8(1)}}, *rest)

    world = World(tmp_path)
    with world.recorder() as recorder:
        env = recorded(Strange(2), recorder)
        env.reset()
        env.step(np.int64(1))
        env.step(1)
        assert recorder.strange == {"Odd": 2}
    message = json.loads(bytes(world.only().turns[1].prompt_messages[-1]))
    assert json.loads(message["content"]) == {
        "point": {"x": 1, "y": "<Odd without a text: RuntimeError>"},
        "more": [1],
    }
    outcomes, _ = world.processed(1)
    assert [one.end_status for one in outcomes.values()] == ["completed"]


@dataclass
class Looks:
    content: str
    finish: str = "done"


MESSAGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "a text": ("hi", {"role": "assistant", "content": "hi"}),
    "an object": ({"content": "hi", "x": 1}, {"role": "assistant", "content": "hi", "x": 1}),
    "nothing": (None, {"role": "assistant", "content": ""}),
    "something with content": (Looks("hi"), {"role": "assistant", "content": "hi"}),
    "an SDK's message": (
        ChatCompletionMessage(role="assistant", content="hi"),
        {"role": "assistant", "content": "hi"},
    ),
    "a call alone": (
        SimpleNamespace(role="assistant", content=None, tool_calls=[{"id": "c"}]),
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
    ),
}


@pytest.mark.parametrize(("value", "expected"), MESSAGES.values(), ids=MESSAGES)
def test_what_an_agent_gave_becomes_a_message(
    tmp_path: Path, value: Any, expected: dict[str, Any]
) -> None:
    assert message_from(value) == expected
    world = World(tmp_path)
    with world.recorder() as recorder:
        env = recorded(Walk(), recorder)
        env.reset()
        env.end("rejected", final_message=value)
    if value is not None:  # nothing given is the last there is
        assert json.loads(bytes(world.only().ended.final_message)) == expected


@pytest.mark.parametrize("value", [7, object(), {"a": 1}, [1, 2]])
def test_anything_else_is_refused_with_a_reason(value: Any) -> None:
    with pytest.raises(NoMessage, match="no message: give a text"):
        message_from(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(7, "7"), (np.longdouble(7), "7.0"), ({"a": 1}, '{"a": 1}'), (["a", 2], '["a", 2]')],
)
def test_a_final_message_that_is_none_is_its_text_and_costs_nothing(
    tmp_path: Path, value: Any, text: str
) -> None:
    world = World(tmp_path)
    with world.recorder() as recorder:
        env = recorded(Walk(), recorder)
        env.reset()
        env.end("completed", reward=1.0, final_message=value)
    ended = world.only().ended
    assert (ended.end_status, ended.reward) == ("completed", 1.0)
    message = {"role": "assistant", "content": text}
    assert json.loads(bytes(ended.final_message)) == message


TEXTS: dict[str, tuple[Any, str]] = {
    "text": ("hi", "hi"),
    "nothing": (None, ""),
    "a number": (7, "7"),
    "parts": ([{"type": "text", "text": "a"}, {"type": "image"}, "b", {"text": "c"}], "abc"),
    "one part": ({"type": "text", "text": "a"}, "a"),
}


@pytest.mark.parametrize(("content", "text"), TEXTS.values(), ids=TEXTS)
def test_what_a_message_says_is_one_rule(content: Any, text: str) -> None:
    assert text_of({"role": "user", "content": content}) == text
    if not isinstance(content, dict):
        assert text_of(content) == text


def test_an_observation_of_messages_is_those_messages() -> None:
    two = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert messages_from(two, "user") == two
    assert messages_from({"messages": two}, "user") == two
    assert messages_from(SimpleNamespace(messages=two), "user") == two
    assert messages_from(two[1], "user") == [two[1]]
    assert messages_from([1, 2], "user") == [{"role": "user", "content": "[1, 2]"}]
    assert messages_from([], "user") == [{"role": "user", "content": "[]"}]


@pytest.mark.parametrize("kind", ["LAST", 2, SimpleNamespace(name="LAST")])
def test_the_type_of_a_time_step_is_read_by_name_or_number(kind: Any) -> None:
    step = SimpleNamespace(step_type=kind, reward=1, discount=None, observation="x")
    assert of_time_step(step).status == "completed"


@pytest.mark.parametrize(
    "result", [None, (1, 2, 3), SimpleNamespace(step_type="END", observation=1, reward=0)]
)
def test_an_answer_of_no_protocol_is_refused(result: Any) -> None:
    with pytest.raises(Unreadable, match=r"neither"):
        of_step(result)
