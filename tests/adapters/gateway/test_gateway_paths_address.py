"""A gateway that agents reach by another name than this machine does."""

import signal
from pathlib import Path

from streams.adapters.client import Turnstream
from tests.adapters.gateway.world import World, played
from tests.cli.up_process import up

ELSEWHERE = "https://agents.example/turnstream"


@played(gateway_url=f"{ELSEWHERE}/")
async def test_agents_are_given_the_name_and_the_process_knows_its_own_address(
    world: World,
) -> None:
    assert world.gateway.base_url == ELSEWHERE
    async with Turnstream(world.gateway.local_url, world.gateway.keys.control_key).session() as s:
        assert s.base_url == f"{ELSEWHERE}/v1"
        await s.end("cancelled")


@played(gateway_host="0.0.0.0")
async def test_one_that_listens_everywhere_is_reached_by_loopback(world: World) -> None:
    assert world.gateway.local_url == world.gateway.base_url
    assert world.gateway.local_url.startswith("http://127.0.0.1:")
    async with world.http.get(f"{world.gateway.local_url}/healthz") as reply:
        assert reply.status == 200


def test_up_reaches_itself_on_any_free_port_whatever_agents_call_it(tmp_path: Path) -> None:
    with up(tmp_path, TURNSTREAM_GATEWAY_URL=ELSEWHERE) as running:
        assert running.base_url == f"{ELSEWHERE}/v1"
        here = running.running.found(r"^  listens on (http://127.0.0.1:\d+)$")
        with Turnstream(here, running.control_key).session() as session:
            session.reward(1)
        assert running.closed(session.session_id).reward == 1.0
        assert running.running.stop(signal.SIGTERM) == 0
