"""The project's own compose file and image, as the tests of this folder read them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.compose_file import COMPOSE, Service, read_services
from tests.compose.dockerfile import DOCKERFILE, Stage, read_stages
from tests.compose.kafka_service import ComposeBroker
from tests.compose.table import PORTS, filled
from tests.kafka.broker import free_port


@pytest.fixture(scope="session")
def services() -> dict[str, Service]:
    """As `docker compose` sees them where no variable is set."""
    return read_services(COMPOSE.read_text(encoding="utf-8"), {})


@pytest.fixture(scope="session")
def image() -> Stage:
    """The stage that the containers run."""
    return read_stages(DOCKERFILE.read_text(encoding="utf-8"))[-1]


@pytest.fixture
def ports() -> dict[str, int]:
    """Free ones, by what listens there."""
    return {name: free_port() for name in PORTS}


@pytest.fixture
def broker(
    services: dict[str, Service], tmp_path: Path, ports: dict[str, int]
) -> Iterator[ComposeBroker]:
    """The file's own, answering."""
    table = filled(tmp_path, ports)
    with ComposeBroker(services["kafka"], table, tmp_path / "broker", ports["inside"]) as running:
        yield running
