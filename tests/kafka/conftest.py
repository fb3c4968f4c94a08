"""One real broker for all tests of this folder that do not break it."""

import asyncio
import os
import uuid
from collections.abc import Iterator

import pytest

from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.kafka.broker import SHARED_PORT, Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Answering; shared, so a test takes its own topic prefix and leaves the broker running."""
    port = os.environ.get(SHARED_PORT)
    if port:
        yield Broker(tmp_path_factory.mktemp("broker"), port=int(port))
        return
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def bare_settings(broker: Broker) -> Settings:
    """A prefix of the test's own, without topics."""
    prefix = f"test-{uuid.uuid4().hex[:8]}"
    return Settings(bootstrap_servers=broker.bootstrap_servers, topic_prefix=prefix, partitions=4)


@pytest.fixture
def settings(bare_settings: Settings) -> Settings:
    """A prefix of the test's own, with its topics."""
    report = asyncio.run(create_topics(bare_settings))
    assert report.problems == []
    return bare_settings
