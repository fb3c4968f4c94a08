"""`docker compose up --scale processor=3` and one life of every session, without an engine.

What only exists inside containers is replaced by `TABLE` and by nothing else. (`/tmp` is a folder
for each.)
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compose.compose_file import Service
from tests.compose.dockerfile import Stage
from tests.compose.kafka_service import ComposeBroker
from tests.compose.on_machine import replay, tailed
from tests.compose.stand_in import StandIn, stop
from tests.compose.table import filled
from tests.harness import linearized
from tests.kafka.jars import NoBroker

EXAMPLE = Path(__file__).parents[2] / "examples/session.jsonl"
SESSIONS = 24


@pytest.fixture
def stack(
    services: dict[str, Service], image: Stage, tmp_path: Path, ports: dict[str, int]
) -> Iterator[StandIn]:
    """Nothing of ours is started yet."""
    with StandIn(services, image, tmp_path, lambda name: filled(tmp_path, ports, name)) as stand_in:
        yield stand_in


def test_a_broker_that_cannot_be_set_up_says_why(
    services: dict[str, Service], tmp_path: Path, ports: dict[str, int]
) -> None:
    table = filled(tmp_path, {**ports, "host": ports["inside"]})
    with pytest.raises(NoBroker, match="two listeners on the same port"):
        ComposeBroker(services["kafka"], table, tmp_path / "broker", ports["inside"])


def in_order(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By session; within one, samples keep their place before the outcome."""
    return sorted(records, key=lambda record: str(record["session_id"]))


def test_every_service_plays_its_part_in_the_life_of_sessions(
    broker: ComposeBroker, stack: StandIn, tmp_path: Path
) -> None:
    *turns, ended = [json.loads(line) for line in EXAMPLE.read_text("utf-8").splitlines()]
    names = [f"life-{number}" for number in range(SESSIONS)]
    opened = [event | {"session_id": name} for name in names for event in turns]
    closed = [ended | {"session_id": name} for name in names]

    stack.up({"processor": 3})
    assert [len(stack.containers[name]) for name in ("topics", "processor")] == [1, 3]
    replay(stack, opened, tmp_path)
    # `--scale processor=2`, while every session is open.
    stop(stack.containers["processor"][:1])
    replay(stack, closed, tmp_path)
    offline = linearized([*opened, *closed])
    found = tailed(stack, len(offline.samples) + len(offline.closed))

    assert in_order(found) == in_order([*offline.samples, *offline.closed])
    # The longest way out: the broker takes the last requests and does not answer.
    broker.pause()
    stack.down()
    codes = [container.process.poll() for container in stack.containers["processor"]]
    assert codes == [0, 0, 0]
