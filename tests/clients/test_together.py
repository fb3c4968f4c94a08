"""Both clients at once, every scene, at one gateway."""

import asyncio
import contextlib
from pathlib import Path

from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.clients import claude_scenes, codex_scenes
from tests.clients.accounts import Account
from tests.clients.installing import Programs
from tests.clients.scene import Scene
from tests.clients.theatre import played_embedded, played_on_kafka
from tests.kafka.broker import Broker
from tests.kafka.test_processor import worker

PROCESSORS = 3


def scenes(folder: Path) -> list[Scene]:
    claude = [scene(folder / "claude") for scene in claude_scenes.SCENES]
    codex = [scene(folder / "codex") for scene in codex_scenes.SCENES]
    return [*claude, *codex]


def test_all_scenes_of_both_at_once(
    tmp_path: Path, clients: Programs, accounts: dict[str, Account]
) -> None:
    for name, told in played_embedded(scenes(tmp_path), tmp_path, clients).items():
        accounts[f"{name}, both at once"] = told


def test_all_scenes_of_both_at_once_on_kafka_with_three_processors(
    tmp_path: Path, clients: Programs, accounts: dict[str, Account]
) -> None:
    with Broker(tmp_path / "broker") as broker, contextlib.ExitStack() as running:
        settings = Settings(
            bootstrap_servers=broker.bootstrap_servers, partitions=6, metrics_port=0
        )
        assert asyncio.run(create_topics(settings)).problems == []
        processors = [
            running.enter_context(worker(settings, tmp_path / f"worker{number}.log"))
            for number in range(PROCESSORS)
        ]
        for name, told in played_on_kafka(scenes(tmp_path), settings, clients).items():
            accounts[f"{name}, both at once, Kafka, {PROCESSORS} processors"] = told
        assert [processor.poll() for processor in processors] == [None] * PROCESSORS
