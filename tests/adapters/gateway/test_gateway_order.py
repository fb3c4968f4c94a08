"""What the client sees, and when; what is recorded when client, engine or log break off."""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from schemas.events import TurnUndelivered
from streams.adapters.engines.scripted import Failure
from tests.adapters.gateway.agents import Agent, calls, says, user
from tests.adapters.gateway.world import World, play, played, until

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
LONG = "One two three four five six seven eight nine ten."
LENGTH = 12
"""Its tokens, the end included."""


@asynccontextmanager
async def raw(world: World, agent: Agent, **body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    """A request on a connection of its own, which is torn down at the end, whatever is left."""
    asked = {"model": "m", "messages": [user("Hi")], **body}
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as client,
        client.post(
            f"{world.gateway.base_url}/v1/chat/completions",
            json=asked,
            headers={"authorization": f"Bearer {agent.key}"},
        ) as reply,
    ):
        yield reply
        reply.close()


async def chunks(reply: aiohttp.ClientResponse) -> AsyncIterator[tuple[float, Any]]:
    """Each event of a stream, and when it came."""
    async for line in reply.content:
        if line.startswith(b"data: "):
            text = line.removeprefix(b"data: ").strip()
            yield time.monotonic(), "[DONE]" if text == b"[DONE]" else json.loads(text)


def finish(chunk: Any) -> str | None:
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    return choices[0]["finish_reason"] if choices else None


@played(says("148M.", "Hm.", gap_ms=5))
async def test_text_comes_at_once_and_the_end_after_the_log_has_the_turn(world: World) -> None:
    agent = await world.open()
    world.log.open.clear()
    seen: list[tuple[float, Any]] = []

    async def read() -> None:
        async with raw(world, agent, stream=True) as reply:
            async for chunk in chunks(reply):
                seen.append(chunk)

    reading = asyncio.create_task(read())

    async def all_text() -> bool:
        texts = [c["choices"][0]["delta"].get("content") or "" for _, c in seen]
        return "".join(texts) == "148M."

    await until(all_text)
    await asyncio.sleep(0.3)
    assert not any(finish(chunk) for _, chunk in seen)
    assert await world.turns(agent.session_id) == []
    let_go = time.monotonic()
    world.log.open.set()
    await reading
    assert seen[-1][1] == "[DONE]"
    ends = [at for at, chunk in seen if chunk == "[DONE]" or finish(chunk)]
    assert let_go < world.log.published[-1] < min(ends)
    await world.ends_whole(agent)


@played(says("148M.", gap_ms=5))
async def test_the_end_waits_while_another_process_holds_the_log(world: World) -> None:
    agent = await world.open()
    holder = sqlite3.connect(world.settings.log, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    seen: list[Any] = []
    async with raw(world, agent, stream=True) as reply:
        coming = chunks(reply)
        while "".join(c["choices"][0]["delta"].get("content") or "" for c in seen) != "148M.":
            seen.append((await anext(coming))[1])
        waiting = asyncio.ensure_future(anext(coming))
        await asyncio.wait({waiting}, timeout=0.3)
        assert not waiting.done()
        holder.execute("ROLLBACK")
        holder.close()
        assert finish((await waiting)[1]) == "stop"
        assert [chunk async for _, chunk in coming] == ["[DONE]"]
    await world.ends_whole(agent)


@played(says("148M."))
async def test_an_answer_in_one_piece_comes_after_the_log_has_the_turn(world: World) -> None:
    agent = await world.open()
    world.log.open.clear()
    asking = asyncio.create_task(agent.ask(user("Hi")))
    await world.asked()
    await asyncio.sleep(0.3)
    assert not asking.done()
    world.log.open.set()
    await asking
    await world.ends_whole(agent)


@BOTH
@pytest.mark.parametrize("stage", ["before", "middle", "sampled", "stored"])
def test_a_client_that_hangs_up_leaves_an_undelivered_turn(
    tmp_path: Path, stream: bool, stage: str
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        hold = {"sampled": world.log.open, "stored": world.log.heard}.get(stage)
        if hold:
            hold.clear()
        asking = asyncio.create_task(_ask(world, agent, stream))
        await world.asked()
        (entry,) = world.engine.journal

        async def there() -> bool:
            return len(entry.ids) >= {"before": 0, "middle": 3}.get(stage, LENGTH)

        await until(there)
        asking.cancel()
        await asyncio.wait({asking})
        if hold:
            await asyncio.sleep(0.2)
            assert len(await world.turns(agent.session_id)) == (stage == "stored")
            hold.set()
        (turn,) = await world.recorded(agent.session_id)
        assert turn.output_ids.tolist() == entry.ids
        if hold:
            assert entry.outcome == "finished"
            (told,) = await world.told(agent.session_id)
            assert told.turn_id == turn.turn_id
        else:
            assert entry.outcome == "closed"
            assert not turn.delivered
        await agent.ask(user("Hi"))
        outcome = await world.ends(agent)
        reasons = {"undelivered": len(entry.ids)} if entry.ids else {}
        assert outcome.untrained.get(turn.turn_id, {}) == reasons
        assert len(outcome.samples) == 1

    delay_ms, gap_ms = {"before": (60_000, 0), "middle": (0, 50)}.get(stage, (0, 5))
    play(tmp_path, story, [says(LONG, delay_ms=delay_ms, gap_ms=gap_ms), says("Here.")])


async def _ask(world: World, agent: Agent, stream: bool) -> None:
    async with raw(world, agent, stream=stream) as reply:
        async for _ in reply.content:
            pass


@played(says(LONG), calls("ls"), says("Good."))
async def test_a_client_that_breaks_off_after_all_text_and_goes_on_has_got_it(
    world: World,
) -> None:
    """It kept a turn whose end was never sent; the turn counts because it is extended."""
    agent = await world.open()
    world.log.open.clear()
    async with raw(world, agent, stream=True) as reply:
        text = ""
        async for _, chunk in chunks(reply):
            text += chunk["choices"][0]["delta"].get("content") or ""
            if text == LONG:
                break
    await asyncio.sleep(0.1)
    world.log.open.set()
    await world.told(agent.session_id)
    agent.messages = [user("Hi"), {"role": "assistant", "content": text}]
    await agent.ask(user("Go on."))
    outcome = await world.ends_whole(agent)
    assert outcome.attached == ["root", "extend"]


@BOTH
@pytest.mark.parametrize(
    "after", [0, 5, LENGTH - 1, LENGTH], ids=["before", "middle", "late", "end"]
)
def test_what_was_sampled_before_the_engine_failed_is_recorded_and_does_not_train(
    tmp_path: Path, stream: bool, after: int
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        agent.stream = stream
        with pytest.raises(openai.APIError, match="out of memory") as caught:
            await agent.send([user("Hi")])
        if isinstance(caught.value, openai.APIStatusError):
            assert caught.value.status_code == 503
            assert caught.value.response.headers["retry-after"] == "1"
        else:
            assert stream
            assert after
        await agent.ask(user("Hi"))
        outcome = await world.ends(agent)
        assert len(outcome.turns) == (2 if after else 1)
        first = next(iter(outcome.turns.values()))
        if after:
            assert (first.trainable, first.delivered) == (False, False)
            assert sum(outcome.untrained[first.turn_id].values()) == after
        assert len(outcome.samples) == 1

    failing = says(LONG, fail=Failure(after=after, message="out of memory"))
    play(tmp_path, story, [failing, says("Here.")])


@BOTH
def test_a_generation_stopped_for_new_weights_goes_on_in_one_turn(
    tmp_path: Path, stream: bool
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        agent.stream = stream
        asking = asyncio.create_task(agent.ask(user("Hi")))
        for version in (4, 9):
            count = sum(len(entry.ids) for entry in world.engine.journal)

            async def further(count: int = count) -> bool:
                return sum(len(entry.ids) for entry in world.engine.journal) > count + 2

            await until(further)
            world.engine.update_weights(version)
        assert (await asking)["content"] == LONG
        outcome = await world.ends_whole(agent)
        (turn,) = outcome.turns.values()
        entries = list(world.engine.journal)
        assert len(entries) == 3
        assert turn.output_ids.tolist() == [i for entry in entries for i in entry.ids]
        assert turn.weight_versions is not None
        assert [version for version, _ in turn.weight_versions] == [0, 4, 9]
        (sample,) = outcome.samples
        assert [run[0] for run in sample.weight_versions or ()] == [0, 4, 9]

    play(tmp_path, story, [says(LONG, gap_ms=30)])


@played(says(LONG, gap_ms=100, finish_apart=True))
async def test_an_answer_stopped_at_its_last_token_is_cut_by_length(world: World) -> None:
    agent = await world.open()
    asking = asyncio.create_task(
        agent.client.chat.completions.create(model="m", messages=[user("Hi")], max_tokens=5)
    )
    await world.asked()
    (entry,) = world.engine.journal

    async def all_given() -> bool:
        return len(entry.ids) == 5

    await until(all_given)
    world.engine.update_weights(1)
    assert (await asking).choices[0].finish_reason == "length"
    assert entry.finish == "abort"
    assert len(world.engine.journal) == 1
    await world.ends_whole(agent)


@BOTH
@pytest.mark.parametrize("away", ["lost", "unheard"])
def test_a_log_that_is_away_is_said_and_made_good(tmp_path: Path, stream: bool, away: str) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        agent.stream = stream
        world.log.away = away
        with pytest.raises(openai.APIError, match="durable") as caught:
            await agent.send([user("Hi")])
        if not stream:
            assert isinstance(caught.value, openai.InternalServerError)
            assert caught.value.status_code == 503
            assert caught.value.response.headers["retry-after"] == "1"
            assert caught.value.type == "log_unavailable"
        world.log.away = None
        await agent.ask(user("Hi"))
        await agent.ask(user("Sure?"))
        (told,) = (await world.told(agent.session_id))[:1]
        assert told.seq == 1
        outcome = await world.end(agent)
        assert outcome.closed.gaps == 0
        assert outcome.closed.withheld is None
        assert len(outcome.turns) == (2 if away == "lost" else 3)
        assert set(outcome.untrained) == set(outcome.turns) & {told.turn_id}
        assert len(outcome.samples) == 1

    play(tmp_path, story, [says("One."), says("Two."), says("Three.")])


@played(says("One."), says("Two."), says("Three."))
async def test_a_turn_that_the_log_lost_is_context_of_the_turn_that_goes_on_from_it(
    world: World,
) -> None:
    agent = await world.open()
    world.log.away = "lost"
    with pytest.raises(openai.APIError):
        await agent.ask(user("Hi"), stream=True)
    world.log.away = None
    agent.messages.append({"role": "assistant", "content": "One."})
    await agent.ask(user("Go on."))
    await agent.ask(user("More."))
    outcome = await world.end(agent)
    first, second = outcome.turns.values()
    lost = world.engine.journal.of(agent.session_id)[0]
    whole = [*lost.input_ids.tolist(), *lost.ids]
    assert outcome.prompts[first.turn_id][: len(whole)] == whole
    assert first.base_turn_id is None
    assert second.base_turn_id == first.turn_id
    assert outcome.closed.gaps == 0
    assert outcome.closed.trained == outcome.closed.generated
    assert len(outcome.samples) == 1


@played(says("One."), says("Two."))
async def test_while_the_log_is_away_nothing_is_stuck(world: World) -> None:
    agent = await world.open()
    world.log.away = "lost"
    for _ in range(2):
        with pytest.raises(openai.APIStatusError):
            await agent.send([user("Hi")])
    assert world.gateway.publisher.repairing == 2
    status, told = await world.control(f"sessions/{agent.session_id}/end", {"reward": 1.0})
    assert status == 503
    assert "try again" in told["error"]
    world.log.away = None
    outcome = await world.end(agent)
    assert outcome.closed.gaps == 0
    events = await world.events(agent.session_id)
    said = {event.seq for event in events if isinstance(event, TurnUndelivered)}
    assert said == {1, 2}


@played(says("Late.", delay_ms=700), gateway_keep_alive_s=0.1)
async def test_a_silent_stream_is_kept_alive_by_events(world: World) -> None:
    agent = await world.open()
    async with raw(world, agent, stream=True) as reply:
        seen = [chunk async for _, chunk in chunks(reply)]
    empty = [c for c in seen[1:-2] if c["choices"][0]["delta"] == {}]
    assert len(empty) >= 3
    assert seen[-1] == "[DONE]"
    await world.ends_whole(agent)
