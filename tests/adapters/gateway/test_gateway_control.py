"""The control API: what is opened, rewarded and ended, and what is refused by name."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from schemas.events import Reward, SessionEnded, SessionOpened
from tests.adapters.gateway.agents import says, user
from tests.adapters.gateway.world import REWARD, World, play, played, until

NO_MESSAGES: tuple[Any, ...] = (
    *(7, True, [], ["Yes."], [{"role": "assistant", "content": "Yes."}], {}, {"text": "Yes."}),
    *({"role": 7, "content": "Yes."}, {"role": None, "content": "Yes."}),
    *({"content": 7}, {"content": [7]}, {"content": {"text": "Yes."}}),
    {"content": "Yes.", "tool_calls": "ls"},
    {"content": None, "tool_calls": ["ls"]},
)
EVERYTHING: dict[str, Any] = {
    "session_id": "run7:task.3-a",
    "run_id": "run7",
    "run_epoch": 2,
    "task_id": "task",
    "group_id": "g3",
    "group_size": 8,
    "rollout_index": 5,
    "attempt": 1,
    "split": "train",
    "step": 40,
    "sampling": {"temperature": 0.7, "top_k": 20},
    "budgets": {"turns": 9, "tokens": 4000},
    "policy": {"profile": "seed", "fork_threshold_tokens": 5},
    "metadata": {"any": ["thing", 1, None, 12345678901234567890123]},
}


@played(says("Yes."))
async def test_every_field_of_an_opening_reaches_the_log(world: World) -> None:
    agent = await world.open(**EVERYTHING)
    await agent.ask(user("Hi"), temperature=0.1)
    opened, _ = await world.events(agent.session_id)
    assert isinstance(opened, SessionOpened)
    for name, value in EVERYTHING.items():
        if name not in {"metadata", "sampling"}:
            assert getattr(opened, name) == value, name
    assert json.loads(bytes(opened.metadata)) == EVERYTHING["metadata"]
    assert opened.fingerprint == world.renderer.fingerprint
    sampling = (await world.turns(agent.session_id))[0].sampling
    assert sampling is not None
    assert (sampling.temperature, sampling.top_k) == (0.7, 20)
    assert sampling.constraint == "truncating sampler"
    assert world.gateway.metrics.counts["ignored_sampling:temperature"] == 1
    outcome = await world.end(agent)
    assert bytes(outcome.closed.metadata) == bytes(opened.metadata)
    assert (outcome.closed.group_id, outcome.closed.attempt) == ("g3", 1)


@played()
async def test_a_wrong_field_is_refused_by_its_name(world: World) -> None:
    for fields, named in (
        ({"grup_id": "g"}, "grup_id"),
        ({"type": "purge"}, "type"),
        ({"group_size": 0}, "group_size"),
        ({"session_id": "no spaces"}, "session_id"),
        ({"split": "test"}, "split"),
        ({"attempt": -1}, "attempt"),
        ({"sampling": {"temperature": "hot"}}, "temperature"),
        ({"budgets": {"turns": -1}}, "budgets"),
        ({"budgets": {"trns": 1}}, "trns"),
        ({"metadata": "x" * 1_000_500}, "metadata"),
        ({"policy": "sead"}, "sead"),
        ({"policy": {"fork_treshold": 5}}, "fork_treshold"),
        ({"fingerprint": "another"}, "fingerprint"),
        ([], "object"),
    ):
        status, told = await world.control("sessions", fields)
        assert status == 400, fields
        assert named in told["error"], told
    agent = await world.open(group_id="g")
    for path, body, named in (
        ("end", {"end_status": "great"}, "end_status"),
        ("end", {"rewrd": 1}, "rewrd"),
        ("end", {"group_id": "another"}, "group_id"),
        ("end", {"reward": {"points": 1}}, "score"),
        ("rewards", {}, "reward"),
        ("rewards", {"reward": "much"}, "reward"),
        *(("end", {"final_message": message}, "final_message") for message in NO_MESSAGES),
    ):
        status, told = await world.control(f"sessions/{agent.session_id}/{path}", body)
        assert status == 400, body
        assert named in told["error"], told
    assert len(await world.events(agent.session_id)) == 1


UNREADABLE = {
    "a float out of range": b"1e999",
    "an integer of 5,000 digits": b"9" * 5_000,
    "bytes that are no text": b'"\xff"',
}


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
def test_what_no_reader_of_the_log_could_read_is_refused_before_it_is_there(
    tmp_path: Path, value: bytes
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        session = f"sessions/{agent.session_id}"
        for path, name, body in (
            ("sessions", "metadata", b'{"metadata": {"a": %s}}'),
            ("sessions", "budgets", b'{"budgets": {"turns": %s}}'),
            (f"{session}/end", "final_message", b'{"final_message": %s}'),
            (f"{session}/end", "final_message", b'{"final_message": {"content": "x", "n": %s}}'),
            (f"{session}/end", "reward", b'{"reward": %s}'),
            (f"{session}/rewards", "turn_id", b'{"turn_id": %s, "reward": 1.0}'),
            (f"{session}/rewards", "reward", b'{"reward": {"score": %s}}'),
            ("resume", "version", b'{"version": %s}'),
        ):
            status, told = await world.control(path, body % value)
            assert status == 400, (body, told)
            assert name in told["error"] or "utf-8' codec" in told["error"], (body, told)
        assert len(await world.events(agent.session_id)) == 1

    play(tmp_path, story)


FINAL: dict[str, tuple[Any, Any]] = {
    "a text": ("Yes.", {"role": "assistant", "content": "Yes."}),
    "without a role": ({"content": "Yes."}, {"role": "assistant", "content": "Yes."}),
    "parts": ({"role": "tool", "content": [{"type": "text", "text": "Yes."}]},) * 2,
    "calls alone": ({"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]},) * 2,
    "null": (None, None),
}


@pytest.mark.parametrize(("given", "recorded"), FINAL.values(), ids=FINAL)
def test_a_final_message_is_recorded_as_a_message(
    tmp_path: Path, given: Any, recorded: Any
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        body = {"reward": REWARD, "final_message": given}
        for _ in range(2):  # the second time in the same words
            status, told = await world.control(f"sessions/{agent.session_id}/end", body)
            assert status == 200, told
        (ended,) = [e for e in await world.events(agent.session_id) if isinstance(e, SessionEnded)]
        text = bytes(ended.final_message)
        assert (json.loads(text) if text else None) == recorded

    play(tmp_path, story)


@played(says("Yes."))
async def test_opening_or_ending_again_is_no_error_and_is_recorded_once(world: World) -> None:
    fields: dict[str, Any] = {"session_id": "again", "group_id": "g"}
    agent = await world.open(**fields)
    await agent.ask(user("Hi"))
    same = await world.open(**fields)
    assert same.session_id == "again"
    status, _ = await world.control("sessions", {**fields, "group_id": "other"})
    assert status == 409
    await world.ends_whole(agent)
    status, told = await world.control("sessions/again/end", {"reward": REWARD})
    assert (status, told["end_status"], told["already"]) == (200, "completed", True)
    status, told = await world.control("sessions/again/end", {"end_status": "error"})
    assert (status, "completed" in told["error"]) == (409, True)
    status, _ = await world.control("sessions", fields)
    assert status == 409
    kinds = [type(event) for event in await world.events("again")]
    assert kinds.count(SessionOpened) == kinds.count(SessionEnded) == 1


@played(says("One."), says("Two."))
async def test_a_reward_may_name_its_turn_by_the_answer(world: World) -> None:
    agent = await world.open()
    reply = await agent.client.chat.completions.create(model="m", messages=[user("Hi")])
    (turn,) = await world.turns(agent.session_id)
    path = f"sessions/{agent.session_id}/rewards"
    status, told = await world.control(path, {"reward": 0.5, "turn_id": reply.id})
    assert (status, told["turn_id"]) == (200, turn.turn_id)
    status, told = await world.control(path, {"reward": {"score": 2, "why": "x"}, "final": False})
    assert status == 200
    outcome = await world.end(agent)
    events = await world.events(agent.session_id)
    rewards = [event for event in events if isinstance(event, Reward)]
    assert [reward.turn_id for reward in rewards] == [turn.turn_id, None]
    assert outcome.samples[0].turn_rewards == {turn.turn_id: 0.5}


@played(says("Slow one.", gap_ms=300))
async def test_an_end_waits_for_turns_under_way_and_takes_no_new_ones(world: World) -> None:
    agent = await world.open()
    asking = asyncio.create_task(agent.ask(user("Hi")))
    await world.asked()
    ending = asyncio.create_task(world.ends_whole(agent))
    session = world.gateway.sessions.find(agent.session_id)
    assert session is not None

    async def begun() -> bool:
        return session.sealed

    await until(begun)
    with pytest.raises(openai.APIStatusError) as caught:
        await agent.send([user("More?")])
    assert caught.value.status_code == 410
    assert not ending.done()
    outcome = await ending
    assert (await asking)["content"] == "Slow one."
    assert outcome.closed.turns == 1
    assert outcome.closed.refused == 0


@played(says("One two three", gap_ms=2_000), gateway_drain_timeout_s=0.2)
async def test_an_end_stops_a_turn_that_does_not_end(world: World) -> None:
    agent = await world.open()
    asking = asyncio.create_task(agent.ask(user("Hi")))
    await world.asked()
    outcome = await world.ends(agent)
    with pytest.raises(openai.APIStatusError) as caught:
        await asking
    assert caught.value.status_code == 410
    (turn,) = outcome.turns.values()
    assert not turn.delivered
    assert outcome.closed.refused == 0


@played(says("One."), says("Two."))
async def test_a_session_that_has_ended_takes_no_call(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    await world.ends_whole(agent)
    with pytest.raises(openai.APIStatusError) as caught:
        await agent.ask(user("More?"))
    assert caught.value.status_code == 410
    assert caught.value.code == "session_ended"
    assert len(world.gateway.sessions) == 0
    status, told = await world.control(f"sessions/{agent.session_id}", method="GET")
    assert (status, told["ended"]) == (200, "completed")


@played(says("One."))
async def test_the_state_of_a_session_is_told(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("Hi"))
    status, told = await world.control(f"sessions/{agent.session_id}", method="GET")
    assert status == 200
    assert (told["recorded_turns"], told["calls"], told["in_flight"]) == (1, 1, 0)
    status, _ = await world.control("sessions/unknown", method="GET")
    assert status == 404


@played(says("One."))
async def test_health_readiness_and_metrics_are_told(world: World) -> None:
    agent = await world.open()
    await agent.ask(user("A secret word: rhubarb."))
    async with world.pages() as url:
        async with world.http.get(f"{url}/healthz") as reply:
            assert (reply.status, (await reply.json())["trouble"]) == (200, None)
        async with world.http.get(f"{url}/readyz") as reply:
            assert (reply.status, (await reply.json())["ready"]) == (200, True)
        world.log.away = "lost"
        async with world.http.get(f"{url}/readyz") as reply:
            assert (reply.status, (await reply.json())["ready"]) == (503, False)
        world.log.away = None
        async with world.http.get(f"{url}/metrics") as reply:
            text = await reply.text()
    assert 'turnstream_gateway_prompts_total{built="render"} 1.0' in text
    assert "turnstream_gateway_turns_total 1.0" in text
    assert 'turnstream_stage_seconds_count{stage="publish"} 1.0' in text
    assert "rhubarb" not in text
