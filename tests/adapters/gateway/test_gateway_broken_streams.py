"""A client that breaks off, keeps a part of the answer and goes on from it: that part trains."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas.events import Turn
from tests.adapters.gateway.agents import Agent, add_delta, calls, says, user
from tests.adapters.gateway.test_gateway_order import chunks, raw
from tests.adapters.gateway.world import World, play, until

Message = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
LONG = "One two three four five six seven eight nine ten eleven twelve."


async def broken_off(world: World, agent: Agent, *, whole_calls: int, letters: int = 0) -> Message:
    """What a client keeps: it hangs up with more than that, but the last of it is not whole."""
    answer: Message = {"role": "assistant", "content": None}
    async with raw(world, agent, stream=True, tools=TOOLS) as reply:
        async for _, chunk in chunks(reply):
            add_delta(answer, chunk["choices"][0]["delta"])
            if len(answer.get("tool_calls") or ()) > whole_calls:
                break
            if len(answer["content"] or "") > 2 * letters > 0:
                break
    answer["content"] = (answer["content"] or "")[:letters]
    if whole_calls:
        answer["tool_calls"] = answer["tool_calls"][:whole_calls]
    return answer


def assert_first_of(part: Turn, whole: Turn) -> None:
    length = len(part.output_ids)
    assert 0 < length < len(whole.output_ids)
    assert part.output_ids.tolist() == whole.output_ids.tolist()[:length]
    assert part.logprobs is not None
    assert whole.logprobs is not None
    assert part.logprobs.tolist() == whole.logprobs.tolist()[:length]
    assert part.weight_versions == [(version, length) for version, _ in whole.weight_versions or ()]


@pytest.mark.parametrize("restart", [False, True], ids=["same", "other gateway"])
@pytest.mark.parametrize("what", ["calls", "text"])
def test_what_a_client_kept_of_a_broken_answer_trains(
    tmp_path: Path, what: str, restart: bool
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        if what == "calls":
            kept = await broken_off(world, agent, whole_calls=1)
            (call,) = kept["tool_calls"]
            result = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
        else:
            kept = await broken_off(world, agent, whole_calls=0, letters=12)
            result = user("No, stop. Go on.")
        (whole,) = await world.recorded(agent.session_id)
        assert not whole.delivered
        if restart:
            await world.restart()
        agent.messages = [user("Hi"), kept]
        await agent.ask(result, tools=TOOLS)
        await agent.ask(user("And now?"), tools=TOOLS)
        outcome = await world.end(agent)
        _, part, *_ = (turns := await world.turns(agent.session_id))
        assert len(turns) == 4
        assert_first_of(part, whole)
        assert outcome.untrained == {whole.turn_id: {"undelivered": len(whole.output_ids)}}
        (sample,) = outcome.samples
        assert [span.turn_id for span in sample.turns] == [turn.turn_id for turn in turns[1:]]
        assert [row.attach for row in outcome.closed.ledger][1:] == ["root", "extend", "extend"]
        assert sample.trained == sum(len(turn.output_ids) for turn in turns[1:])

    first = calls("ls", "pwd", gap_ms=20) if what == "calls" else says(LONG, gap_ms=20)
    play(tmp_path, story, [first, says("Good."), says("Done.")])


def test_two_requests_at_once_from_one_broken_answer_record_its_part_once(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        kept = await broken_off(world, agent, whole_calls=0, letters=12)
        await world.recorded(agent.session_id)
        history = [user("Hi"), kept]
        await asyncio.gather(
            *(agent.send([*history, user(text)], tools=TOOLS) for text in ("One.", "Two."))
        )
        outcome = await world.end(agent)
        turns = await world.turns(agent.session_id)
        assert len(turns) == 4
        assert outcome.closed.trained == sum(len(turn.output_ids) for turn in turns[1:])

    play(tmp_path, story, [says(LONG, gap_ms=20), says("Good."), says("Done.")])


def test_half_a_call_is_not_in_what_the_client_goes_on_from(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        kept: Message = {"role": "assistant", "content": None}
        async with raw(world, agent, stream=True, tools=TOOLS) as reply:
            async for _, chunk in chunks(reply):
                add_delta(kept, chunk["choices"][0]["delta"])
                if kept.get("tool_calls"):
                    break
            (entry,) = world.engine.journal
            begun = len(entry.ids)

            async def further() -> bool:
                return len(entry.ids) > begun + 3

            await until(further)
        (call,) = kept["tool_calls"]
        (whole,) = await world.recorded(agent.session_id)
        agent.messages = [user("Hi"), kept]
        await agent.ask({"role": "tool", "tool_call_id": call["id"], "content": "ok"}, tools=TOOLS)
        outcome = await world.end(agent)
        assert outcome.untrained == {whole.turn_id: {"undelivered": len(whole.output_ids)}}
        assert len(outcome.samples) == 1
        _, part, _ = await world.turns(agent.session_id)
        assert_first_of(part, whole)

    play(tmp_path, story, [calls("ls", "pwd", gap_ms=20), says("Good.")])
