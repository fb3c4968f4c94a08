"""An engine that is asked whose logprobs it gives: raw ones do not train at another temperature."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from streams.adapters.engines.scripted import Script, ScriptedEngine
from streams.log.sqlite import SqliteLog
from streams.processor.embedded import EmbeddedProcessor
from streams.settings import Settings
from tests.adapters.engines.standins.kinds import EACH, Kind
from tests.adapters.engines.standins.model import SmallModel
from tests.adapters.engines.standins.serving import StandIn, standing
from tests.adapters.gateway.agents import says, user
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.adapters.gateway.test_gateway_engines import WorldOverHttp
from tests.adapters.gateway.world import SECONDS_MAX, World, served

WARM = {"temperature": 0.7}


@contextlib.asynccontextmanager
async def world(folder: Path, kind: Kind, model: SmallModel) -> AsyncIterator[tuple[World, Any]]:
    """A gateway before a server with a small model, whose tokens say nothing."""
    settings = Settings(log=str(folder / "log.db"), gateway_port=0, gateway_max_new_tokens=4)
    idle = ScriptedEngine(Script(answers=(says("Never."),)), renderer().backend)
    server: StandIn = kind.server(model)
    stop = asyncio.Event()
    async with standing(server) as urls, SqliteLog(folder / "log.db", settings) as log:
        asked = kind.engine(urls)
        processing = asyncio.create_task(EmbeddedProcessor(settings, log).run(stop))
        made = WorldOverHttp(settings, Faulty(log), idle, asked)
        try:
            async with served(made):
                yield made, server
        finally:
            stop.set()
            await processing
            await asked.close()


def play(folder: Path, kind: Kind, model: SmallModel, story: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(2 * SECONDS_MAX), world(folder, kind, model) as (made, server):
            await story(made, server)

    asyncio.run(whole())


async def health(world: World) -> Any:
    return (await world.gateway.pages.healthz())["logprobs"]


@EACH
def test_a_session_at_another_temperature_is_refused_before_it_is_sampled(
    tmp_path: Path, kind: Kind
) -> None:
    async def story(world: World, server: StandIn) -> None:
        assert await health(world) == "unknown"
        agent = await world.open(sampling=WARM)
        with pytest.raises(openai.ConflictError, match="temperature") as caught:
            await agent.send([user("Hi")])
        assert caught.value.code == "raw_logprobs"
        assert "doctor --engine" in caught.value.message
        assert await world.turns(agent.session_id) == []
        assert await health(world) == "raw"
        assert "turnstream_gateway_engine_logprobs_raw 1.0" in world.gateway.metrics.text().decode()
        # What was asked is all that was sampled.
        assert {body_tokens(body) for body in server.bodies} == {1}
        evaluated = await world.open(sampling=WARM, split="eval")
        await evaluated.ask(user("Hi"))
        (turn,) = await world.turns(evaluated.session_id)
        assert turn.sampling is not None
        assert turn.sampling.logprobs == "raw"

    play(tmp_path, kind, SmallModel(told="raw"), story)


def body_tokens(body: dict[str, Any]) -> int:
    given = body["sampling_params"]
    return int(given.get("max_new_tokens") or given["max_tokens"])


@EACH
def test_one_that_follows_the_temperature_trains(tmp_path: Path, kind: Kind) -> None:
    async def story(world: World, server: StandIn) -> None:
        agent = await world.open(sampling=WARM)
        await agent.ask(user("Hi"))
        assert await health(world) == "processed"
        assert "turnstream_gateway_engine_logprobs_raw 0.0" in world.gateway.metrics.text().decode()
        (turn,) = await world.turns(agent.session_id)
        assert turn.sampling is not None
        assert (turn.sampling.temperature, turn.sampling.logprobs) == (0.7, "processed")

    play(tmp_path, kind, SmallModel(), story)


@EACH
def test_at_temperature_1_nothing_is_asked(tmp_path: Path, kind: Kind) -> None:
    async def story(world: World, server: StandIn) -> None:
        agent = await world.open()
        await agent.ask(user("Hi"))
        assert len(server.bodies) == 1
        assert await health(world) == "unknown"

    play(tmp_path, kind, SmallModel(told="raw"), story)


@EACH
def test_an_engine_that_is_not_up_yet_is_no_more_than_a_call_that_may_be_tried_again(
    tmp_path: Path, kind: Kind
) -> None:
    async def story(world: World, server: StandIn) -> None:
        server.faults.refuses = 503
        agent = await world.open(sampling=WARM, client={"max_retries": 0})
        with pytest.raises(openai.APIStatusError) as caught:
            await agent.send([user("Hi")])
        assert caught.value.status_code == 503
        assert caught.value.response.headers["retry-after"] == "1"
        assert await health(world) == "unknown"

    play(tmp_path, kind, SmallModel(), story)
