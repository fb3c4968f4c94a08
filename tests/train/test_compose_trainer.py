"""From an agent to a gradient through the compose file: every service, the trainer among them.

    agents ──► router ──► gateway-1, gateway-2 ──► 3 processors ──► trainer
                              │                                       │
                              └──► an engine on SGLang's wire ◄───────┘  weights after the step

The engine computes the model that the trainer begins with, so the ratio of every token is 1: the
ids and logprobs that were sampled are those that train.
"""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from examples.trainer.train import METRICS
from streams.adapters.client import Turnstream
from streams.adapters.engines.local import LocalEngine
from tests.adapters.engines.standins.serving import standing
from tests.compose.compose_file import COMPOSE, read_services
from tests.compose.dockerfile import DOCKERFILE, read_stages
from tests.compose.kafka_service import ComposeBroker
from tests.compose.on_machine import on_this_machine
from tests.compose.stand_in import StandIn
from tests.compose.table import PORTS, ROUTER, filled
from tests.kafka.broker import free_port
from tests.train.learning import GROUP_SIZE, GROUPS, RUN, rolled_out
from tests.train.models import small_model
from tests.train.served import Served

KEY = "a-control-key-of-this-test"
SECONDS_MAX = 400.0
SAME = 1e-3


def stack_of(folder: Path, model: Path, engine_url: str, ports: dict[str, int]) -> StandIn:
    """Everything of the file, with this model."""
    given = {
        "TURNSTREAM_GATEWAY_SECRET": "a-secret-of-this-test",
        "TURNSTREAM_GATEWAY_CONTROL_KEY": KEY,
        "GATEWAY_ENGINE": f"sglang:{engine_url}",
        "TRAINER_SGLANG": engine_url,
        "TRAINER_RUN": RUN,
        "TRAINER_GROUPS": str(GROUPS),
        "TRAINER_LEARNING_RATE": "1e-3",
        "TRAINER_STEPS": "1",
    }
    stages = {stage.name: stage for stage in read_stages(DOCKERFILE.read_text("utf-8"))}
    own = {"/tokenizer": str(model), "=/model": f"={model}"}
    return StandIn(
        read_services(COMPOSE.read_text("utf-8"), given),
        stages["turnstream"],
        folder,
        lambda name: {**filled(folder, ports, name), **own},
        foreign=ROUTER | {"trainer": stages["trainer"]},
    )


def weights_of(folder: Path) -> dict[str, Any]:
    weights: dict[str, Any] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return weights


def test_from_an_agent_to_a_gradient(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model", seed=1)
    ports = {name: free_port() for name in PORTS}
    server = Served(LocalEngine(model, seed=1))

    async def story() -> tuple[str, str]:
        async with standing(server) as (url,):
            stack = stack_of(tmp_path, model, url, ports)
            kafka, table = stack.services["kafka"], filled(tmp_path, ports)
            with ComposeBroker(kafka, table, tmp_path / "broker", ports["inside"]), stack:
                await asyncio.to_thread(stack.up, {"processor": 3}, {"gateway", "trainer"})
                control = Turnstream(f"http://127.0.0.1:{ports['router']}", KEY)
                await rolled_out(control, "first")
                await asyncio.to_thread(stack.containers["trainer"][0].completed, SECONDS_MAX / 2)
                await rolled_out(control, "second")
                step = await asyncio.to_thread(on_this_machine, stack, "inspect", "--step", "1")
                events = await asyncio.to_thread(on_this_machine, stack, "export", "events")
                await asyncio.to_thread(stack.down)
        await server.engine.close()
        return step, events

    step, events = asyncio.run(asyncio.wait_for(story(), SECONDS_MAX))

    assert f"step 1 of run {RUN}, epoch 0, weight version 1" in step
    (told,) = map(json.loads, (tmp_path / "checkpoints" / METRICS).read_text().splitlines())
    assert told["trained"] == told["generated"] > 0
    assert abs(told["ratio"] - 1) < SAME
    assert server.loaded == ["1"]
    turns = [event for event in map(json.loads, events.splitlines()) if event["type"] == "turn"]
    assert len({turn["source"] for turn in turns}) == 2
    versions = [version for turn in turns for version, _ in turn["weight_versions"]]
    assert Counter(versions) == {0: GROUPS * GROUP_SIZE, 1: GROUPS * GROUP_SIZE}
    before = weights_of(model)
    after = weights_of(tmp_path / "checkpoints/step-00000001/model")
    assert all(not torch.equal(before[name], after[name]) for name in before)
