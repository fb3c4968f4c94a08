"""Which experts computed each token: asked for, recorded with the turn, there on the sample."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.events import Channel, Turn
from streams.adapters.engines.interface import Experts
from streams.adapters.engines.scripted import Rule, Script, ScriptedEngine
from streams.adapters.gateway.sampling.experts import NAME
from streams.log.blobs import Blobs
from streams.log.sqlite import SqliteLog
from streams.processor.embedded import EmbeddedProcessor
from streams.settings import Settings
from tests.adapters.engines.standins.kinds import EACH, Kind
from tests.adapters.engines.standins.serving import StandIn, standing
from tests.adapters.gateway.agents import BASH, calls, says, user
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.outcomes import Outcome
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.adapters.gateway.test_gateway_engines import WorldOverHttp
from tests.adapters.gateway.world import SECONDS_MAX, World, play, served, until

LONG = "One two three four five six seven eight nine ten."
WIDE = (40, 50)
"""Layers and choices: 8,000 bytes a token."""


def script(*answers: Rule, experts: tuple[int, int] | None = (3, 2)) -> Script:
    return Script(answers=answers, experts=experts)


def rows(channel: Channel | Experts, data: bytes | None = None) -> Any:
    found = channel.data if data is None else data
    assert found is not None
    return np.frombuffer(found, channel.dtype).reshape(channel.shape).tolist()


def sampled(world: World) -> list[Any]:
    """A row for each token, by the engine's own journal."""
    told = [entry.experts for entry in world.engine.journal if entry.ids]
    return [row for experts in told if experts is not None for row in rows(experts)]


def trained(outcome: Outcome, channel: Channel) -> list[Any]:
    """The rows of the trained tokens; all others have to be zero."""
    (sample,) = outcome.samples
    whole = rows(channel)
    assert len(whole) == len(sample.tokens)
    mine = [at for start, end in sample.loss_mask for at in range(start, end)]
    others = set(range(len(whole))) - set(mine)
    assert not any(any(whole[at]) for at in others)
    return [whole[at] for at in mine]


async def stopped_once(world: World, turns: int = 2, **fields: Any) -> Outcome:
    """A tool loop whose last answer is stopped for new weights."""
    agent = await world.open(**fields)
    agent.tools = [BASH]
    answer = await agent.ask(user("Hi"))
    asking = asyncio.create_task(agent.run_tools(answer))

    async def in_the_middle() -> bool:
        entry = list(world.engine.journal)[-1]
        return entry.outcome == "running" and len(entry.ids) > 3

    await until(in_the_middle)
    world.engine.update_weights(1)
    assert (await asking)["content"] == LONG
    outcome = await world.ends_whole(agent)
    assert len(outcome.turns) == turns
    assert [len(turn.continued_at or ()) for turn in outcome.turns.values()] == [0, 1]
    return outcome


def test_they_are_recorded_with_each_turn_joined_and_there_on_the_sample(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        outcome = await stopped_once(world)
        channels = [(turn.channels or {})[NAME] for turn in outcome.turns.values()]
        for turn, channel in zip(outcome.turns.values(), channels, strict=True):
            assert (channel.dtype, channel.shape) == ("int32", [len(turn.output_ids), 6])
        assert [row for channel in channels for row in rows(channel)] == sampled(world)
        (sample,) = outcome.samples
        assert (sample.channel_blobs, sample.channels_missing) == (None, 0)
        assert trained(outcome, (sample.channels or {})[NAME]) == sampled(world)

    answers = script(calls("ls"), says(LONG, gap_ms=30))
    play(tmp_path, story, answers, gateway_routed_experts=True)


def test_they_are_not_asked_for_unless_it_is_wanted(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        outcome = await stopped_once(world)
        assert [turn.channels for turn in outcome.turns.values()] == [None, None]
        assert [entry.experts for entry in world.engine.journal] == [None] * 3

    play(tmp_path, story, script(calls("ls"), says(LONG, gap_ms=30)))


def test_large_ones_travel_beside_the_log_and_a_missing_blob_costs_the_channel(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "blobs"

    async def story(world: World) -> None:
        outcome = await stopped_once(world)
        turns = list(outcome.turns.values())
        channels = [(turn.channels or {})[NAME] for turn in turns]
        assert [channel.data for channel in channels] == [None, None]
        blobs = Blobs(world.settings)
        (sample,) = outcome.samples
        assert sample.channels is None
        assert [part.channel for part in sample.channel_blobs or ()] == channels
        whole = await blobs.whole(sample)
        assert (whole.channel_blobs, whole.channels_missing) == (None, 0)
        assert trained(outcome, (whole.channels or {})[NAME]) == sampled(world)
        assert whole.tokens.tolist() == sample.tokens.tolist()
        name = channels[1].blob or ""
        (folder / name[:2] / name).unlink()
        less = await blobs.whole(sample)
        assert (less.channels, less.channel_blobs, less.channels_missing) == (None, None, 1)
        assert less.tokens.tolist() == sample.tokens.tolist()

    answers = script(calls("ls"), says(LONG, gap_ms=30), experts=WIDE)
    play(tmp_path, story, answers, gateway_routed_experts=True, blob_url=str(folder))


async def lost(world: World, why: str) -> Turn:
    """A turn that has no channel, and is whole otherwise."""
    agent = await world.open()
    await agent.ask(user("Hi"))
    outcome = await world.ends_whole(agent)
    assert world.gateway.metrics.counts[f"channels_lost:{why}"] == 1
    assert f'channels_lost_total{{why="{why}"}} 1.0'.encode() in world.gateway.metrics.text()
    (turn,) = outcome.turns.values()
    assert turn.channels is None
    assert outcome.samples[0].channels is None
    return turn


def test_an_engine_that_tells_none_costs_no_turn(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await lost(world, "untold")

    play(tmp_path, story, script(says(LONG), experts=None), gateway_routed_experts=True)


def test_a_store_that_takes_no_blob_costs_no_turn(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    async def story(world: World) -> None:
        await lost(world, "blob")

    nowhere = str(tmp_path / "file" / "blobs")
    asked = script(says(LONG), experts=WIDE)
    play(tmp_path, story, asked, gateway_routed_experts=True, blob_url=nowhere)


def test_a_channel_that_makes_its_turn_too_large_is_left_out(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await lost(world, "large")

    small = {"message_bytes_max": 80_000, "producer_batch_bytes": 80_000}
    asked = script(says(LONG), experts=WIDE)
    play(tmp_path, story, asked, gateway_routed_experts=True, **small)


@contextlib.asynccontextmanager
async def over_http(
    folder: Path, kind: Kind, asked: Script
) -> AsyncIterator[tuple[WorldOverHttp, StandIn]]:
    settings = Settings(log=str(folder / "log.db"), gateway_port=0, gateway_drain_timeout_s=5.0)
    settings = dataclasses.replace(settings, gateway_routed_experts=True)
    engine = ScriptedEngine(asked, renderer().backend)
    server = kind.server(engine)
    stop = asyncio.Event()
    async with (
        asyncio.timeout(2 * SECONDS_MAX),
        standing(server) as urls,
        SqliteLog(folder / "log.db", settings) as log,
    ):
        http = kind.engine(urls)
        processing = asyncio.create_task(EmbeddedProcessor(settings, log).run(stop))
        made = WorldOverHttp(settings, Faulty(log), engine, http)
        try:
            async with served(made):
                yield made, server
        finally:
            stop.set()
            await processing
            await http.close()


@EACH
def test_sglang_and_vllm_tell_of_them_over_a_stop(tmp_path: Path, kind: Kind) -> None:
    async def story() -> None:
        asked = script(calls("ls"), says(LONG, gap_ms=30))
        async with over_http(tmp_path, kind, asked) as (world, _):
            outcome = await stopped_once(world)
            (sample,) = outcome.samples
            assert trained(outcome, (sample.channels or {})[NAME]) == sampled(world)

    asyncio.run(story())


@EACH
@pytest.mark.parametrize(
    ("faults", "why"), [({"experts_short": True, "experts": (3, 2)}, "unfit"), ({}, "untold")]
)
def test_what_sglang_and_vllm_leave_out_costs_the_channel(
    tmp_path: Path, kind: Kind, faults: dict[str, Any], why: str
) -> None:
    async def story() -> None:
        async with over_http(tmp_path, kind, script(says(LONG), experts=None)) as (world, server):
            for name, value in faults.items():
                setattr(server.faults, name, value)
            await lost(world, why)

    asyncio.run(story())
