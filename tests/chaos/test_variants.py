"""The harness notices a worker that is built wrong; `make chaos-variants` tries every one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.broken import REWARDS_DROPPED
from tests.chaos.variants import VARIANTS, redeployed, symptoms
from tests.kafka.broker import Broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def test_rewards_that_a_closing_session_drops_are_missed(broker: Broker, tmp_path: Path) -> None:
    lost = asyncio.run(symptoms(VARIANTS[REWARDS_DROPPED], broker, tmp_path))
    assert lost
    assert all(name.startswith("revision") for name in lost)


def test_only_sample_ids_keep_apart_what_two_policies_made_of_a_session(
    broker: Broker, tmp_path: Path
) -> None:
    two = asyncio.run(redeployed(broker, tmp_path, seed=1))
    assert two.torn_if_ignored
    assert two.torn_if_heeded == []
