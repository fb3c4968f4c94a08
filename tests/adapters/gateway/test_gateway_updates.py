"""Pause and resume: who waits, for how long, what clients see, and what is recorded."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from schemas import codec
from schemas.control import Paused, Resumed
from schemas.events import Turn
from streams.adapters.engines.scripted import Failure, Rule, Script
from streams.adapters.gateway.following import LOOK_BACK
from streams.log.interface import Outgoing
from tests.adapters.gateway.agents import BASH, says, user
from tests.adapters.gateway.agents_kinds import KINDS, opened
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.adapters.gateway.world import World, play, played, until

EACH = pytest.mark.parametrize("kind", KINDS)
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
LONG = "One two three four five six seven eight nine ten."
LABELS = Script(
    answers=tuple(says(LONG, gap_ms=30) for _ in range(9)), weight_label="base", labels_only=True
)


async def pause(world: World, **body: Any) -> dict[str, Any]:
    status, told = await world.control("pause", body)
    assert status == 200, told
    return told


async def resume(world: World, version: int, **body: Any) -> dict[str, Any]:
    status, told = await world.control("resume", {"version": version, **body})
    assert status == 200, told
    return told


async def under_way(world: World, tokens: int = 2) -> None:
    """Wait until the engine is in the middle of an answer."""

    async def holds() -> bool:
        return any(e.outcome == "running" and len(e.ids) >= tokens for e in world.engine.journal)

    await until(holds)


async def failed(world: World) -> None:
    """Wait until the engine has failed in an answer."""

    async def holds() -> bool:
        return any(e.outcome == "failed" for e in world.engine.journal)

    await until(holds)


async def waiting(world: World) -> None:
    """Wait until a call has come in, and long enough to see what it does not do."""

    async def holds() -> bool:
        return world.gateway.api.in_flight > 0

    await until(holds)
    await asyncio.sleep(0.2)


async def only_turn(world: World, session_id: str) -> Turn:
    (turn,) = await world.turns(session_id)
    return turn


@played(says("Hi."))
async def test_a_new_call_waits_until_the_run_goes_on(world: World) -> None:
    agent = await world.open()
    assert (await pause(world))["paused"] is True
    asking = asyncio.create_task(agent.ask(user("Hi")))
    await waiting(world)
    assert not asking.done()
    assert len(world.engine.journal) == 0
    assert world.gateway.gate.running == world.gateway.gate.waiting == 0
    status, told = await world.control("weights", method="GET")
    assert (status, told["paused"], told["in_flight"]) == (200, True, 1)
    assert (await resume(world, 1))["paused"] is False
    assert (await asking)["content"] == "Hi."
    await world.ends_whole(agent)


@played()
async def test_what_is_asked_twice_is_done_once_and_what_goes_back_is_refused(
    world: World,
) -> None:
    assert "already" not in await pause(world)
    assert (await pause(world))["already"] is True
    assert "already" not in await resume(world, 4, cache_flushed=True)
    told = await resume(world, 4, cache_flushed=True)
    assert (told["already"], told["version"], told["cache_flushed"]) == (True, 4, True)
    await resume(world, 6)  # without a pause: it declares
    await pause(world)
    for body, says_ in (
        ({"version": 5}, "below 6"),
        ({"version": 9, "run_epoch": -1}, "run_epoch"),
        ({}, "version"),
        ({"version": "7"}, "version"),
        ({"version": -1}, "-1 means unknown"),
        ({"version": 7, "when": 1}, "`when` is no field"),
    ):
        status, told = await world.control("resume", body)
        assert status == (409 if body == {"version": 5} else 400), told
        assert says_ in told["error"]
    status, told = await world.control("weights", method="GET")
    assert (told["paused"], told["version"]) == (True, 6)
    told = await resume(world, 2, run_epoch=1)
    assert (told["version"], told["run_epoch"], told["paused"]) == (2, 1, False)
    status, told = await world.control("resume", {"version": 9})
    assert (status, "below 1" in told["error"]) == (409, True)
    records = await world.records(world.settings.control_topic)
    assert [type(record) for record in records] == [Paused, Resumed, Resumed, Paused, Resumed]
    status, _ = await world.control("pause", {}, key="wrong")
    assert status == 401


@EACH
@BOTH
def test_a_pause_that_nobody_ends_is_a_refusal_to_be_tried_again(
    tmp_path: Path, kind: str, stream: bool
) -> None:
    async def story(world: World) -> None:
        talker = await opened(world, kind, stream=stream)
        await pause(world)
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as caught:
            await talker.ask(user("Hi"))
        error: Any = caught.value
        assert (error.status_code, error.response.headers["retry-after"]) == (503, "1")
        assert "paused for a weight update" in str(error)
        assert world.gateway.metrics.counts["paused_out"] == 1
        assert await world.turns(talker.session_id) == []
        await resume(world, 1)
        talker.history.clear()
        assert (await talker.ask(user("Hi"))).text == "Hi."
        await world.ends_whole(talker.agent)

    play(tmp_path, story, [says("Hi.")], gateway_pause_wait_s=0.3)


@played(*(says(LONG, gap_ms=20) for _ in range(2)), gateway_concurrency=1)
async def test_runs_do_not_touch_each_other(world: World) -> None:
    one, two = await world.open(run_id="one"), await world.open(run_id="two")
    first = asyncio.create_task(one.ask(user("Hi")))
    await under_way(world)
    await pause(world, run_id="one")
    world.engine.update_weights(7)
    # The only place is free while the first waits.
    assert (await two.ask(user("Hi")))["content"] == LONG
    assert not first.done()
    await resume(world, 7, run_id="one", cache_flushed=True)
    assert (await first)["content"] == LONG
    mine = await only_turn(world, one.session_id)
    other = await only_turn(world, two.session_id)
    assert [flushed for _, flushed in mine.continued_at or ()] == [True]
    assert (mine.cache_flushed, other.cache_flushed) == (True, None)
    for agent in (one, two):
        await world.ends_whole(agent)


@played(says("Hi."))
async def test_a_gateway_that_starts_late_knows_what_was_declared(world: World) -> None:
    agent = await world.open()
    await resume(world, 3)
    await pause(world)
    await world.restart()
    asking = asyncio.create_task(agent.ask(user("Hi")))
    await waiting(world)
    assert not asking.done()
    status, told = await world.control("weights", method="GET")
    assert (status, told["paused"], told["version"]) == (200, True, 3)
    await resume(world, 4)
    await asking
    await world.ends_whole(agent)


@played(says("Hi."))
async def test_a_gateway_that_starts_late_knows_a_run_that_others_have_outrun(world: World) -> None:
    await resume(world, 3, run_id="old")
    await pause(world, run_id="old")
    value = codec.to_msgpack(Resumed(run_id="busy", version=1))
    other = Outgoing(topic=world.settings.control_topic, key=b"busy", value=value)
    await asyncio.gather(*(world.log.publish(other) for _ in range(LOOK_BACK)))
    await world.restart()
    status, told = await world.control("weights?run_id=old", method="GET")
    assert (status, told["paused"], told["version"]) == (200, True, 3)


def test_an_engine_that_reports_labels_has_the_versions_declared_with_their_changes(
    tmp_path: Path,
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        await agent.ask(user("Hi"))
        asking = asyncio.create_task(agent.ask(user("More")))
        await under_way(world)
        await pause(world)
        world.engine.update_weights(12, "step 12")
        await asyncio.sleep(0.1)
        await resume(world, 12)
        await asking
        await agent.ask(user("And more"))
        turns = await world.turns(agent.session_id)
        runs = [turn.weight_versions or [] for turn in turns]
        assert [[version for version, _ in run] for run in runs] == [[11], [11, 12], [12]]
        joined = [e.weight_versions for e in world.engine.journal]
        assert runs[1] == [(11, joined[1][0][1]), (12, joined[2][0][1])]
        assert [turn.weight_label for turn in turns] == ["base", "step 12", "step 12"]
        assert [turn.cache_flushed for turn in turns] == [None, False, False]
        await world.ends_whole(agent)

    play(tmp_path, story, LABELS, gateway_weight_version=11)


@BOTH
def test_an_engine_that_goes_on_by_itself_has_the_version_of_each_token(
    tmp_path: Path, stream: bool
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        agent.stream = stream
        asking = asyncio.create_task(agent.ask(user("Hi")))
        await under_way(world)
        await pause(world)
        world.engine.pause(abort=False)
        world.engine.update_weights(1, "step 1", abort=False)
        await resume(world, 1)
        world.engine.resume()
        assert (await asking)["content"] == LONG
        (entry,) = world.engine.journal
        turn = await only_turn(world, agent.session_id)
        assert turn.weight_versions == entry.weight_versions
        assert [version for version, _ in entry.weight_versions] == [0, 1]
        assert turn.continued_at is None
        await world.ends_whole(agent)

    play(tmp_path, story, LABELS, gateway_weight_version=0)


@played(
    says(LONG, gap_ms=30, fail=Failure(after=4, message="restarting")),
    says("It goes on.", gap_ms=1),
)
async def test_an_engine_that_fails_in_a_pause_is_gone_on_with(world: World) -> None:
    agent = await world.open()
    asking = asyncio.create_task(agent.ask(user("Hi")))
    await under_way(world, 1)
    await pause(world)
    await asyncio.sleep(0.3)
    await resume(world, 1, cache_flushed=True)
    assert (await asking)["content"] == "One two three fourIt goes on."
    turn = await only_turn(world, agent.session_id)
    assert turn.continued_at == [(4, True)]
    assert turn.trainable


@played(says(LONG, gap_ms=30, fail=Failure(after=4, message="out of memory")))
async def test_an_engine_that_fails_without_a_pause_fails(world: World) -> None:
    agent = await world.open()
    with pytest.raises(openai.InternalServerError, match="out of memory"):
        await agent.ask(user("Hi"))


CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls one two three"}}\n</tool_call>'
SPLIT = {
    "in a text": (LONG, "five six", "One two three four"),
    "in a call": (CALL, "one two", CALL[: CALL.index("one two")]),
}


@pytest.mark.parametrize(("text", "stop", "left"), SPLIT.values(), ids=SPLIT)
def test_a_stop_string_may_begin_before_a_stop_and_end_behind_it(
    tmp_path: Path, text: str, stop: str, left: str
) -> None:
    # An engine that fails keeps nothing: what it is asked next, it sees the rest of alone.
    before, after = text[: text.index(stop) + 4], text[text.index(stop) + 4 :]
    tokens = len(renderer().backend.encode(before, add_special_tokens=False).ids)
    broken = Rule(text=before, end=False, gap_ms=30, fail=Failure(after=tokens))

    async def story(world: World) -> None:
        agent = await world.open()
        agent.tools = [BASH]
        asking = asyncio.create_task(agent.ask(user("Hi"), stop=[stop]))
        await under_way(world, 1)
        await pause(world)
        await failed(world)
        await resume(world, 1)
        answer = await asking
        assert answer["content"].strip() == left.strip()
        turn = await only_turn(world, agent.session_id)
        assert turn.continued_at == [(tokens, False)]
        assert len(turn.output_ids) == tokens + 1  # the one that completes it, as an engine does
        assert turn.finish_reason == "stop"

    play(tmp_path, story, [broken, Rule(text=after, chunks=(3,))])


SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


@played(says('{"a": [1, 2, 3, 4, 5]}', gap_ms=30))
async def test_what_a_schema_forces_is_not_gone_on_with(world: World) -> None:
    agent = await world.open()
    asking = asyncio.create_task(agent.ask(user("Hi"), response_format=SCHEMA))
    await under_way(world)
    world.engine.update_weights(1)
    with pytest.raises(openai.InternalServerError, match="cannot be gone on with") as caught:
        await asking
    assert caught.value.status_code == 503
    turn = await only_turn(world, agent.session_id)
    assert not turn.trainable


@played(says("Hi."), says("Hi."))
async def test_a_client_that_gives_up_waiting_leaves_nothing_behind(world: World) -> None:
    agent = await world.open()
    await pause(world)
    asking = asyncio.create_task(agent.ask(user("Hi")))
    await waiting(world)
    asking.cancel()
    await asyncio.wait({asking})

    async def gone() -> bool:
        return world.gateway.api.in_flight == 0

    await until(gone)
    status, told = await world.control(f"sessions/{agent.session_id}/end", {"reward": 1.0})
    assert status == 200, told
    outcome = await world.outcome(agent.session_id)
    assert (len(outcome.turns), outcome.closed.gaps) == (0, 0)
    assert len(world.engine.journal) == 0


@played(gateway_drain_timeout_s=0.3)
async def test_an_end_does_not_wait_for_a_run_that_is_paused(world: World) -> None:
    agent = await world.open()
    await pause(world)
    asking = asyncio.create_task(agent.ask(user("Hi")))
    await waiting(world)
    status, told = await world.control(f"sessions/{agent.session_id}/end", {"reward": 1.0})
    assert status == 200, told
    with pytest.raises(openai.APIStatusError) as caught:
        await asking
    assert caught.value.status_code == 410


@played(says(LONG, gap_ms=30), gateway_pause_wait_s=0.4)
async def test_what_was_sampled_before_a_pause_that_nobody_ends_is_recorded(world: World) -> None:
    agent = await world.open()
    asking = asyncio.create_task(agent.ask(user("Hi")))
    await under_way(world)
    await asyncio.sleep(0.1)
    await pause(world)
    world.engine.update_weights(1)
    with pytest.raises(openai.InternalServerError, match="paused for a weight update"):
        await asking
    turn = await only_turn(world, agent.session_id)
    assert (turn.trainable, turn.delivered, turn.continued_at) == (False, False, None)
    assert turn.output_ids.tolist() == next(iter(world.engine.journal)).ids


@played()
async def test_what_is_not_durable_is_said(world: World) -> None:
    world.log.away = "lost"
    status, told = await world.control("pause", {})
    assert (status, "not durable" in told["error"]) == (503, True)
    world.log.away = None
    assert (await pause(world))["paused"] is True
