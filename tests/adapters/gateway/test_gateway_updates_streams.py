"""What streams of each API show of a weight update: that they are alive, and nothing else."""

import asyncio

from tests.adapters.gateway.agents import says
from tests.adapters.gateway.agents_kinds import Talker
from tests.adapters.gateway.faults_apis import Event, Wire, asking, events, for_each_api
from tests.adapters.gateway.test_gateway_faults_streams import idle_before, read
from tests.adapters.gateway.world import World

LONG = "One two three four five six seven eight nine ten."


async def changed(world: World, path: str, **body: int) -> int:
    """Pause or resume; the version that is declared."""
    status, told = await world.control(path, body)
    assert status == 200, told
    return int(told["version"])


@for_each_api(says(LONG), gateway_keep_alive_s=0.05)
async def test_a_stream_is_kept_alive_while_it_waits_for_new_weights(
    world: World, wire: Wire, talker: Talker
) -> None:
    wire.asked(talker, "Hi")
    version = await changed(world, "pause")
    before = len(world.engine.journal)
    reading = asyncio.create_task(read(world, wire, talker))
    await asyncio.sleep(0.5)
    assert len(world.engine.journal) == before
    await changed(world, "resume", version=version + 1)
    seen = await reading
    assert idle_before(wire, seen, LONG) >= 3
    assert wire.ended(seen[-1])
    await world.ends_whole(talker.agent)


@for_each_api(says(LONG, gap_ms=20), gateway_keep_alive_s=0.05)
async def test_a_stream_is_kept_alive_in_the_middle_and_goes_on_unbroken(
    world: World, wire: Wire, talker: Talker
) -> None:
    wire.asked(talker, "Hi")
    seen: list[Event] = []
    paused, old = False, 0
    async with asking(world, wire, wire.asked(talker, stream=True), talker.agent.key) as reply:
        async for event in events(reply):
            seen.append(event)
            if not paused and wire.text(seen):
                paused, old = True, await changed(world, "pause")
                world.engine.update_weights(old + 1)
            elif paused and sum(map(wire.idle, seen[-3:])) == 3 and old >= 0:
                old = -await changed(world, "resume", version=old + 1)
    assert wire.ended(seen[-1])
    assert wire.text(seen) == LONG
    (turn,) = await world.turns(talker.session_id)
    assert [version for version, _ in turn.weight_versions or ()] == [-old - 1, -old]
    await world.ends_whole(talker.agent)


@for_each_api(says(LONG), gateway_keep_alive_s=0.05, gateway_pause_wait_s=0.4)
async def test_a_stream_that_has_begun_is_told_that_the_pause_is_too_long(
    world: World, wire: Wire, talker: Talker
) -> None:
    wire.asked(talker, "Hi")
    version = await changed(world, "pause")
    seen = await read(world, wire, talker)
    assert sum(map(wire.idle, seen[:-1])) >= 2
    refusal = wire.failed(seen[-1])
    assert refusal is not None
    assert "paused for a weight update" in refusal.message
    await changed(world, "resume", version=version + 1)
    assert wire.text(await read(world, wire, talker)) == LONG
    await world.ends_whole(talker.agent)
