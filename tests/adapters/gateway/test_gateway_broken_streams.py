"""A client that breaks off, keeps a part of the answer and goes on from it: that part trains."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from schemas.events import Turn
from tests.adapters.engines.calls import decode
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
            kept = await broken_off(world, agent, whole_calls=0, letters=13)
            result = user("No, stop. Go on.")
        (whole,) = await world.recorded(agent.session_id)
        assert not whole.delivered
        if restart:
            await world.restart()
        agent.messages = [user("Hi"), kept]
        await agent.ask(result, tools=TOOLS)
        await agent.ask(user("And now?"), tools=TOOLS)
        outcome = await world.ends(agent)
        _, part, *_ = (turns := await world.turns(agent.session_id))
        assert len(turns) == 4
        assert_first_of(part, whole)
        dropped = len(whole.output_ids) - len(part.output_ids)
        assert outcome.untrained == {whole.turn_id: {"undelivered": dropped}}
        (sample,) = outcome.samples
        assert [span.turn_id for span in sample.turns] == [turn.turn_id for turn in turns[1:]]
        assert [row.attach for row in outcome.closed.ledger][1:] == ["root", "extend", "extend"]
        assert sample.trained == sum(len(turn.output_ids) for turn in turns[1:])

    first = calls("ls", "pwd", gap_ms=20) if what == "calls" else says(LONG, gap_ms=20)
    play(tmp_path, story, [first, says("Good."), says("Done.")])


def test_two_requests_at_once_from_one_broken_answer_record_its_part_once(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        kept = await broken_off(world, agent, whole_calls=0, letters=13)
        await world.recorded(agent.session_id)
        history = [user("Hi"), kept]
        await asyncio.gather(
            *(agent.send([*history, user(text)], tools=TOOLS) for text in ("One.", "Two."))
        )
        outcome = await world.ends(agent)
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
        outcome = await world.ends(agent)
        _, part, _ = await world.turns(agent.session_id)
        assert_first_of(part, whole)
        dropped = len(whole.output_ids) - len(part.output_ids)
        assert outcome.untrained == {whole.turn_id: {"undelivered": dropped}}
        assert len(outcome.samples) == 1

    play(tmp_path, story, [calls("ls", "pwd", gap_ms=20), says("Good.")])


ANSWER = "The repo is about 148 MB, most of it tests and data."


async def trained_tokens(world: World, agent: Agent) -> tuple[int, int]:
    """How many tokens train, and how many were sampled."""
    outcome = await world.ends(agent)
    return outcome.closed.trained, sum(len(e.ids) for e in world.engine.journal)


@pytest.mark.parametrize("kept", [[20, None], [20, 40, 30], [None, 20]], ids=str)
def test_an_answer_gone_on_from_in_several_lengths_trains_once(
    tmp_path: Path, kept: list[int | None]
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        await agent.send([user("Hi")])
        for length in kept:
            echo = {"role": "assistant", "content": ANSWER[:length]}
            await agent.send([user("Hi"), echo, user(f"Go on from {length}.")])
        (whole, *_) = world.engine.journal
        trained, sampled = await trained_tokens(world, agent)
        dropped = 0 if None in kept else len(whole.ids) - kept_of(whole.ids)
        assert trained == sampled - dropped

    def kept_of(ids: list[int]) -> int:
        """The tokens of the longest part."""
        texts = [decode(ids[:n]) for n in range(1, len(ids))]
        return sum(ANSWER[:40].startswith(text) for text in texts)

    play(tmp_path, story, [says(ANSWER), *(says(f"Answer {n}.") for n in range(len(kept)))])


def test_a_cut_inside_a_token_stays_in_every_later_prompt(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        await agent.send([user("Hi")])
        agent.messages = [user("Hi"), {"role": "assistant", "content": "The repo is abo"}]
        await agent.ask(user("What?"))
        await agent.ask(user("And now?"))
        outcome = await world.ends(agent)
        whole, part, *later = outcome.turns.values()
        assert part.part_of == whole.turn_id
        for turn in later:
            assert "The repo is abo<|im_end|>" in decode(outcome.prompts[turn.turn_id])
        (sample,) = outcome.samples
        (row,) = [row for row in outcome.closed.ledger if row.turn_id == part.turn_id]
        assert row.untrained.get("forced", 0) > 0
        assert sample.trained == outcome.closed.trained

    play(tmp_path, story, [says(ANSWER), says("I mean."), says("Done.")])


def test_blanks_that_were_held_back_behind_the_text_train_with_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        await agent.send([user("Hi")])
        agent.messages = [user("Hi"), {"role": "assistant", "content": "Let me look."}]
        await agent.ask(user("Stop."))
        outcome = await world.ends(agent)
        _, part, _ = outcome.turns.values()
        assert decode(part.output_ids.tolist()) == "Let me look.\n\n"
        assert part.untrained_runs is None

    play(tmp_path, story, [says("Let me look.\n\nIt is here."), says("Yes.")])


def test_a_client_that_goes_on_at_once_finds_what_is_still_being_recorded(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        world.log.open.clear()
        kept = await broken_off(world, agent, whole_calls=1)
        agent.messages = [user("Hi"), kept]
        result = {"role": "tool", "tool_call_id": kept["tool_calls"][0]["id"], "content": "ok"}
        asking = asyncio.create_task(agent.ask(result, tools=TOOLS))
        await asyncio.sleep(0.2)
        world.log.open.set()
        await asking
        outcome = await world.ends(agent)
        whole, part, _ = outcome.turns.values()
        assert part.part_of == whole.turn_id
        assert len(outcome.samples) == 1

    play(tmp_path, story, [calls("ls", "pwd", gap_ms=20), says("Good.")])


def test_a_part_that_the_log_did_not_take_is_recorded_when_it_is_back(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        kept = await broken_off(world, agent, whole_calls=0, letters=13)
        (whole,) = await world.recorded(agent.session_id)
        agent.messages = [user("Hi"), kept]
        world.log.away = "lost"
        with pytest.raises(openai.APIStatusError):
            await agent.send([*agent.messages, user("Go on.")], tools=TOOLS)
        world.log.away = None
        await agent.ask(user("Go on."), tools=TOOLS)
        outcome = await world.end(agent)
        parts = [turn for turn in outcome.turns.values() if turn.part_of == whole.turn_id]
        assert len(parts) == 1
        (row,) = [row for row in outcome.closed.ledger if row.turn_id == parts[0].turn_id]
        assert row.trained == len(parts[0].output_ids)

    play(tmp_path, story, [says(LONG, gap_ms=20), says("Good."), says("Good.")])


def test_parts_use_up_no_turns(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        agent = await world.open(budgets={"turns": 3})
        await agent.send([user("Hi")])
        agent.messages = [user("Hi"), {"role": "assistant", "content": ANSWER[:11]}]
        await agent.ask(user("Go on."))
        await agent.ask(user("And now?"))
        outcome = await world.ends(agent)
        assert len(outcome.turns) == 4

    play(tmp_path, story, [says(ANSWER), says("Good."), says("Done.")])
