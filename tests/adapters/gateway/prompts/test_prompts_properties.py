"""Any agent, any client: random sessions keep what every prompt promises.

An agent goes on from any answer it ever got, retries, drops answers, puts in its own, compacts and
changes its tools; its client changes answers on their way back; the model samples ids that no
tokenizer would give; the log acknowledges some turns. `Session.build` checks each prompt.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from streams.adapters.dialects.calls import Message
from streams.adapters.gateway.history.tree import RecordedTurn
from streams.adapters.gateway.prompts.building import BuiltPrompt
from tests.adapters.gateway.prompts.prompt_setting import (
    IM_END,
    Session,
    call,
    extends,
    result,
    said,
    sampled,
    system,
    user,
)
from tests.drift.next_prompts import BASH, OPENING, READ
from tests.harness import linearized

TEXTS = st.sampled_from(
    ["Yes.", "Yes.", "Yes.", "The répo 😀 is\n\nbig.", " <|im_end|>", "", "{}", "a  b\n"]
)
TOOLS = st.sampled_from([(BASH,), (BASH,), (BASH,), (BASH, READ), ()])


@dataclass
class Agent:
    draw: Any
    session: Session = field(default_factory=lambda: Session(tools=(BASH,)))
    ways: list[list[Message]] = field(default_factory=lambda: [list(OPENING)])
    """Histories that end with an answer, as the client knows them, or with the opening."""
    asked: list[tuple[list[Message], tuple[Message, ...]]] = field(default_factory=list)

    def step(self) -> None:
        request, tools = self._request()
        built = self.session.build(request, tools)
        self.asked.append((request, tools))
        turn = self._answer(built)
        answer = turn.node.message if turn.node else None
        if answer is not None and self.draw(st.integers(0, 9)) > 0:
            self.ways.append([*request, self._returned(answer)])

    def _request(self) -> tuple[list[Message], tuple[Message, ...]]:
        kind = self.draw(st.sampled_from(["go on", "go on", "go on", "again", "compact", "own"]))
        tools = self.draw(TOOLS)
        if kind == "again" and self.asked:
            again: tuple[list[Message], tuple[Message, ...]] = self.draw(
                st.sampled_from(self.asked)
            )
            return again
        way = self.draw(st.sampled_from(self.ways))
        if kind == "compact" and len(way) > 3:
            way = [way[0], user("Summary."), *way[-1:]]
        if kind == "own":
            way = [*way, user("?"), said(self.draw(TEXTS))]
        return [*way, *self._news(way)], tools

    def _news(self, way: list[Message]) -> list[Message]:
        results = [result(called["id"]) for called in way[-1].get("tool_calls", ())]
        more = [user(self.draw(TEXTS)), system(self.draw(TEXTS))]
        return [*results, *more[: self.draw(st.integers(0 if results else 1, 2))]]

    def _answer(self, built: BuiltPrompt) -> RecordedTurn:
        number = len(self.session.events) + 1
        text, thought = self.draw(TEXTS), self.draw(TEXTS)
        ids = sampled(f"<think>\n{thought}\n</think>\n\n") if thought.strip() else []
        ids += [token for letter in text for token in sampled(letter)]
        calls = [call(f"t{number}.{at}", n=at) for at in range(self.draw(st.integers(0, 2)))]
        for called in calls:
            body = json.dumps(called["function"])
            ids += sampled(f"<tool_call>{body}</tool_call>")
        if self.draw(st.booleans()):
            ids.append(IM_END)
        self.session.acknowledges = self.draw(st.booleans())
        return self.session.answer(built, ids, said(text, thought.strip(), *calls))

    def _returned(self, answer: Message) -> Message:
        """What a client makes of an answer; it stays the same answer."""
        returned = dict(answer)
        if self.draw(st.booleans()):
            returned.pop("reasoning_content", None)
        if self.draw(st.booleans()):
            returned["content"] = returned["content"].strip()
        if self.draw(st.booleans()) and "tool_calls" in returned:
            returned["tool_calls"] = [
                {**called, "function": {"name": "other", "arguments": {"n": [], "x": 1}}}
                for called in returned["tool_calls"]
            ]
        return returned


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_prompts_are_sound_and_the_processor_reads_them_all(data: st.DataObject) -> None:
    agent = Agent(data.draw)
    for _ in range(data.draw(st.integers(1, 14))):
        agent.step()
    events = [json.loads(codec.to_json(event)) for event in agent.session.events]
    assert linearized(events, default_reward=1.0).dead_letters == []

    # A gateway that reads the log instead builds the same prompts.
    read = Session()
    for position, event in enumerate(agent.session.events):
        read.history.record(event, position=position)
    for request, tools in agent.asked:
        here, there = agent.session.build(request, tools), read.build(request, tools)
        assert here.ids.tolist() == there.ids.tolist()
        assert here.messages == there.messages


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_agent_that_only_goes_on_never_loses_a_token(data: st.DataObject) -> None:
    agent = Agent(data.draw)
    request = list(OPENING)
    last: RecordedTurn | None = None
    for _ in range(data.draw(st.integers(2, 8))):
        built = agent.session.build(request)
        if last is not None:
            assert extends(built, agent.session, last)
            assert built.base is last
        last = agent._answer(built)
        assert last.node is not None
        assert last.node.message is not None
        answer = agent._returned(last.node.message)
        request = [*request, answer, *agent._news([answer])]
