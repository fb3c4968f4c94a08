"""The harness notices a worker that is built wrong, and says what breaks."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.variants import VARIANTS, redeployed, symptoms
from tests.kafka.broker import Broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.mark.parametrize("name", VARIANTS)
def test_a_worker_built_wrong_shows_what_was_predicted(
    name: str, broker: Broker, tmp_path: Path
) -> None:
    assert asyncio.run(symptoms(VARIANTS[name], broker, tmp_path))


def test_only_sample_ids_keep_apart_what_two_policies_made_of_a_session(
    broker: Broker, tmp_path: Path
) -> None:
    two = asyncio.run(redeployed(broker, tmp_path, seed=1))
    assert two.torn_if_ignored
    assert two.torn_if_heeded == []
