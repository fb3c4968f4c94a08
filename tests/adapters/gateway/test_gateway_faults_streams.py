"""Streams that are silent, that fail and that break, as the clients of each API meet them.

A client that hears nothing for long gives up, so it always hears something; one whose stream
breaks sends the same body again, and says nothing of it: the twin that it goes on from trains.
"""

import asyncio

import anthropic
import openai
import pytest

from streams.adapters.engines.scripted import Failure, Rule
from tests.adapters.gateway.agents import says, user
from tests.adapters.gateway.agents_kinds import Talker
from tests.adapters.gateway.faults_apis import Event, Wire, answered, asking, events, for_each_api
from tests.adapters.gateway.world import World, until

LONG = "One two three four five six seven eight nine ten."
ANY = Rule(text="Yes.", times=None)
SDK_ERRORS = (openai.APIError, anthropic.APIError)
TURNS_OF_CODEX = 6


async def read(world: World, wire: Wire, talker: Talker) -> list[Event]:
    """A whole stream."""
    async with asking(world, wire, wire.asked(talker, stream=True), talker.agent.key) as reply:
        assert reply.status == 200
        return [event async for event in events(reply)]


async def broken_off(world: World, wire: Wire, talker: Talker, letters: int) -> None:
    """A client whose connection goes as soon as it has so many letters."""
    seen: list[Event] = []
    async with asking(world, wire, wire.asked(talker, stream=True), talker.agent.key) as reply:
        async for event in events(reply):
            seen.append(event)
            if len(wire.text(seen)) >= letters:
                return
    raise AssertionError("the stream ended first")


def idle_before(wire: Wire, seen: list[Event], text: str) -> int:
    """How many events only kept the stream alive before so much was said."""
    at = next(n for n in range(len(seen)) if wire.text(seen[: n + 1]) == text)
    return sum(wire.idle(event) for event in seen[:at])


# --------------------------------------------------------------------------- silence


@for_each_api(says(LONG, delay_ms=500, gap_ms=300, chunks=(8,)), gateway_keep_alive_s=0.05)
async def test_a_stream_is_kept_alive_before_and_between_tokens(
    world: World, wire: Wire, talker: Talker
) -> None:
    wire.asked(talker, "Hi")
    seen = await read(world, wire, talker)
    first = next(text for n in range(len(seen)) if (text := wire.text(seen[:n])))
    assert 2 <= idle_before(wire, seen, first) < idle_before(wire, seen, LONG)
    assert wire.ended(seen[-1])


@for_each_api(
    says("Late.", delay_ms=300),
    says("Sure.", "Hm.", gap_ms=200, chunks=(5,)),
    gateway_keep_alive_s=0.05,
)
async def test_the_sdks_pass_over_what_keeps_a_stream_alive(
    world: World, wire: Wire, talker: Talker
) -> None:
    talker.stream = True
    assert (await talker.ask(user("Hi"))).text == "Late."
    said = await talker.ask(user("Sure?"))
    assert (said.text, said.reasoning) == ("Sure.", "Hm.")
    await world.ends_whole(talker.agent)


@for_each_api(
    says("First.", delay_ms=500), says("Second."), gateway_keep_alive_s=0.05, gateway_concurrency=1
)
async def test_a_stream_is_kept_alive_while_it_waits_for_its_turn(
    world: World, wire: Wire, talker: Talker
) -> None:
    wire.asked(talker, "Hi")
    before = len(world.engine.journal)
    first = asyncio.create_task(read(world, wire, talker))
    await world.asked(before + 1)
    seen = await read(world, wire, talker)
    assert idle_before(wire, seen, "Second.") >= 3
    assert wire.text(await first) == "First."
    assert len(await world.turns(talker.session_id)) == 2


@for_each_api(says(LONG), gateway_keep_alive_s=0.1)
async def test_a_stream_is_kept_alive_while_the_log_is_waited_for(
    world: World, wire: Wire, talker: Talker
) -> None:
    wire.asked(talker, "Hi")
    world.log.open.clear()
    seen: list[Event] = []
    body = wire.asked(talker, stream=True)
    async with asking(world, wire, body, talker.agent.key) as reply:
        async for event in events(reply):
            seen.append(event)
            assert world.log.open.is_set() or not wire.ended(event)
            if wire.text(seen) == LONG and sum(map(wire.idle, seen[-3:])) == 3:
                world.log.open.set()
    assert wire.ended(seen[-1])
    await world.ends_whole(talker.agent)


# --------------------------------------------------------------------------- errors inside


@for_each_api(says(LONG, "Hm.", fail=Failure(after=12)), says("Yes."), says("Sure."))
async def test_an_engine_that_fails_in_the_middle_is_said_inside_the_stream(
    world: World, wire: Wire, talker: Talker
) -> None:
    wire.asked(talker, "Hi")
    seen = await read(world, wire, talker)
    failed = wire.failed(seen[-1])
    assert failed is not None
    assert "the engine failed" in failed.message
    assert not any(map(wire.ended, seen))
    assert 0 < len(wire.text(seen)) < len(LONG)
    if wire.name == "messages":
        kinds = [event["type"] for event in seen]
        assert kinds.count("content_block_stop") < kinds.count("content_block_start")
    if wire.name == "responses":
        assert failed.code == "server_error"
        assert seen[-2]["type"] == "error"
    assert (await talker.ask()).text == "Yes."
    await talker.ask(user("Sure?"))
    outcome = await world.ends(talker.agent)
    first, second, _ = outcome.turns.values()
    assert (first.trainable, first.delivered, second.prompt_built) == (False, False, "reuse")
    assert set(outcome.untrained) == {first.turn_id}
    assert len(outcome.samples) == 1


@for_each_api(says(LONG, "Hm.", fail=Failure(after=12)), says("Yes."))
async def test_the_sdks_raise_an_error_that_comes_inside_a_stream(
    world: World, wire: Wire, talker: Talker
) -> None:
    talker.stream = True
    with pytest.raises(SDK_ERRORS, match="the engine failed"):
        await talker.ask(user("Hi"))
    assert (await talker.ask()).text == "Yes."


@for_each_api(says(LONG), says("Yes."), says("Sure."))
async def test_a_log_that_is_away_is_said_inside_the_stream(
    world: World, wire: Wire, talker: Talker
) -> None:
    wire.asked(talker, "Hi")
    world.log.away = "unheard"
    try:
        seen = await read(world, wire, talker)
    finally:
        world.log.away = None
    failed = wire.failed(seen[-1])
    assert failed is not None
    assert "durable" in failed.message
    assert wire.text(seen) == LONG
    assert not any(map(wire.ended, seen))
    assert (await talker.ask()).text == "Yes."
    await talker.ask(user("Sure?"))
    outcome = await world.ends(talker.agent)
    first = next(iter(outcome.turns.values()))
    assert outcome.untrained == {first.turn_id: {"undelivered": len(first.output_ids)}}


@for_each_api(otherwise=ANY, gateway_context_tokens=60)
async def test_a_prompt_beyond_the_window_is_said_where_clients_that_stream_look(
    world: World, wire: Wire, talker: Talker
) -> None:
    await talker.ask(user("Hi"))
    body = wire.asked(talker, "word " * 60, stream=True)
    async with asking(world, wire, body, talker.agent.key) as reply:
        if wire.name != "responses":
            assert reply.status == 400
            wire.refusal(await reply.json())
        else:
            assert reply.status == 200
            seen = [event async for event in events(reply)]
            failed = wire.failed(seen[-1])
            assert failed is not None
            assert failed.code == "context_length_exceeded"
    talker.history.pop()
    assert (await talker.ask(user("Shorter."))).text == "Yes."
    await world.ends_whole(talker.agent)


# --------------------------------------------------------------------------- broken, and again


def assert_twins(turns: list[object]) -> None:
    digests = {bytes(getattr(turn, "prompt_digest", b"")) for turn in turns}
    assert len(digests) == 1


async def goes_on(world: World, wire: Wire, talker: Talker, broken: int) -> None:
    """After so many broken answers the next is whole, and the client goes on from it."""
    await world.recorded(talker.session_id, broken)
    assert (await talker.ask()).text == "Yes."
    await talker.ask(user("Sure?"))
    outcome = await world.ends(talker.agent)
    turns = list(outcome.turns.values())
    assert turns[broken].prompt_built == "reuse"
    assert_twins(list(turns[: broken + 1]))
    sampled = {turn.turn_id: len(turn.output_ids) for turn in turns[:broken]}
    assert outcome.untrained == {name: {"undelivered": n} for name, n in sampled.items() if n}
    assert len(outcome.samples) == 1
    assert outcome.closed.trained == sum(len(turn.output_ids) for turn in turns[broken:])


@for_each_api(says(LONG, delay_ms=60_000), says("Yes."), says("Sure."))
async def test_a_body_sent_again_after_a_connection_lost_before_the_headers(
    world: World, wire: Wire, talker: Talker
) -> None:
    body, before = wire.asked(talker, "Hi"), len(world.engine.journal)
    first = asyncio.create_task(answered(world, wire, body, talker.agent.key))
    await world.asked(before + 1)
    first.cancel()
    await asyncio.wait({first})
    await goes_on(world, wire, talker, 1)


@for_each_api(says(LONG, delay_ms=60_000), says("Yes."), says("Sure."), gateway_keep_alive_s=0.05)
async def test_a_body_sent_again_after_a_connection_lost_behind_the_headers(
    world: World, wire: Wire, talker: Talker
) -> None:
    wire.asked(talker, "Hi")
    await broken_off(world, wire, talker, 0)
    await goes_on(world, wire, talker, 1)


@for_each_api(says(LONG, gap_ms=30), says("Yes."), says("Sure."))
async def test_a_body_sent_again_after_a_stream_broken_inside_a_text(
    world: World, wire: Wire, talker: Talker
) -> None:
    """Claude Code and whoever speaks Chat Completions throw such an answer away."""
    wire.asked(talker, "Hi")
    await broken_off(world, wire, talker, 12)
    await goes_on(world, wire, talker, 1)


async def goes_on_from_the_second(
    world: World, talker: Talker, *, another_gateway: bool = False
) -> None:
    """The same text came again; the copy that the client never got does not train."""
    assert (await talker.ask()).text == "Yes."
    if another_gateway:
        await world.restart()
    await talker.ask(user("Sure?"))
    outcome = await world.ends(talker.agent)
    first, second, third = outcome.turns.values()
    assert_twins([first, second])
    assert first.output_ids.tolist() == second.output_ids.tolist()
    assert third.base_turn_id == second.turn_id
    assert outcome.untrained == {first.turn_id: {"undelivered": len(first.output_ids)}}
    (sample,) = outcome.samples
    assert [span.turn_id for span in sample.turns] == [second.turn_id, third.turn_id]


@for_each_api(says("Yes."), says("Yes."), says("Sure."))
async def test_of_two_answers_that_say_the_same_only_the_one_that_came_trains(
    world: World, wire: Wire, talker: Talker
) -> None:
    """All was sampled and sent; the client lost it and asks again."""
    body = wire.asked(talker, "Hi")
    status, _, _ = await answered(world, wire, body, talker.agent.key)
    assert status == 200
    await goes_on_from_the_second(world, talker)


@for_each_api(says("Yes."), says("Yes."), says("Sure."))
async def test_another_gateway_goes_on_from_the_copy_that_came_too(
    world: World, wire: Wire, talker: Talker
) -> None:
    body = wire.asked(talker, "Hi")
    status, _, _ = await answered(world, wire, body, talker.agent.key)
    assert status == 200
    await goes_on_from_the_second(world, talker, another_gateway=True)


@for_each_api(says("Yes."), says("Yes."), says("Sure."), gateway_keep_alive_s=0.1)
async def test_of_two_answers_that_say_the_same_one_broke_off_before_its_end(
    world: World, wire: Wire, talker: Talker
) -> None:
    """All was sampled, and the client goes while the log is waited for."""
    wire.asked(talker, "Hi")
    world.log.open.clear()
    await broken_off(world, wire, talker, len("Yes."))
    world.log.open.set()
    await world.recorded(talker.session_id)
    await goes_on_from_the_second(world, talker)


@for_each_api(says(LONG, gap_ms=30), says("Yes."), says("Sure."))
async def test_the_same_body_in_one_piece_after_a_broken_stream_is_the_same_request(
    world: World, wire: Wire, talker: Talker
) -> None:
    """What Claude Code falls back to; all else of the body is the same."""
    wire.asked(talker, "Hi")
    await broken_off(world, wire, talker, 12)
    await world.recorded(talker.session_id)
    body = wire.asked(talker, stream=False)
    status, _, _ = await answered(world, wire, body, talker.agent.key)
    assert status == 200
    turns = await world.turns(talker.session_id)
    assert turns[1].prompt_built == "reuse"
    assert_twins(list(turns))


@for_each_api(
    *[says(LONG, gap_ms=30)] * TURNS_OF_CODEX, says("Yes."), says("Sure."), gateway_keep_alive_s=9
)
async def test_a_stream_that_always_breaks_leaves_its_answers_and_nothing_that_runs(
    world: World, wire: Wire, talker: Talker
) -> None:
    wire.asked(talker, "Hi")
    for _ in range(TURNS_OF_CODEX):
        await broken_off(world, wire, talker, 3)

    async def quiet() -> bool:
        return world.gateway.api.in_flight == 0

    await until(quiet)
    entries = list(world.engine.journal.of(talker.session_id))
    assert [entry.outcome for entry in entries] == ["closed"] * TURNS_OF_CODEX
    await goes_on(world, wire, talker, TURNS_OF_CODEX)
