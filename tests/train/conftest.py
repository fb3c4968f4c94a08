"""The models, loaded once, and what was measured with them, shown at the end."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.train import models
from tests.train.real import Real

# What they find is said in full, as in a test.
pytest.register_assert_rewrite("tests.train.stage")

# Where more compute in step than processors are free, each step waits for the slowest.
torch.set_num_threads(1)

FOUND = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two small layers with random weights, as a folder."""
    return models.tiny_model(tmp_path_factory.mktemp("tiny"), seed=1)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    real = Real(tmp_path_factory.mktemp("tokenizer"))
    yield real
    asyncio.run(real.engine.close())


@pytest.fixture
def real(whole: Real) -> Real:
    """The real model with its own weights as version 0."""
    asyncio.run(whole.engine.replace_weights(whole.weights[0], 0))
    return whole


@pytest.fixture
def found(request: pytest.FixtureRequest) -> list[str]:
    """What a test has measured, shown at the end."""
    return request.config.stash.setdefault(FOUND, [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash.get(FOUND, []):
        terminalreporter.write_line(line)
