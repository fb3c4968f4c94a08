"""Ways that a call seldom takes: what is refused, what is told, and what stands in the log."""

from pathlib import Path
from typing import Any, Literal

import openai
import pytest

from schemas.events import SessionEnded, SessionOpened
from streams.adapters.engines.scripted import Script, ScriptedEngine
from streams.log.interface import Outgoing
from tests.adapters.gateway.agents import BASH, calls, says, system, user
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.adapters.gateway.world import World, play, played

BENT = [
    {"temperature": 0.7},
    {"frequency_penalty": 0.5},
    {"presence_penalty": 0.5},
    {"repetition_penalty": 1.1},
]


class Raw(ScriptedEngine):
    """An engine whose logprobs are of the distribution before temperature and penalties."""

    @property
    def logprobs(self) -> Literal["processed", "raw"]:
        return "raw"


async def with_raw_logprobs(world: World) -> None:
    """The same world with such an engine."""
    script = Script(answers=(says("One."), says("Two.")))
    world.engine = Raw(script, renderer().backend)
    await world.restart()


def refusal(caught: pytest.ExceptionInfo[openai.APIStatusError]) -> tuple[int, str | None]:
    """Status and code of what the SDK raised; it was told not to try again."""
    assert caught.value.response.headers["x-should-retry"] == "false"
    return caught.value.status_code, caught.value.code


@pytest.mark.parametrize("pins", BENT, ids=[next(iter(pins)) for pins in BENT])
def test_raw_logprobs_are_refused_where_the_session_trains_on_another_distribution(
    tmp_path: Path, pins: dict[str, float]
) -> None:
    async def story(world: World) -> None:
        await with_raw_logprobs(world)
        agent = await world.open(sampling=pins, client={"max_retries": 2})
        for stream in (False, True):
            with pytest.raises(openai.ConflictError, match=next(iter(pins))) as caught:
                await agent.send([user("Hi")], stream=stream)
            assert refusal(caught) == (409, "raw_logprobs")
        assert len(world.engine.journal) == 0
        assert await world.turns(agent.session_id) == []
        evaluated = await world.open(sampling=pins, split="eval")
        await evaluated.ask(user("Hi"))
        (turn,) = await world.turns(evaluated.session_id)
        assert turn.sampling is not None
        assert turn.sampling.logprobs == "raw"

    play(tmp_path, story)


@played()
async def test_raw_logprobs_train_at_temperature_1_whatever_the_client_asks_for(
    world: World,
) -> None:
    await with_raw_logprobs(world)
    agent = await world.open()
    await agent.ask(user("Hi"), temperature=0.2, frequency_penalty=1.0)
    outcome = await world.ends_whole(agent)
    (turn,) = outcome.turns.values()
    assert turn.sampling is not None
    assert (turn.sampling.temperature, turn.sampling.logprobs) == (1.0, "raw")
    assert turn.sampling.frequency_penalty is None


@played(says("One."))
async def test_processed_logprobs_train_at_any_pinned_temperature(world: World) -> None:
    agent = await world.open(sampling={"temperature": 0.7})
    await agent.ask(user("Hi"))
    (turn,) = (await world.ends_whole(agent)).turns.values()
    assert turn.sampling is not None
    assert turn.sampling.temperature == 0.7


@played(says("One."), says("Two."), says("Three."))
async def test_a_session_of_another_template_is_refused_and_goes_on_with_its_own(
    world: World,
) -> None:
    agent = await world.open(client={"max_retries": 2})
    await agent.ask(user("Hi"))
    mine, other = world.renderer, renderer(thinking=False)
    assert other.fingerprint != mine.fingerprint
    world.renderer = other
    await world.restart()
    for stream in (False, True):
        with pytest.raises(openai.ConflictError, match="template") as caught:
            await agent.send([*agent.messages, user("More")], stream=stream)
        assert refusal(caught) == (409, "fingerprint_mismatch")
    assert world.gateway.metrics.counts["read_back_refused:fingerprint_mismatch"] == 2
    assert len(world.engine.journal) == 1
    status, told = await world.control("sessions", {"fingerprint": mine.fingerprint})
    assert status == 400
    assert other.fingerprint in told["error"]

    world.renderer = mine
    await world.restart()
    await agent.ask(user("More"))
    told_by = world.gateway.metrics.text().decode()
    assert 'turnstream_stage_seconds_count{stage="read_back"} 1.0' in told_by
    outcome = await world.ends_whole(agent)
    assert {turn.fingerprint for turn in outcome.turns.values()} == {mine.fingerprint}
    assert len(outcome.samples) == 1


@played(says("One."))
async def test_a_session_of_another_template_can_be_ended(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    world.renderer = renderer(thinking=False)
    await world.restart()
    outcome = await world.ends_whole(agent)
    assert outcome.closed.reward == 1.0


def test_a_session_too_large_to_be_read_back_is_refused_not_begun_anew(tmp_path: Path) -> None:
    large = "word " * 6_000

    async def story(world: World) -> None:
        agent = await world.open()
        await agent.ask(user(large))
        await world.restart()
        await agent.ask(user(large))  # read back: it is below the cap so far
        await agent.ask(user("More"))  # held: nothing has to be read
        await world.restart()
        other = await world.open()
        with pytest.raises(openai.APIStatusError) as caught:
            await agent.send([*agent.messages, user("More")])
        assert refusal(caught) == (410, "session_gone")
        passes = world.gateway.sessions._passes.passes
        with pytest.raises(openai.APIStatusError) as caught:
            await agent.send([*agent.messages, user("More")])
        assert refusal(caught) == (410, "session_gone")
        assert world.gateway.sessions._passes.passes == passes  # not read once more
        assert len(world.engine.journal) == 3
        await other.ask(user("Hi"))
        await world.ends_whole(other)
        await world.ends_whole(agent)

    answers = [says("One."), says("Two."), says("Three."), says("Four.")]
    play(tmp_path, story, answers, gateway_read_back_bytes_max=115_000)


OPENCODE: dict[str, tuple[dict[str, str], tuple[str | None, str | None]]] = {
    "main agent": ({"x-session-id": "ses_1"}, (None, None)),
    "sub-agent": (
        {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"},
        ("subagent", "ses_2"),
    ),
    "a parent alone": ({"x-parent-session-id": "ses_1"}, (None, None)),
    "told outright": (
        {
            "x-session-id": "ses_2",
            "x-parent-session-id": "ses_1",
            "x-turnstream-request-class": "compaction",
        },
        ("compaction", "ses_2"),
    ),
}


@pytest.mark.parametrize(("headers", "told"), OPENCODE.values(), ids=OPENCODE)
def test_opencodes_headers_tell_its_sub_agents_apart(
    tmp_path: Path, headers: dict[str, str], told: tuple[str | None, str | None]
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        await agent.ask(system("You are an agent."), user("Hi"), extra_headers=headers)
        (turn,) = (await world.ends_whole(agent)).turns.values()
        assert (turn.request_class, turn.agent_id) == told

    play(tmp_path, story, [says("One.")])


@pytest.mark.parametrize("restarted", [False, True], ids=["same gateway", "another"])
def test_a_turn_whose_ack_was_lost_trains_once_if_the_client_goes_on_from_it(
    tmp_path: Path, restarted: bool
) -> None:
    """The client saw all of its text and no end; the log has the turn all the same."""

    async def story(world: World) -> None:
        agent = await world.open()
        agent.tools, agent.stream = [BASH], True
        world.log.away = "unheard"
        with pytest.raises(openai.APIError, match="durable"):
            await agent.ask(user("Hi"))
        world.log.away = None
        (lost,) = await world.turns(agent.session_id)
        (told,) = await world.told(agent.session_id)
        assert (told.turn_id, told.seq) == (lost.turn_id, lost.seq)
        if restarted:
            await world.restart()
        agent.messages.append({"role": "assistant", "content": "One."})
        answer = await agent.ask(user("Go on."))
        await agent.run_tools(answer)
        outcome = await world.ends_whole(agent)
        assert outcome.attached == ["root", "extend", "extend"]
        assert len(outcome.samples) == 1
        first, second, third = outcome.turns.values()
        # The gateway that gave it up may have met it in the log by then, or not.
        assert second.base_turn_id in {first.turn_id, first.turn_id if restarted else None}
        assert third.base_turn_id == second.turn_id

    play(tmp_path, story, [says("One."), calls("ls"), says("Three.")])


@played(says("One."), says("Two."))
async def test_a_turn_whose_ack_was_lost_and_that_is_asked_for_again_does_not_train(
    world: World,
) -> None:
    agent = await world.open(client={"max_retries": 1})
    hearing = world.log.publish
    world.log.away = "unheard"

    async def heard_again(outgoing: Outgoing) -> Any:
        try:
            return await hearing(outgoing)
        finally:
            world.log.away = None

    world.log.publish = heard_again  # type: ignore[method-assign]
    assert (await agent.ask(user("Hi")))["content"] == "Two."
    outcome = await world.ends(agent)
    lost, kept = outcome.turns.values()
    assert set(outcome.untrained) == {lost.turn_id}
    assert set(outcome.untrained[lost.turn_id]) == {"undelivered"}
    assert [span.turn_id for sample in outcome.samples for span in sample.turns] == [kept.turn_id]


@played(says("One."))
async def test_an_opening_and_an_end_whose_acks_were_lost_may_be_sent_again(world: World) -> None:
    await world.open(session_id="s-before")
    world.log.away = "unheard"
    asked: dict[str, Any] = {"session_id": "s-again", "group_id": "g"}
    assert (await world.control("sessions", asked))[0] == 503
    world.log.away = None
    agent = await world.open(**asked)
    await agent.ask(user("Hi"))
    world.log.away = "unheard"
    end = {"reward": 1.0}
    assert (await world.control(f"sessions/{agent.session_id}/end", end))[0] == 503
    with pytest.raises(openai.APIStatusError) as caught:
        await agent.send([user("More")])
    assert refusal(caught) == (410, "session_ended")
    world.log.away = None
    outcome = await world.ends_whole(agent, **end)
    assert outcome.closed.reward == 1.0
    events = await world.events(agent.session_id)
    # One of each if the first was met in the log before the second was asked for.
    for kind in (SessionOpened, SessionEnded):
        assert [type(event) for event in events].count(kind) in (1, 2)
