"""The trainer's profile: a batch of rollouts trained in one container, sampled from in others.

    agents ──► router ──► gateways ──► log ──► trainer (PyTorch for processors)
                              │                   │ weights, in the volume `checkpoints`
                              └──► engine ◄───────┘

The engine is a small model on SGLang's wire, in a container of the trainer's image on the network
of the deployment, as a user's own may be.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from schemas import codec
from schemas.events import Turn
from streams.adapters.client import AsyncSession, Turnstream
from streams.log.kafka import KafkaLog
from streams.settings import Settings
from tests.compose.engine.deployment import Deployment
from tests.kafka.jars import ROOT

RUN = "compose"
GROUPS, GROUP_SIZE = 2, 4
TOKENS = 6
ENGINE = "http://engine:30000"
BUILD_SECONDS_MAX = 1800.0
ASK_S = 120.0


@contextmanager
def engine(deployment: Deployment) -> Iterator[str]:
    """Its container, on the deployment's network and with its checkpoints; it makes the model."""
    docker, name = deployment.docker, f"{deployment.project}-engine"
    docker(
        *("run", "--detach", "--name", name, "--init", "--workdir", "/checkout"),
        # Compose labels an image that it builds; a container takes over what is not said anew.
        *("--label", "com.docker.compose.project=", "--label", "com.docker.compose.service="),
        *("--network", f"{deployment.project}_default", "--network-alias", "engine"),
        *("--env", "PYTHONPATH=/opt/train:/checkout", "--env", "HF_HUB_OFFLINE=1"),
        *("--volume", f"{ROOT / 'tests'}:/checkout/tests:ro"),
        *("--volume", f"{deployment.checkout / 'models/small'}:/model"),
        *("--volume", f"{deployment.project}_checkpoints:/checkpoints:ro"),
        *("--entrypoint", "python", "turnstream-trainer"),
        *("-m", "tests.train.served", "/model", "30000"),
    )
    try:
        yield name
    finally:
        docker.tried("rm", "--force", name)


def test_from_agents_to_a_gradient_and_back(
    deployment: Deployment, figures: dict[str, object]
) -> None:
    model = deployment.checkout / "models/small"
    model.mkdir()
    model.chmod(0o777)  # the user of the image makes the model there
    deployment.set(
        **deployment.gateway_variables
        | {"GATEWAY_TOKENIZER": str(model), "GATEWAY_ENGINE": f"sglang:{ENGINE}"},
        TRAINER_MODEL=str(model),
        TRAINER_SGLANG=ENGINE,
        TRAINER_RUN=RUN,
        TRAINER_GROUPS=str(GROUPS),
        TRAINER_LEARNING_RATE="1e-3",
        TRAINER_STEPS="1",
        TURNSTREAM_GATEWAY_CONTROL_KEY="tc-a-control-key-of-this-test",
    )
    profiles = ("--profile", "gateway", "--profile", "trainer")
    began_s = time.monotonic()
    deployment.compose(*profiles, "build", seconds=BUILD_SECONDS_MAX)
    figures["images built"] = f"{time.monotonic() - began_s:.0f} s"
    size = deployment.docker("image", "inspect", "--format", "{{.Size}}", "turnstream-trainer")
    figures["image"] = f"{int(size) / 1e6:.0f} MB"
    deployment.compose("up", "--detach", "--wait")  # the network, the volume, a broker
    with engine(deployment) as name:
        deployment.until(
            lambda: "serving" in deployment.docker("logs", name), "the engine serves its model"
        )
        deployment.compose(*profiles, "up", "--detach")
        deployment.until_well("gateway-1", "gateway-2", "router")
        control = Turnstream(deployment.gateway_url, deployment.control_key)
        asyncio.run(rolled_out(control, "first"))
        began_s = time.monotonic()
        deployment.until(
            lambda: not deployment.container("trainer").running, "the trainer has done its step"
        )
        figures["a step"] = f"{time.monotonic() - began_s:.0f} s"
        assert deployment.container("trainer").exit_code == 0, deployment.said("trainer")
        assert "weights of version 1" in deployment.docker("logs", name)
        asyncio.run(rolled_out(control, "second"))
    versions = asyncio.run(sampled(Settings(bootstrap_servers=deployment.servers)))
    assert versions == Counter({0: GROUPS * GROUP_SIZE, 1: GROUPS * GROUP_SIZE})
    metrics = deployment.docker(
        *("run", "--rm", "--volume", f"{deployment.project}_checkpoints:/checkpoints:ro"),
        *("--entrypoint", "cat", "turnstream-trainer", "/checkpoints/metrics.jsonl"),
    )
    assert metrics.count("\n") == 1, metrics
    (told,) = map(json.loads, metrics.splitlines())
    assert told["trained"] == told["generated"] > 0
    # What was sampled is what trained: the trainer begins with the engine's own weights.
    assert abs(told["ratio"] - 1) < 1e-3
    figures["ratio"] = told["ratio"]


async def rolled_out(control: Turnstream, name: str) -> None:
    """Some groups, all at once."""
    async with httpx.AsyncClient(trust_env=False, timeout=ASK_S) as http:
        await asyncio.gather(
            *(
                _rollout(control, http, f"{name}-{group}", slot)
                for group in range(GROUPS)
                for slot in range(GROUP_SIZE)
            )
        )


async def _rollout(control: Turnstream, http: httpx.AsyncClient, group_id: str, slot: int) -> None:
    async with control.session(
        run_id=RUN, group_id=group_id, group_size=GROUP_SIZE, rollout_index=slot
    ) as session:
        await _asked(http, session)
        await session.end(reward=float(slot % 2))


async def _asked(http: httpx.AsyncClient, session: AsyncSession) -> None:
    answer = await http.post(
        f"{session.base_url}/chat/completions",
        headers={"authorization": f"Bearer {session.key}"},
        json={
            "model": "m",
            "messages": [{"role": "user", "content": "Letters, please."}],
            "max_tokens": TOKENS,
        },
    )
    answer.raise_for_status()


async def sampled(settings: Settings) -> Counter[int]:
    """Turns by the version of the weights that they were sampled from."""
    found: Counter[int] = Counter()
    async with KafkaLog(settings) as log:
        topic = settings.turns_topic
        ends = await log.end_positions(topic)
        reader = await log.read(topic, await log.start_positions(topic))
        while any(reader.positions[at] < end for at, end in ends.items()):
            for entry in await reader.next_batch(1.0):
                record = codec.from_msgpack(entry.value or b"")
                if isinstance(record, Turn):
                    found.update(version for version, _ in record.weight_versions or ())
        await reader.close()
    return found
