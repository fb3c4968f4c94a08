"""What a person reads of a session is no metric: neither its words nor its numbers."""

import asyncio
import dataclasses
from pathlib import Path

import aiohttp

from schemas.traces import Trace
from streams.adapters.environments import recorded
from streams.log.sqlite import SqliteLog
from streams.processor.embedded import EmbeddedProcessor
from streams.processor.health import serve
from tests.adapters.environments.toys import Walk
from tests.adapters.environments.world import World, happens


async def scraped(world: World) -> str:
    """The metrics of a processor that has closed a session, as a scraper gets them."""
    settings = dataclasses.replace(world.settings, metrics_port=0)
    async with SqliteLog(world.path, settings) as log:
        processor, stop = EmbeddedProcessor(settings, log), asyncio.Event()
        running = asyncio.create_task(processor.run(stop))
        await happens(lambda: processor.counts["sessions_closed"])
        runner = await serve(settings, processor.counts, processor.look)
        host, port = runner.addresses[0][:2]
        url = f"http://{host}:{port}/metrics"
        async with aiohttp.ClientSession() as http, http.get(url) as reply:
            text = await reply.text()
        await runner.cleanup()
        stop.set()
        await running
    return text


def test_no_field_of_a_trace_shows_up_as_a_metric(tmp_path: Path) -> None:
    world = World(tmp_path, trace_share=1.0)
    worth = {"score": 1.0, "style_points": 3.5}
    with world.recorder() as recorder:
        fields = {"metadata": {"rhubarb": 7}, "task_id": "taskful"}
        env = recorded(Walk(1), recorder, fields=fields, score=lambda _: worth)
        env.reset()
        env.step(1)
    text = asyncio.run(scraped(world))
    assert "turnstream_sessions_closed_total 1.0" in text
    (trace,) = world.read(world.settings.traces_topic)
    assert isinstance(trace, Trace)
    assert b"style_points" in bytes(trace.reward_payload)
    for word in ("style_points", "rhubarb", "taskful", trace.session_id, "finish_reason"):
        assert word not in text
