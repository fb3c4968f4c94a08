"""`docker compose up --scale processor=3` and one life of every session, without an engine.

What only exists inside containers is replaced by `TABLE` and by nothing else: addresses, the
volume, and the folder that the image's packages lie in. (`/tmp` is a folder for each.)
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from streams.adapters.client import Turnstream
from tests.compose.compose_file import COMPOSE, Service, read_services
from tests.compose.dockerfile import Stage
from tests.compose.kafka_service import ComposeBroker
from tests.compose.stand_in import BASE_ENVIRONMENT, SECONDS_MAX, StandIn, replaced, stop
from tests.drift.qwen3 import tokenizer_folder
from tests.harness import linearized
from tests.kafka.broker import free_port
from tests.kafka.jars import NoBroker

TABLE = {
    # in the file: here
    "://:9092": "://127.0.0.1:{inside}",
    "kafka:9092": "127.0.0.1:{inside}",
    "://:19092": "://127.0.0.1:{host}",
    "127.0.0.1:9092": "127.0.0.1:{host}",
    "localhost:9093": "127.0.0.1:{controller}",
    "9464": "{metrics}",
    "0.0.0.0": "127.0.0.1",
    "8080": "{gateway}",
    "/tokenizer": "{tokenizer}",
    "/var/lib/kafka/data": "{volume}",
    "/opt/turnstream": "{packages}",
}
EXAMPLE = Path(__file__).parents[2] / "examples/session.jsonl"
SESSIONS = 24


def filled(
    folder: Path, inside: int, host: int, controller: int, gateway: int
) -> Mapping[str, str]:
    """The table with one machine's ports; those that every container has for itself are new."""
    values = {
        "gateway": gateway,
        "tokenizer": tokenizer_folder(),
        "inside": inside,
        "host": host,
        "controller": controller,
        "metrics": free_port(),
        "volume": folder / "broker/data",
        "packages": sys.prefix,
    }
    return {left: right.format(**values) for left, right in TABLE.items()}


@pytest.fixture
def ports() -> dict[str, int]:
    return {name: free_port() for name in ("inside", "host", "controller", "gateway")}


@pytest.fixture
def broker(
    services: dict[str, Service], tmp_path: Path, ports: dict[str, int]
) -> Iterator[ComposeBroker]:
    """The file's own, answering."""
    table = filled(tmp_path, **ports)
    with ComposeBroker(services["kafka"], table, tmp_path / "broker", ports["inside"]) as running:
        yield running


@pytest.fixture
def stack(
    services: dict[str, Service], image: Stage, tmp_path: Path, ports: dict[str, int]
) -> Iterator[StandIn]:
    """Nothing of ours is started yet."""
    with StandIn(services, image, tmp_path, lambda: filled(tmp_path, **ports)) as stand_in:
        yield stand_in


def test_a_broker_that_cannot_be_set_up_says_why(
    services: dict[str, Service], tmp_path: Path, ports: dict[str, int]
) -> None:
    table = filled(tmp_path, **{**ports, "host": ports["inside"]})
    with pytest.raises(NoBroker, match="two listeners on the same port"):
        ComposeBroker(services["kafka"], table, tmp_path / "broker", ports["inside"])


def on_this_machine(stack: StandIn, *command: str | Path) -> str:
    """What a user's own command prints, through the port that the file publishes."""
    (published,) = stack.services["kafka"].options["ports"]
    address = replaced(published.rpartition(":")[0], stack.new_table())
    run = subprocess.run(
        [Path(sys.executable).parent / "turnstream", *command],
        env=BASE_ENVIRONMENT | {"TURNSTREAM_BOOTSTRAP_SERVERS": address},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def replay(stack: StandIn, events: list[dict[str, Any]], folder: Path) -> None:
    file = folder / "events.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    assert f"published {len(events)} events" in on_this_machine(stack, "replay", file)


def tailed(stack: StandIn, count: int) -> list[dict[str, Any]]:
    """So many different records, waiting for them; a record may have come twice."""
    most, until_s = count, time.monotonic() + SECONDS_MAX
    while time.monotonic() < until_s:
        told = on_this_machine(stack, "tail", "--json", "--from-beginning", "--max", str(most))
        different = dict.fromkeys(told.splitlines())
        if len(different) >= count:
            return [json.loads(line) for line in different]
        most += count - len(different)
    raise TimeoutError(f"only {len(different)} of {count} records")


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


def test_an_agent_on_this_machine_reaches_the_gateway(
    broker: ComposeBroker, image: Stage, tmp_path: Path, ports: dict[str, int]
) -> None:
    keys = {"SECRET": "a-secret-of-this-test", "CONTROL_KEY": "a-control-key-of-this-test"}
    given = {f"TURNSTREAM_GATEWAY_{name}": value for name, value in keys.items()}
    services = read_services(COMPOSE.read_text("utf-8"), given)
    with StandIn(services, image, tmp_path, lambda: filled(tmp_path, **ports)) as stack:
        stack.up({}, profiles={"gateway"})
        control = Turnstream(f"http://127.0.0.1:{ports['gateway']}", keys["CONTROL_KEY"])
        with control.session() as session:
            with openai.OpenAI(base_url=session.base_url, api_key=session.key) as sdk:
                sdk.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "Who are you?"}]
                )
            session.reward(1)
        sample, outcome = tailed(stack, 2)
        stack.down()
    assert sample["sample_id"] in outcome["sample_ids"]
    assert (outcome["session_id"], outcome["reward"]) == (session.session_id, 1.0)
