"""`docker compose --profile sinks up`: both sinks from their own commands, without an engine."""

import dataclasses
import time
from pathlib import Path

from tests.compose.compose_file import Service
from tests.compose.dockerfile import Stage
from tests.compose.kafka_service import ComposeBroker
from tests.compose.on_machine import replay
from tests.compose.stand_in import SECONDS_MAX, StandIn
from tests.compose.table import filled
from tests.sinks.scenes import dumped, files, tool_session
from tests.sinks.trackio_place import installed, shown

SESSIONS = [f"s{number}" for number in range(6)]


def test_both_sinks_write_into_their_volume_and_end_in_their_time(
    services: dict[str, Service],
    image: Stage,
    tmp_path: Path,
    ports: dict[str, int],
    broker: ComposeBroker,
) -> None:
    # The image has the extra among its packages; here it lies beside them.
    packages = ("ENV", f"PYTHONPATH={installed()}")
    image = dataclasses.replace(image, instructions=[*image.instructions, packages])
    with StandIn(services, image, tmp_path, lambda name: filled(tmp_path, ports, name)) as stack:
        stack.up({}, profiles=["sinks"])
        # Of others only one in a hundred leaves a trace.
        events = [event for name in SESSIONS for event in tool_session(name, split="eval", step=1)]
        replay(stack, events, tmp_path)
        until_s = time.monotonic() + SECONDS_MAX
        while not files(tmp_path / "sinks/traces"):
            assert time.monotonic() < until_s, stack.containers["sink-jsonl"][0].said
            time.sleep(0.5)
        stack.down()
    assert {line["session_id"] for line in dumped(tmp_path / "sinks/traces")} == set(SESSIONS)
    assert [name for _, name, _ in shown(tmp_path / "sinks/trackio")] == SESSIONS
