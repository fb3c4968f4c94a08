"""The project's own compose file and image, as the tests of this folder read them."""

import pytest

from tests.compose.compose_file import COMPOSE, Service, read_services
from tests.compose.dockerfile import DOCKERFILE, Stage, read_stages


@pytest.fixture(scope="session")
def services() -> dict[str, Service]:
    """As `docker compose` sees them where no variable is set."""
    return read_services(COMPOSE.read_text(encoding="utf-8"), {})


@pytest.fixture(scope="session")
def image() -> Stage:
    """The stage that the containers run."""
    return read_stages(DOCKERFILE.read_text(encoding="utf-8"))[-1]
