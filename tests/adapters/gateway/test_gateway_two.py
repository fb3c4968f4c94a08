"""Two gateways on one session: each goes on from what the other recorded, in the same tokens.

Nobody tells the one what the other writes here: the followers are never started. What is not
known is read from the log when a request names it, or seems to come from elsewhere.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from schemas.events import Turn
from streams.adapters.engines.scripted import Rule
from streams.adapters.gateway.following import Follower
from streams.adapters.gateway.server import Gateway
from tests.adapters.gateway.agents import BASH, calls, says, system, user
from tests.adapters.gateway.agents_kinds import KINDS, Talker, opened, responses_tool
from tests.adapters.gateway.test_gateway_mends_ends import another
from tests.adapters.gateway.world import World, play, played

pytestmark = pytest.mark.usefixtures("nobody_tells")
DRIFT = 3
"""Rendered anew, such an answer would have other tokens."""


@pytest.fixture
def nobody_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Follower.start

    def start_unless_turns(follower: Follower) -> None:
        if not follower._topic.endswith("turns"):
            start(follower)

    monkeypatch.setattr(Follower, "start", start_unless_turns)


class Pair:
    """An agent between two gateways."""

    def __init__(self, talker: Talker, first: Gateway, second: Gateway) -> None:
        own = talker.client
        elsewhere = str(own.base_url).replace(first.base_url, second.base_url)
        self.clients = [own, own.copy(base_url=elsewhere)]
        self.talker = talker
        self.second = second

    def at(self, number: int) -> Talker:
        """The agent, its next request going to that gateway."""
        self.talker.agent.client = self.clients[number]
        return self.talker


@contextlib.asynccontextmanager
async def pair(world: World, kind: str = "chat", *, stream: bool = False) -> AsyncIterator[Pair]:
    async with another(world) as second:
        yield Pair(await opened(world, kind, stream=stream), world.gateway, second)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_in_words_are_found_wherever_they_were_given(
    tmp_path: Path, kind: str, stream: bool
) -> None:
    async def story(world: World) -> None:
        async with pair(world, kind, stream=stream) as both:
            await both.at(0).ask(system("You are an agent."), user("Question 0?"))
            for number in range(1, 6):
                await both.at(number % 2).ask(user(f"Question {number}?"))
            outcome = await world.ends_whole(both.at(0).agent)
        assert outcome.attached == ["root", *["extend"] * 5]
        assert len(outcome.samples) == 1
        turns = list(outcome.turns.values())
        assert [turn.seq for turn in turns] == [1, 1, 2, 2, 3, 3]
        assert len({turn.source for turn in turns}) == 2
        for before, turn in itertools.pairwise(turns):
            assert turn.base_turn_id == before.turn_id
            whole = len(outcome.prompts[before.turn_id]) + len(before.output_ids)
            assert turn.kept_ids == whole

    play(tmp_path, story, [says(f"Answer {n}, in words.", drift=DRIFT) for n in range(6)])


@pytest.mark.parametrize("kind", KINDS)
def test_calls_are_found_wherever_they_were_made(tmp_path: Path, kind: str) -> None:
    async def story(world: World) -> None:
        async with pair(world, kind) as both:
            said = await both.at(0).ask(user("Hi"))
            said = await both.at(1).run_tools(said)
            await both.at(0).run_tools(said)
            outcome = await world.ends_whole(both.at(0).agent)
        assert outcome.attached == ["root", "extend", "extend"]
        assert len(outcome.samples) == 1

    play(tmp_path, story, [calls("ls", "du"), calls("pwd", reasoning="Hm."), says("Done.")])


ASKED: dict[str, Any] = {"model": "m", "tools": [responses_tool(BASH)]}


@played(says("One.", "Hm."), says("Two."), says("Three."))
async def test_an_answer_of_the_other_gateway_is_gone_on_from_by_its_id(world: World) -> None:
    async with pair(world, "responses") as both:
        first = await both.at(0).client.responses.create(**ASKED, input="Hi")
        there = both.at(1).client.responses
        second = await there.create(**ASKED, input="And?", previous_response_id=first.id)
        await both.at(0).client.responses.create(
            **ASKED, input="And?", previous_response_id=second.id
        )
        outcome = await world.ends_whole(both.at(0).agent)
    assert outcome.attached == ["root", "extend", "extend"]


@played(says("One.", "Hm."), says("Two."))
async def test_an_item_of_the_other_gateway_can_be_named(world: World) -> None:
    async with pair(world, "responses") as both:
        asked = {"role": "user", "content": "Hi"}
        first = await both.at(0).client.responses.create(**ASKED, input=[asked])
        # Known there before the answer is: the answer itself has to be looked for.
        named = [{"type": "item_reference", "id": item.id} for item in first.output]
        again = {"role": "user", "content": "And?"}
        await both.at(1).client.responses.create(**ASKED, input=[asked, *named, again])
        outcome = await world.ends_whole(both.at(0).agent)
    assert outcome.attached == ["root", "extend"]


@played(says("One."))
async def test_an_id_that_is_not_ours_is_refused_without_a_look_into_the_log(world: World) -> None:
    async with pair(world, "responses") as both:
        with pytest.raises(openai.BadRequestError, match="was not given in this session"):
            await both.at(0).client.responses.create(
                **ASKED, input="Hi", previous_response_id="resp_of_somebody_else"
            )


def test_the_same_request_at_both_at_once_trains_nothing_twice(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with pair(world) as both:
            await both.at(0).ask(user("Hi"))
            history = [*both.talker.history, [user("More?")]]
            asking = []
            for number in (0, 1):
                asking.append(asyncio.create_task(both.at(number).send(history)))
                await asyncio.sleep(0)  # it has taken its client
            one, two = await asyncio.gather(*asking)
            assert one.text != two.text
            # Each is gone on from at the gateway that did not give it.
            for number, said in enumerate((two, one)):
                await both.at(number).send([*history, said.native, [user("And?")]])
            outcome = await world.ends(both.at(0).agent)
        assert outcome.attached == ["root", *["extend"] * 4]
        assert outcome.untrained == {}
        assert len(outcome.samples) == 2
        sources = [turn.source for turn in outcome.turns.values()]
        assert len(set(sources[1:3])) == len(set(sources[3:])) == 2

    play(tmp_path, story, [says(f"Answer {n}.", drift=DRIFT) for n in range(5)])


SKEWS_S = (-3600.0, 3600.0)


def wrong_clock(monkeypatch: pytest.MonkeyPatch, gateway: Gateway, skew_s: float) -> None:
    """The gateway's clock goes wrong by so much."""
    publisher, skew_ms = gateway.publisher, int(skew_s * 1000)
    made = publisher._event

    def event(*given: Any) -> Turn:
        turn = made(*given)
        times = {name: getattr(turn, name) + skew_ms for name in ("started_ms", "finished_ms")}
        return msgspec.structs.replace(turn, **times)

    monkeypatch.setattr(publisher, "_event", event)


@pytest.mark.parametrize("skew_s", SKEWS_S)
def test_a_twin_is_superseded_by_one_asked_later_elsewhere_whatever_the_clocks_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew_s: float
) -> None:
    async def story(world: World) -> None:
        async with pair(world) as both:
            wrong_clock(monkeypatch, both.second, skew_s)
            await both.at(0).send([[user("Hi")]])  # the client never saw this one
            await both.at(1).ask(user("Hi"))
            await both.at(1).ask(user("More?"))
            assert both.second.metrics.counts["undelivered"] == 1
            outcome = await world.ends(both.at(0).agent)
        (lost, *_) = outcome.turns
        assert outcome.untrained == {lost: {"undelivered": len(outcome.turns[lost].output_ids)}}

    play(tmp_path, story, [says(f"Answer {n}.", drift=DRIFT) for n in range(3)])


@pytest.mark.parametrize("skew_s", SKEWS_S)
def test_twins_asked_for_at_two_gateways_at_once_both_train_whatever_the_clocks_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew_s: float
) -> None:
    async def story(world: World) -> None:
        async with pair(world) as both:
            wrong_clock(monkeypatch, both.second, skew_s)
            await both.at(0).ask(user("Hi"))
            await both.at(1).ask(user("And?"))  # both know the session now
            history = [*both.talker.history, [user("More?")]]
            asking = []
            for number in (0, 1):
                asking.append(asyncio.create_task(both.at(number).send(history)))
                await asyncio.sleep(0)
            one, _ = await asyncio.gather(*asking)
            both.talker.history = [*history, one.native]
            await both.at(1).ask(user("So?"))
            outcome = await world.ends(both.at(0).agent)
        assert outcome.untrained == {}

    answers = [says(f"Answer {n}.", drift=DRIFT, delay_ms=300) for n in range(5)]
    play(tmp_path, story, answers)


def test_what_no_gateway_gave_is_context_and_counted(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with pair(world) as both:
            agent = both.at(0).agent
            foreign = {"role": "assistant", "content": "I never said this."}
            await agent.ask(user("Hi"), foreign, user("Did you?"))
            assert world.gateway.metrics.counts["unknown_answers:foreign"] == 1
            await agent.ask(user("Sure?"))
            assert world.gateway.metrics.counts["unknown_answers:foreign"] == 1
            outcome = await world.ends_whole(agent)
        (sample,) = outcome.samples
        first, second = outcome.turns.values()
        trained = sum(end - start for start, end in sample.loss_mask)
        assert trained == len(first.output_ids) + len(second.output_ids)

    answers: list[Rule] = [says("No."), says("Yes.")]
    play(tmp_path, story, answers)
