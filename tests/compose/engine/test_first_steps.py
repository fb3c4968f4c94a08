"""From nothing to a sample by the README's words alone, as somebody does who has just cloned it."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest

from streams.adapters.client import Turnstream
from tests.compose.engine.deployment import UP_SECONDS_MAX, Deployment
from tests.kafka.jars import ROOT
from tests.test_readme_blocks import block

SECTION = "In containers"
README = (ROOT / "README.md").read_text("utf-8")


def shell(deployment: Deployment, script: str) -> str:
    """What a shell prints, standing in the checkout; ports are all that it is told."""
    ports = {
        "KAFKA_HOST_PORT": str(deployment.ports["kafka"]),
        "GATEWAY_HOST_PORT": str(deployment.ports["router"]),
        "COMPOSE_PROJECT_NAME": deployment.project,
    }
    client = deployment.docker.environment
    path = f"{deployment.docker.program.parent}:{client['PATH']}"
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=deployment.checkout,
        env=client | ports | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=UP_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.smoke
def test_the_readme_leads_from_nothing_to_a_sample_and_away_again(
    deployment: Deployment, figures: dict[str, object]
) -> None:
    deployment.docker.tried("image", "rm", "--force", "turnstream")
    words, _, last = block(SECTION).rstrip().rpartition("\n")
    assert "GATEWAY_TOKENIZER=FOLDER\n" in words
    began_s = time.monotonic()
    shell(deployment, words.replace("FOLDER", str(deployment.model)))
    figures["up, image built"] = f"{time.monotonic() - began_s:.0f} s"
    printed = shell(deployment, last)
    # Nothing but the key: a script may take it as it is.
    assert re.fullmatch(r"tc-[\w-]+\n", printed)
    assert [deployment.scale(name) for name in ("processor", "gateway-1", "router")] == [
        3,
        1,
        1,
    ]
    assert all(container.well for container in deployment.containers())

    with Turnstream(deployment.gateway_url, printed.strip()).session() as session:
        sdk = openai.OpenAI(base_url=session.base_url, api_key=session.key)
        with sdk:
            asked = [{"role": "user", "content": "Who are you?"}]
            answer = sdk.chat.completions.create(model="m", messages=asked)  # type: ignore[arg-type]
        assert "scripted engine" in str(answer.choices[0].message.content)
        session.reward(1.0)
    sample, outcome = tail(deployment, 2)
    assert (sample["type"], outcome["type"]) == ("sample", "session_closed")
    assert sample["session_id"] == outcome["session_id"] == session.session_id
    figures["from nothing to a sample"] = f"{time.monotonic() - began_s:.0f} s"

    down = "docker compose --profile '*' down"
    assert f"`{down}`" in README
    began_s = time.monotonic()
    shell(deployment, down)
    figures["down"] = f"{time.monotonic() - began_s:.0f} s"
    assert deployment.containers() == []
    volumes = deployment.docker("volume", "ls", "--quiet", "--filter", "dangling=true").split()
    assert f"{deployment.project}_kafka" in volumes
    assert not [name for name in volumes if re.fullmatch(r"[0-9a-f]{64}", name)]


def tail(deployment: Deployment, count: int) -> list[dict[str, object]]:
    """So many records, as `turnstream tail` of this machine prints them."""
    done = subprocess.run(
        [Path(sys.executable).parent / "turnstream", "tail", "--json", "--from-beginning",
         "--max", str(count)],
        env=os.environ | {"TURNSTREAM_BOOTSTRAP_SERVERS": deployment.servers},
        capture_output=True,
        text=True,
        timeout=UP_SECONDS_MAX,
        check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]
