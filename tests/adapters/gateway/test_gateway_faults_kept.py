"""Streams that break and are kept in part: what came back was sampled, and it trains.

    Responses   Codex keeps the items that are done and goes on from them
    Messages    Claude Code keeps an answer all of whose blocks have ended, or what a person
                interrupted, cut anywhere; else it asks again
    Chat        what a person interrupted

Whether the gateway has noticed by then makes no difference: `seen` or not.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.events import Turn
from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.agents import BASH, calls, says, user
from tests.adapters.gateway.agents_kinds import Group, Talker, opened
from tests.adapters.gateway.faults_apis import WIRES, Event, Wire, asking, events
from tests.adapters.gateway.outcomes import Outcome
from tests.adapters.gateway.world import World, play, until

LONG = "One two three four five six seven eight nine ten eleven twelve."
Enough = Callable[[Sequence[Event]], bool]


async def cut_off(
    world: World, wire: Wire, talker: Talker, enough: Enough, *, seen: bool
) -> list[Event]:
    """The events up to a break; if the gateway does not see it, it has sent everything."""
    had: list[Event] = []
    body = wire.asked(talker, stream=True)
    async with asking(world, wire, body, talker.agent.key) as reply:
        async for event in events(reply):
            if not had or not enough(had):
                had.append(event)
                if enough(had) and seen:
                    await sampled_on(world, talker)
                    break
    (turn,) = await world.recorded(talker.session_id)
    if not seen:
        assert turn.delivered
    return had


async def sampled_on(world: World, talker: Talker) -> None:
    """Wait for tokens of which the client has nothing."""
    *_, entry = world.engine.journal.of(talker.session_id)
    so_far = len(entry.ids)

    async def further() -> bool:
        return len(entry.ids) >= so_far + 3

    await until(further, every_s=0.005)


def done(kind: str) -> Enough:
    """So far an item of that type is done."""
    return lambda had: (
        had[-1]["type"] == "response.output_item.done" and had[-1]["item"]["type"] == kind
    )


def results(ids: Sequence[str]) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": each, "content": "ok"} for each in ids]


async def goes_on(
    world: World, wire: Wire, talker: Talker, kept: Group, *new: dict[str, Any]
) -> Outcome:
    """The next two turns, from what was kept, and what the session becomes."""
    talker.history.append(kept)
    await talker.ask(*new)
    await talker.ask(user("And now?"))
    return await world.end(talker.agent)


def assert_part_trains(outcome: Outcome, text: str) -> tuple[Turn, Turn]:
    """Of the broken answer a part trains, as sampled, in one sample with what follows."""
    whole, part, *more = outcome.turns.values()
    length = len(part.output_ids)
    assert 0 < length < len(whole.output_ids)
    assert part.output_ids.tolist() == whole.output_ids.tolist()[:length]
    dropped = len(whole.output_ids) - len(part.output_ids)
    assert outcome.untrained == {whole.turn_id: {"undelivered": dropped}}
    (sample,) = outcome.samples
    assert [span.turn_id for span in sample.turns] == [part.turn_id, *(t.turn_id for t in more)]
    assert sample.trained == sum(len(turn.output_ids) for turn in (part, *more))
    assert text in bytes(part.response_message or b"").decode()
    return whole, part


def story_of(
    tmp_path: Path,
    api: str,
    story: Callable[[World, Wire, Talker], Any],
    *script: Rule,
    tools: bool = True,
) -> None:
    async def told(world: World) -> None:
        talker = await opened(world, api)
        talker.tools = [BASH] if tools else []
        WIRES[api].asked(talker, "Hi")
        await story(world, WIRES[api], talker)

    play(tmp_path, told, [*script, says("Good."), says("Done.")])


SEEN = pytest.mark.parametrize("seen", [True, False], ids=["seen", "all was sent"])


# --------------------------------------------------------------------------- Responses


@SEEN
def test_items_that_are_done_are_gone_on_from(tmp_path: Path, seen: bool) -> None:
    """The first of two calls, with the thought and the text before it."""

    async def story(world: World, wire: Wire, talker: Talker) -> None:
        had = await cut_off(world, wire, talker, done("function_call"), seen=seen)
        kept = wire.finished(had)
        assert [item["type"] for item in kept] == ["reasoning", "message", "function_call"]
        outcome = await goes_on(world, wire, talker, kept, *results(wire.calls(kept)))
        whole, part = assert_part_trains(outcome, wire.calls(kept)[0])
        assert outcome.prompts[part.turn_id] == outcome.prompts[whole.turn_id]

    two = calls("ls", "pwd", text="I look.", reasoning="Two.", gap_ms=20 if seen else 0)
    story_of(tmp_path, "responses", story, two)


@SEEN
def test_a_thought_that_is_done_is_gone_on_from_by_its_carrier(tmp_path: Path, seen: bool) -> None:
    """The text was not whole: the item is dropped, and the client asks with the thought alone."""

    async def story(world: World, wire: Wire, talker: Talker) -> None:
        had = await cut_off(world, wire, talker, done("reasoning"), seen=seen)
        kept = wire.finished(had)
        assert [item["type"] for item in kept] == ["reasoning"]
        outcome = await goes_on(world, wire, talker, kept)
        assert_part_trains(outcome, "I think so.")

    story_of(tmp_path, "responses", story, says(LONG, "I think so.", gap_ms=20 if seen else 0))


@SEEN
def test_a_text_that_is_done_is_gone_on_from_without_the_call_after_it(
    tmp_path: Path, seen: bool
) -> None:
    async def story(world: World, wire: Wire, talker: Talker) -> None:
        had = await cut_off(world, wire, talker, done("message"), seen=seen)
        kept = wire.finished(had)
        assert [item["type"] for item in kept] == ["message"]
        outcome = await goes_on(world, wire, talker, kept, user("Go on."))
        assert_part_trains(outcome, "I look.")

    two = calls("ls", "pwd", text="I look.", gap_ms=20 if seen else 0)
    story_of(tmp_path, "responses", story, two)


def test_an_answer_broken_right_before_its_end_is_kept_whole(tmp_path: Path) -> None:
    async def story(world: World, wire: Wire, talker: Talker) -> None:
        had = await cut_off(world, wire, talker, done("message"), seen=False)
        kept = wire.finished(had)
        talker.history.append(kept)
        await talker.ask(user("And now?"))
        outcome = await world.ends_whole(talker.agent)
        assert outcome.attached == ["root", "extend"]

    story_of(tmp_path, "responses", story, says(LONG, "Hm."))


# --------------------------------------------------------------------------- Messages


def blocks_ended(count: int) -> Enough:
    return lambda had: sum(event["type"] == "content_block_stop" for event in had) == count


def test_blocks_that_have_all_ended_are_kept_though_the_end_never_came(tmp_path: Path) -> None:
    async def story(world: World, wire: Wire, talker: Talker) -> None:
        had = await cut_off(world, wire, talker, blocks_ended(4), seen=False)
        assert not any(map(wire.ended, had))
        kept = wire.finished(had)
        kinds = [block["type"] for block in kept[0]["content"]]
        assert kinds == ["thinking", "text", "tool_use", "tool_use"]
        talker.history.append(kept)
        await talker.ask(*results(wire.calls(kept)))
        outcome = await world.ends_whole(talker.agent)
        assert outcome.attached == ["root", "extend"]

    story_of(tmp_path, "messages", story, calls("ls", "pwd", text="I look.", reasoning="Two."))


def test_no_block_is_all_that_ended_before_the_turn_is_durable(tmp_path: Path) -> None:
    """Else a client that keeps ended blocks would run calls of a turn that the log may not have."""

    async def story(world: World, wire: Wire, talker: Talker) -> None:
        world.log.open.clear()
        had: list[Event] = []
        body = wire.asked(talker, stream=True)
        async with asking(world, wire, body, talker.agent.key) as reply:
            async for event in events(reply):
                had.append(event)
                if sum(map(wire.idle, had)) == 5:
                    break
        kinds = [event["type"] for event in had]
        assert kinds.count("content_block_start") == kinds.count("content_block_stop") + 1
        assert wire.calls(wire.finished(had)) == []
        world.log.open.set()
        await world.recorded(talker.session_id)

    async def told(world: World) -> None:
        talker = await opened(world, "messages")
        talker.tools = [BASH]
        WIRES["messages"].asked(talker, "Hi")
        await story(world, WIRES["messages"], talker)

    script = [calls("ls", "pwd", text="I look.", reasoning="Two.")]
    play(tmp_path, told, script, gateway_keep_alive_s=0.05)


# --------------------------------------------------------------------------- interrupted


@SEEN
@pytest.mark.parametrize("reasoning", ["", "I think so."], ids=["plain", "thought"])
@pytest.mark.parametrize("api", ["chat", "messages"])
def test_half_a_sentence_that_a_person_interrupted_is_gone_on_from(
    tmp_path: Path, api: str, reasoning: str, seen: bool
) -> None:
    async def story(world: World, wire: Wire, talker: Talker) -> None:
        def enough(had: Sequence[Event]) -> bool:
            return len(wire.text(had)) >= 13

        had = await cut_off(world, wire, talker, enough, seen=seen)
        text = wire.text(had)[:13]
        if api == "chat":
            (answer,) = wire.finished(had)
            kept = [{**answer, "content": text}]
        else:
            ended = [block for message in wire.finished(had) for block in message["content"]]
            blocks = [*ended, {"type": "text", "text": text}]
            kept = [{"role": "assistant", "content": blocks}]
        outcome = await goes_on(world, wire, talker, kept, user("[interrupted] Go on."))
        assert_part_trains(outcome, text.strip())

    story_of(tmp_path, api, story, says(LONG, reasoning, gap_ms=20 if seen else 0), tools=False)


def test_two_requests_at_once_from_one_part_record_it_once(tmp_path: Path) -> None:
    async def story(world: World, wire: Wire, talker: Talker) -> None:
        had = await cut_off(world, wire, talker, done("function_call"), seen=True)
        kept = wire.finished(had)
        talker.history.append(kept)
        talker.history.append(talker.told(results(wire.calls(kept))))
        both = [[*talker.history, talker.told([user(text)])] for text in ("One.", "Two.")]
        await asyncio.gather(*(talker.send(history) for history in both))
        outcome = await world.end(talker.agent)
        assert len(outcome.turns) == 4
        later = list(outcome.turns.values())[1:]
        assert outcome.closed.trained == sum(len(turn.output_ids) for turn in later)

    story_of(tmp_path, "responses", story, calls("ls", "pwd", gap_ms=20))
